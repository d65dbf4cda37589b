# SPDX-License-Identifier: Apache-2.0
"""Limits what is sent to the receivers of a log: in a turn of the loop, and per second."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

SLICE_BYTES: Final = 256 << 10
"""Maximum size of a slice.

Sending one takes about 0.1 ms. In RocketMQ's stream it takes up to 4 ms, because the headers of all
records are read to find where to cut.
"""

TURN_BYTES: Final = 2 * SLICE_BYTES
"""Bytes that may be sent to all receivers in one turn of the loop; the last slice may exceed this.

A piece of a table counts as this many bytes, because encoding it takes up to 5 ms.
"""

SENT_BYTES_MIN: Final = 8 << 10
"""A smaller slice counts as this many bytes, because the call itself takes as long."""

LINGER_S: Final = 1.0

UNSENT_BYTES_MAX: Final = 1 << 20
"""Above this many bytes that its socket has not accepted yet, nothing is sent to a receiver."""

BURST_MS: Final = 100
"""After a pause, a burst of this duration at the full rate may be sent at once."""


class RateLimit:
    """A token bucket; a rate of 0 means no limit."""

    __slots__ = ("_bytes_left", "_last_ms")

    def __init__(self) -> None:
        self._bytes_left = 0.0
        self._last_ms: int | None = None

    def wait_ms(self, now_ms: int, bytes_per_s: int) -> int:
        """Return how long to wait before bytes may be sent; 0 if they may be sent now."""
        if not bytes_per_s:
            return 0
        burst = bytes_per_s * BURST_MS / 1000
        last_ms = now_ms - BURST_MS if self._last_ms is None else self._last_ms
        self._bytes_left += bytes_per_s * (now_ms - last_ms) / 1000
        self._bytes_left = min(burst, self._bytes_left)
        self._last_ms = now_ms
        if self._bytes_left > 0:
            return 0
        return 1 + int(-self._bytes_left * 1000 / bytes_per_s)

    def spend(self, count: int) -> None:
        """Count sent bytes. They may exceed what the limit allows; the next wait is then longer."""
        self._bytes_left -= count


class SendTurns:
    """Limits what all connections together send in one turn of the loop; when the limit is reached,
    a connection waits in a queue for a later turn.
    """

    def __init__(self) -> None:
        self._left = TURN_BYTES
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_scheduled = False

    @property
    def is_over(self) -> bool:
        """Whether this turn's limit is reached, so that a connection must call `later` to send."""
        return self._left <= 0

    def spend(self, count: int) -> None:
        """Count bytes that a connection has read or sent in this turn."""
        self._left -= max(count, SENT_BYTES_MIN)
        self._schedule()

    def later(self, send: Callable[[], None]) -> None:
        """Call `send` at the beginning of a later turn; waiting calls are made in order of
        arrival.
        """
        self._waiting.append(send)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._left, self._is_scheduled = TURN_BYTES, False
        try:
            for _ in range(len(self._waiting)):
                if self._left <= 0:
                    break
                self._waiting.popleft()()
        finally:  # a call that fails must not lose the calls after it
            if self._waiting:
                self._schedule()


def close_soon(transport: asyncio.Transport) -> None:
    """Close a connection once its output has been sent, or after a second if the peer does not
    accept it.
    """
    transport.close()
    asyncio.get_running_loop().call_later(LINGER_S, transport.abort)
