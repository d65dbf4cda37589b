# SPDX-License-Identifier: Apache-2.0
"""The generated code matches control.proto, and gRPC is imported only when it is used."""

import subprocess
import sys
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

import cometmq.control.v1
from cometmq.control.methods import ORDERS
from cometmq.control.v1 import control_pb2 as pb

V1 = Path(cometmq.control.v1.__path__[0])
SOURCES = V1.parents[2]


def test_the_generated_code_is_that_of_the_protocol(tmp_path):
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    command = [
        "protoc", f"-I{SOURCES}", f"-I{well_known}", f"--python_out={tmp_path}",
        f"--pyi_out={tmp_path}", str(V1 / "control.proto"),
    ]  # fmt: skip
    assert protoc.main(command) == 0
    for name in ("control_pb2.py", "control_pb2.pyi"):
        made = (tmp_path / "cometmq/control/v1" / name).read_text()
        assert made == (V1 / name).read_text(), "run make protos"


def test_every_method_of_the_protocol_is_served():
    methods = pb.DESCRIPTOR.services_by_name["GroupControl"].methods
    others = {"GetStatus", "WatchStatus", "UpdateConfig"}
    assert {method.name for method in methods} == set(ORDERS) | others
    for method in methods:
        if method.name in ORDERS:
            assert method.input_type.name == ORDERS[method.name].request.DESCRIPTOR.name
            assert method.output_type.name == "MemberStatus"


def test_the_interface_of_a_member_needs_no_grpc():
    code = (
        "import sys, cometmq.control.controlled, cometmq.broker.app, cometmq.cli.main\n"
        "assert not {'grpc', 'google.protobuf'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=180)
