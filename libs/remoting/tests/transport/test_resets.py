# SPDX-License-Identifier: Apache-2.0
"""A connection ends with a reset if the server's process dies or asks for one, never otherwise."""

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from cometmq.remoting.transport.server import Server
from cometmq.remoting.transport.settings import ServerSettings

DEADLINE_S = 60
PROGRAM = """
import asyncio, sys, uvloop
from cometmq.remoting.transport.server import Server
from cometmq.remoting.transport.settings import ServerSettings

async def main():
    server = Server({}, None, ServerSettings(), clock_ms=lambda: 0)
    port = await server.listen("127.0.0.1", 0)
    while len(server.peers) < 1:
        print(port, flush=True)
        await asyncio.sleep(0.01)
    print("connected", flush=True)
    await asyncio.Event().wait()

asyncio.Runner(loop_factory=getattr(sys.modules[sys.argv[1]], "new_event_loop")).run(main())
"""
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
loops = pytest.mark.parametrize("loop", LOOPS)


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)


@loops
def test_the_death_of_a_server_resets_its_connections(loop: str) -> None:
    command = [sys.executable, "-c", PROGRAM, loop]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        with connect(int(process.stdout.readline())) as ours:
            for line in process.stdout:
                if line == "connected\n":
                    break
            process.send_signal(signal.SIGKILL)
            with pytest.raises(ConnectionResetError):
                ours.recv(1)


async def end_by(end: Callable[[Any], None]) -> bytes:
    """Return what a client receives when its connection is ended."""
    server = Server({}, None, ServerSettings(), clock_ms=lambda: 0)
    port = await server.listen("127.0.0.1", 0)
    with await asyncio.to_thread(connect, port) as ours:
        async with asyncio.timeout(DEADLINE_S):
            while not server.peers:  # noqa: ASYNC110  # no event
                await asyncio.sleep(0)
        (peer,) = server.peers
        end(peer)
        try:
            return await asyncio.to_thread(ours.recv, 1)
        finally:
            await server.close(0)


@loops
@pytest.mark.parametrize("way", ["close", "abort", "reset"])
def test_a_server_resets_a_connection_only_if_asked(loop: str, way: str) -> None:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        ending = end_by(lambda peer: getattr(peer, way)())
        if way == "reset":
            with pytest.raises(ConnectionResetError):
                runner.run(ending)
        else:
            assert runner.run(ending) == b""
