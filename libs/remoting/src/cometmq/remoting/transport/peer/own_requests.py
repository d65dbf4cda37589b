# SPDX-License-Identifier: Apache-2.0
"""The requests that this end sends on a connection, with their deadlines, and their error when the
connection ends.
"""

import asyncio
import functools
from typing import Final

import msgspec

from cometmq.remoting.command import Request, Response
from cometmq.remoting.connection import Connection
from cometmq.remoting.errors import ConnectionLost
from cometmq.remoting.transport.hub import Hub
from cometmq.remoting.transport.tasks import settle
from cometmq.remoting.transport.tls import tls_advice

PACE_MS: Final = 1_500
"""The shortest time over which the speed of an incomplete answer is measured."""
ANSWER_MS: Final = 120_000
"""An answer that needs longer than this for its missing bytes counts as lost. The value is the time
for which an idle connection is kept.
"""


class _Incomplete(msgspec.Struct):
    """An incomplete answer, as it was at the beginning of a measurement."""

    number: int
    missing_bytes: int
    since_ms: int
    abandoned_count: int
    """The number of requests that had been abandoned before the answer began."""
    was_slow: bool = False
    """Whether the answer was too slow in the last measurement. Two slow measurements in a row are
    needed, because after a delay of the loop, one shows only the bytes that were read before."""


class OwnRequests:
    """Sends the requests of this end, and fails them at their deadline or when the connection
    ends.
    """

    def __init__(self, hub: Hub, connection: Connection) -> None:
        self._hub = hub
        self._connection = connection
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._cause: Exception | None = None  # the network error that ended the connection
        self._incomplete: _Incomplete | None = None
        self.has_answered = False
        """Whether bytes had arrived at the last check, or before the connection ended."""
        self.close_reason = "was closed"
        """The reason given in the errors of pending requests and of requests made after the
        connection has ended.
        """

    def begin(self, request: Request, timeout_ms: int) -> tuple[asyncio.Future[Response], int]:
        """Queue a request; return the future of its answer, and its opaque."""
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

    def are_blocked(self, now_ms: int) -> bool:
        """Return whether pending requests cannot get an answer because an incomplete answer blocks
        them; called by a timer.

        That is so if the incomplete answer would need longer than ANSWER_MS at its present speed,
        and if a request was abandoned since it began. All later bytes of the server would count as
        a part of the incomplete answer.
        """
        connection, before = self._connection, self._incomplete
        number, missing = connection.begun_frames, connection.missing_bytes
        if not missing:
            self._incomplete = None
        elif before is None or before.number != number:
            self._incomplete = _Incomplete(number, missing, now_ms, connection.abandoned_count)
        elif (passed_ms := now_ms - before.since_ms) >= PACE_MS:
            arrived = before.missing_bytes - missing
            was_slow, is_slow = before.was_slow, missing * passed_ms > arrived * ANSWER_MS
            before.missing_bytes, before.since_ms, before.was_slow = missing, now_ms, is_slow
            return was_slow and is_slow and connection.abandoned_count > before.abandoned_count
        return False

    def lost(self, address: str) -> ConnectionLost:
        """Return the error for requests that fail because the connection has ended."""
        lost = ConnectionLost(f"connection to {address} {self.close_reason}")
        lost.__cause__ = self._cause
        lost.has_answered = self.has_answered
        return lost

    def fail(self, address: str, cause: Exception | None) -> None:
        """Fail all requests, because the connection has ended."""
        if self._timer is not None:
            self._timer.cancel()
        if cause is not None:
            self.close_reason, self._cause = f"ended: {cause}{tls_advice(cause)}", cause
        self._connection.lost(self.lost(address))
