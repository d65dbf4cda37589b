# SPDX-License-Identifier: Apache-2.0
"""The program `cometmq mcp`: its streams, its end, and clients that misbehave."""

import asyncio
import json
import signal
import subprocess
import sys

import pytest
from mcp import Client, StdioServerParameters, stdio_client

from cometmq.cli.input import CHUNK_BYTES
from cometmq.cli.main import COMMANDS
from cometmq.cli.mcp.server import (
    LINE_BYTES_MAX,
)
from cometmq.peers.comet import PROGRAM

from .mcp_tools import TIMEOUT_S

# -- the program ----------------------------------------------------------------------------------


def test_the_program_serves_a_client_on_its_standard_streams(suite, tmp_path):
    async def talk():
        args = ["mcp", "-n", suite.namesrv, "--audit-dir", str(tmp_path)]
        command = StdioServerParameters(command=str(PROGRAM), args=args)
        async with asyncio.timeout(TIMEOUT_S), Client(stdio_client(command)) as client:
            found = await client.call_tool("cluster", {})
            assert client.server_info is not None
            return client.server_info.name, found.structured_content["namesrv"]

    assert asyncio.run(talk()) == ("cometmq", suite.namesrv)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 130), (None, 0)])
def test_the_program_ends_on_a_signal_and_at_the_end_of_its_input(
    pipe_to, tmp_path, number, status
):
    client = {"name": "test", "version": "1"}
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    child = pipe_to("mcp", "--audit-dir", str(tmp_path))
    child.stdin.write(json.dumps(hello).encode() + b"\n")
    child.stdin.flush()
    assert json.loads(child.stdout.readline())["result"]["serverInfo"]["name"] == "cometmq"
    if number is None:
        child.stdin.close()
    else:
        child.send_signal(number)
    assert child.wait(TIMEOUT_S) == status


def test_without_the_sdk_one_line_says_how_to_install_it():
    code = (
        "import sys; sys.modules['mcp'] = sys.modules['mcp_types'] = None;"
        "sys.argv = ['cometmq', 'mcp']; from cometmq.cli.entry import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=180
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "install cometmq-cli[mcp]" in done.stderr
    assert "mcp" in COMMANDS


# -- a client that misbehaves ---------------------------------------------------------------------


def test_a_line_without_an_end_ends_the_program(tmp_path):
    """A line of 64 MiB took 1 GB, and one without an end all memory."""
    done = subprocess.run(
        [PROGRAM, "mcp", "--audit-dir", str(tmp_path)],
        input=b"a" * (LINE_BYTES_MAX + CHUNK_BYTES + 1),
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode != 0
    assert b"a line of the input has more than 16,777,216 bytes" in done.stderr
    assert b"Traceback" not in done.stderr
