# SPDX-License-Identifier: Apache-2.0
"""The generated code matches control.proto, and gRPC is imported only when it is used."""

import subprocess
import sys
from pathlib import Path

import grpc_tools
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

import cometmq.control.v1
from cometmq.control.methods import METHODS, OTHERS, described
from cometmq.control.service_proto import service_proto
from cometmq.control.v1 import control_pb2 as pb
from cometmq.ha.orders import Drop, Fence, Follow, HandOver, Promote, Rebuild, Resize

V1 = Path(cometmq.control.v1.__path__[0])
SOURCES = V1.parents[2]
RELEASED = {
    Promote(1 << 40): b"\x10\x80\x80\x80\x80\x80 ",
    Follow(1 << 40, 3): b"\x10\x80\x80\x80\x80\x80 \x18\x03",
    Fence(1 << 40): b"\x10\x80\x80\x80\x80\x80 ",
    HandOver(2, leaves=True): b"\x10\x02\x18\x01",
    Drop(2): b"\x10\x02",
    Resize(4): b"\x10\x04",
    Rebuild(): b"",
}
"""Requests as the code generated from the file of 0.2.0 encoded them, without the target."""


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


def test_the_file_with_the_orders_is_current_and_means_what_is_served(tmp_path):
    assert service_proto() == (V1 / "service.proto").read_text(), "run make protos"
    made = tmp_path / "service"
    command = ["protoc", f"-I{SOURCES}", f"--descriptor_set_out={made}", str(V1 / "service.proto")]
    assert protoc.main(command) == 0
    (file,) = FileDescriptorSet.FromString(made.read_bytes()).file
    assert file == described()
    assert {one.name for one in file.service[0].method} == {*METHODS, *OTHERS}


def test_the_orders_of_released_programs_keep_their_bytes():
    """Mixed releases give each other these orders: no number or type may change."""
    target = pb.Target(group="g", ordinal=1)
    known = {order: METHODS[type(order).__name__].encode(target, order) for order in RELEASED}
    assert {
        order: data.removeprefix(b"\n\x05\n\x01g\x10\x01") for order, data in known.items()
    } == (RELEASED)


def test_the_interface_of_a_member_needs_no_grpc():
    code = (
        "import sys, cometmq.control.controlled, cometmq.broker.app, cometmq.cli.main\n"
        "assert not {'grpc', 'google.protobuf'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=180)
