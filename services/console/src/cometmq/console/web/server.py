# SPDX-License-Identifier: Apache-2.0
"""The HTTP server: uvicorn on a socket that is given, without its signal handlers and its log."""

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from socket import socket
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp

from cometmq.remoting.transport.tasks import TaskSet

CONNECTIONS_MAX: Final = 500
SILENT_S: Final = 15.0
"""Connections that have not sent a whole request for this time are closed."""
STOP_S: Final = 5


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the program."""
        yield


class WebServer:
    """Serves an application until it is stopped."""

    def __init__(
        self, app: ASGIApp, *, tls: ssl.SSLContext | None, trusted_proxies: str, tasks: TaskSet
    ) -> None:
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            loop="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            proxy_headers=bool(trusted_proxies),
            forwarded_allow_ips=trusted_proxies or None,
            limit_concurrency=CONNECTIONS_MAX,
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
