# SPDX-License-Identifier: Apache-2.0
"""The HTTP server: uvicorn on a socket that is given, without its signal handlers and its log."""

import asyncio
import ipaddress
import ssl
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from socket import socket
from typing import Any, Final

from starlette.types import ASGIApp

from cometmq.remoting.transport.tasks import TaskSet
from cometmq.runtime.imports import replaced_module

with replaced_module("uvicorn.main", "Server", "main", "run"):  # click, multiprocessing: 1.7 MB
    from uvicorn.config import Config
    from uvicorn.protocols.http.h11_impl import H11Protocol
    from uvicorn.server import Server

CONNECTIONS_MAX: Final = 500
SILENT_S: Final = 15.0
"""Connections that have not sent a whole request for this time are closed."""
REQUEST_S: Final = 60.0
"""Requests that take longer than this may have to make room for new connections."""
STOP_S: Final = 5


class _Server(Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the program."""
        yield


class _Protocol(H11Protocol):
    """A connection that closes another one if there is no room for it.

    A stranger who opens many connections and sends no request, half a header or half a form, or
    does not read the answers, thus loses the oldest of them, and keeps nobody out: the address, or
    the IPv6 network, that holds the most connections makes room.
    """

    network = ""
    """The address of the client, or its IPv6 network."""
    since_s = 0.0
    """When the connection or its current request began."""
    _begun: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self.since_s = self.loop.time()
        self.network = network_of(self.client[0]) if self.client else ""
        if self.limit_concurrency is None or len(self.connections) < self.limit_concurrency:
            return
        others: list[Any] = [it for it in self.connections if it is not self and _may_close(it)]
        if others:
            held = Counter(it.network for it in others)
            gone = max(others, key=lambda it: (held[it.network], -it.since_s))
            self.connections.discard(gone)
            gone.transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not self._begun:
            self._begun = self.cycle
            self.since_s = self.loop.time()


class WebServer:
    """Serves an application until it is stopped."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        tls: ssl.SSLContext | None,
        trusted_proxies: str,
        tasks: TaskSet,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        config = Config(
            app,
            http=_Protocol,
            ws="none",
            loop="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            proxy_headers=bool(trusted_proxies),
            forwarded_allow_ips=trusted_proxies or None,
            limit_concurrency=connections_max,
            timeout_keep_alive=int(SILENT_S),
            timeout_graceful_shutdown=STOP_S,
        )
        config.load()
        config.ssl = tls
        self._server = _Server(config)
        self._tasks = tasks
        self._serving: asyncio.Task[None] | None = None

    async def start(self, listener: socket) -> None:
        """Serve the connections of a listening socket."""
        self._serving = self._tasks.spawn(
            self._server.serve(sockets=[listener]), name="console-web"
        )
        self._tasks.spawn(self._close_silent(), name="console-silent", is_endless=True)
        while not self._server.started and not self._serving.done():  # noqa: ASYNC110
            await asyncio.sleep(0.001)  # uvicorn has no event for it

    async def stop(self) -> None:
        """Let open requests finish for a short time, then close everything."""
        self._server.should_exit = True
        if self._serving is not None:
            await asyncio.wait([self._serving], timeout=STOP_S + 1)
        await self._tasks.close()

    async def _close_silent(self) -> None:
        """Close connections that send no request, because they would fill the limit of all."""
        seen: dict[Any, int] = {}
        while True:
            await asyncio.sleep(SILENT_S / 3)
            waiting = [it for it in self._server.server_state.connections if is_silent(it)]
            seen = {it: seen.get(it, 0) + 1 for it in waiting}
            for connection in [it for it, count in seen.items() if count > 3]:
                connection.transport.abort()


def is_silent(connection: Any) -> bool:
    """Return whether a connection of uvicorn has no request in progress."""
    cycle = getattr(connection, "cycle", None)
    return cycle is None or bool(cycle.response_complete)


def _may_close(connection: Any) -> bool:
    """Return whether a connection waits for its client, or for too long."""
    if is_silent(connection) or connection.cycle.more_body:
        return True
    return bool(connection.loop.time() - connection.since_s > REQUEST_S)


def network_of(address: str) -> str:
    """Return the network that one stranger may have whole: an IPv4 address, or 64 bits of IPv6."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    return str(found.ipv4_mapped or found.packed[:8].hex())
