# SPDX-License-Identifier: Apache-2.0
"""Without gRPC, only the commands for groups with failover fail; they name the missing package."""

import subprocess
import sys

import pytest

HIDE = "import sys; sys.modules['grpc'] = None; sys.argv = ['cometmq', *sys.argv[1:]];"


def run(*args):
    code = HIDE + "from cometmq.cli.entry import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *args],
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("args", [("elector",), ("ha", "status", "--help")])
def test_a_command_that_needs_grpc_says_so_in_one_line(args):
    status, text = run(*args)
    assert status == 2
    assert text.count("\n") == 1
    assert ".venv/bin/pip install grpcio grpcio-health-checking" in text


@pytest.mark.parametrize(
    "args", [("version",), ("topic", "--help"), ("broker", "--help"), ("elector", "--help")]
)
def test_other_commands_do_not_import_grpc(args):
    assert run(*args)[0] == 0
