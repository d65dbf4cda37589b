# SPDX-License-Identifier: Apache-2.0
"""The requests that this end sends on a connection, their deadlines, and the error that they get
when it ends.
"""

import asyncio
import functools
from typing import Any

from cometmq.remoting.command import Request, Response
from cometmq.remoting.connection import Connection
from cometmq.remoting.errors import ConnectionLost
from cometmq.remoting.transport.hub import Hub
from cometmq.remoting.transport.tasks import settle
from cometmq.remoting.transport.tls import tls_advice


class OwnRequests:
    """The requests of one connection that await an answer."""

    def __init__(self, hub: Hub[Any], connection: Connection) -> None:
        self._hub = hub
        self._connection = connection
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._cause: Exception | None = None  # the network error that ended the connection
        self.close_reason = "was closed"
        """The reason given in the errors of pending requests and of requests made after the
        connection has ended.
        """

    def begin(self, request: Request, timeout_ms: int) -> tuple[asyncio.Future[Response], int]:
        """Queue a request; return its answer and its opaque."""
        future: asyncio.Future[Response] = self._hub.loop.create_future()
        deadline_ms = self._hub.now_ms() + timeout_ms
        opaque = self._connection.invoke(
            request, deadline_ms=deadline_ms, done=functools.partial(settle, future)
        )
        if self._timer is None or deadline_ms < self._timer_ms:
            self._arm(deadline_ms)
        return future, opaque

    def _arm(self, deadline_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        self._timer = self._hub.loop.call_at(deadline_ms / 1000 + 0.001, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._connection.expire(self._hub.now_ms())
        if (next_ms := self._connection.next_deadline_ms) is not None:
            self._arm(next_ms)

    def lost(self, address: str) -> ConnectionLost:
        """Return the error for requests that fail because the connection has ended."""
        lost = ConnectionLost(f"connection to {address} {self.close_reason}")
        lost.__cause__ = self._cause
        return lost

    def fail(self, address: str, cause: Exception | None) -> None:
        """Fail all requests, because the connection has ended."""
        if self._timer is not None:
            self._timer.cancel()
        if cause is not None:
            self.close_reason, self._cause = f"ended: {cause}{tls_advice(cause)}", cause
        self._connection.lost(self.lost(address))
