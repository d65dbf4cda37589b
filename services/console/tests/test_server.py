# SPDX-License-Identifier: Apache-2.0
"""The server makes room: nobody keeps others out by holding connections."""

import asyncio
import socket
import subprocess
import sys
from contextlib import AsyncExitStack

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from cometmq.console.web.guard import form_of
from cometmq.console.web.problems import Problem
from cometmq.console.web.server import WebServer, network_of
from cometmq.remoting.transport.tasks import TaskSet

CONNECTIONS_MAX = 8
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
FORM = b"Content-Type: application/x-www-form-urlencoded\r\n"


async def app(scope, receive, send):
    request, status = Request(scope, receive), 200
    try:
        if request.method == "POST":
            await form_of(request)
    except Problem as problem:
        status = problem.status
    await PlainTextResponse("ok", status)(scope, receive, send)


@pytest.fixture
async def server():
    """Return the address of a server with room for few connections."""
    async with AsyncExitStack() as stack:
        web = WebServer(
            app, tls=None, trusted_proxies="", tasks=TaskSet(), connections_max=CONNECTIONS_MAX
        )
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        await web.start(listener)
        stack.push_async_callback(web.stop)
        yield listener.getsockname()


async def status_of(stack, server, request):
    reader, writer = await asyncio.open_connection(*server)
    stack.callback(writer.close)
    writer.write(request)
    async with asyncio.timeout(60):
        return int((await reader.readline()).split()[1])


@pytest.mark.parametrize("held", [b"", GET, POST + FORM + b"\r\na=1", GET + b"\r\n"])
async def test_connections_that_wait_for_their_client_make_room(server, held):
    async with AsyncExitStack() as stack:
        for _ in range(3 * CONNECTIONS_MAX):
            _, writer = await asyncio.open_connection(*server)
            stack.callback(writer.close)
            writer.write(held)
        for _ in range(2 * CONNECTIONS_MAX):
            assert await status_of(stack, server, GET + b"\r\n") == 200


@pytest.mark.parametrize("held", [b"", POST + FORM + b"\r\na=1"])
async def test_a_stranger_with_many_connections_loses_own_ones(server, held):
    async with AsyncExitStack() as stack:
        reader, writer = await asyncio.open_connection(*server)
        stack.callback(writer.close)
        writer.write(POST.replace(b"1000", b"5") + FORM + b"\r\na=")  # a slow upload
        await writer.drain()
        for _ in range(4 * CONNECTIONS_MAX):
            _, other = await asyncio.open_connection(*server, local_addr=("127.0.0.2", 0))
            stack.callback(other.close)
            other.write(held)
        assert await status_of(stack, server, GET + b"\r\n") == 200
        writer.write(b"123")
        async with asyncio.timeout(60):
            assert (await reader.readline()).split()[1] == b"200"


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:0:7:1::9", "20010db800000007"),
        ("fe80::1%eth0", "fe80000000000000"),
        ("somewhere", "somewhere"),
    ],
)
def test_the_network_of_an_address(address, network):
    assert network_of(address) == network


def test_the_server_does_without_the_command_line_of_uvicorn():
    code = (
        "import sys, cometmq.console.app\n"
        "assert 'uvicorn.server' in sys.modules\n"
        "print([it for it in ('click', 'multiprocessing', 'uvicorn.main') if it in sys.modules])\n"
        "import uvicorn.main\n"
        "assert callable(uvicorn.main.run)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
