# SPDX-License-Identifier: Apache-2.0
"""A server and a client over loopback, closed after each test."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
import uvloop

from cometmq.remoting.transport import ClientSettings, RemotingClient, Server, ServerSettings
from cometmq.remoting.transport.lane import Lane, Sockets
from cometmq.remoting.transport.tls_contexts import TlsEngine

from .plain_lane import NoLane, PythonSockets

StartServer = Callable[..., Any]


def clock_ms() -> int:
    return 1_700_000_000_000


@pytest.fixture
async def resources() -> AsyncIterator[contextlib.AsyncExitStack]:
    async with contextlib.AsyncExitStack() as stack:
        yield stack


HAS_ACCEL = find_spec("cometmq.accel") is not None


KINDS = ["transports", "direct"]
TLS_KINDS = [*KINDS, *(["native"] if HAS_ACCEL else [])]


@pytest.fixture(params=KINDS)
def start_server(start_plain_server: StartServer, request: pytest.FixtureRequest) -> StartServer:
    """Start a server with these handlers; return it and its port.

    Every test also runs with direct input and output, unless the server has hooks.
    """
    return starter(start_plain_server, request.param)


def starter(start_plain_server: StartServer, kind: str) -> StartServer:
    """Return a function that starts a server with one kind of input and output."""

    async def start(*arguments: Any, **more: Any) -> tuple[Server[Any], int]:
        if kind != "transports" and not {"before", "after"} & more.keys():
            more |= {"lane": NoLane(), "sockets": PythonSockets()}
        if kind == "native":
            accel = import_module("cometmq.accel")
            more |= {"sockets": accel.Sockets(), "engine": accel.TlsContext}
        started: tuple[Server[Any], int] = await start_plain_server(*arguments, **more)
        return started

    return start


@pytest.fixture
def start_plain_server(resources: contextlib.AsyncExitStack) -> StartServer:
    """Start a server with only the options that the test passes."""

    async def start(
        handlers: Mapping[int, Any],
        settings: ServerSettings | None = None,
        *,
        lane: Lane | None = None,
        sockets: Sockets | None = None,
        engine: TlsEngine | None = None,
        **more: Any,
    ) -> tuple[Server[Any], int]:
        server = Server(handlers, None, settings or ServerSettings(), clock_ms=clock_ms, **more)
        server.use_lane(lane, sockets)
        if engine is not None:
            server.use_tls(engine)
        port = await server.listen("127.0.0.1", 0)
        resources.push_async_callback(server.close, 200)
        return server, port

    return start


@pytest.fixture
def new_client(resources: contextlib.AsyncExitStack) -> Callable[..., RemotingClient]:
    def make(settings: ClientSettings | None = None, **more: Any) -> RemotingClient:
        client = RemotingClient(settings or ClientSettings(), clock_ms=clock_ms, **more)
        resources.push_async_callback(client.close, 200)
        return client

    return make


@pytest.fixture
def connect_raw(resources: contextlib.AsyncExitStack) -> Callable[..., Any]:
    """Connect a peer that sends only the bytes written by the test; it need not read."""

    async def connect(
        port: int, *, reads: bool = True
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4096)
        if not reads:
            writer.transport.pause_reading()  # type: ignore[attr-defined]

        async def end() -> None:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

        resources.push_async_callback(end)
        return reader, writer

    return connect


@pytest.fixture
def background() -> Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]:
    """Start a task that the test itself awaits."""
    return lambda work: asyncio.get_running_loop().create_task(work)


@pytest.fixture
def eventually() -> Callable[..., Any]:
    """Wait up to a minute for a condition."""

    async def wait(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110  # other programs' sockets set no event
                await asyncio.sleep(0.001)

    return wait


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run every test of this folder on both event loops, because their flow control differs."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
