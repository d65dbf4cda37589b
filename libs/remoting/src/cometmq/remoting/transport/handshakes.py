# SPDX-License-Identifier: Apache-2.0
"""When TLS handshakes continue, so that a flood of them does not hold the loop.

A signature with an RSA key takes about a millisecond. In each turn of the loop, handshakes
therefore get a limited time; the other connections wait, and nothing more is read from them. Hosts
take turns, so the handshakes of one host delay those of another by one handshake each.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from time import monotonic
from typing import Final

from cometmq.remoting.transport.flow.connected import Connected
from cometmq.remoting.transport.flow.next_turn import NextTurn

HANDSHAKE_BYTES_MAX: Final = 128 * 1024
"""Number of bytes that a peer may send before its handshake is complete; certificate chains take
most of them.
"""
HANDSHAKE_TIMEOUT_MS: Final = 10_000
"""How long a handshake may take, not counting the time in which it waits for its turn."""
HOST_SHARE: Final = 4
HOST_MIN: Final = 16
_SLICE_S: Final = 0.005
"""The time for handshakes in one turn of the loop; the last one may end later."""


class Handshake:
    """The state of one incomplete handshake."""

    __slots__ = ("begun_ms", "is_due", "received_bytes", "waiting")

    def __init__(self, begun_ms: int) -> None:
        self.begun_ms = begun_ms
        self.received_bytes = 0
        self.waiting = b""
        """Received bytes that wait for a turn."""
        self.is_due = False
        """Whether the connection has its turn now, in which the waiting bytes are processed."""


class Handshakes(NextTurn):
    """Schedules the incomplete handshakes of one server, and bounds their number per host."""

    __slots__ = ("_counts", "_host_max", "_queues", "_spent_s")

    def __init__(self, loop: asyncio.AbstractEventLoop, connections_max: int) -> None:
        """Allow each host incomplete handshakes on a quarter of the connections."""
        super().__init__(loop)
        self._host_max = max(connections_max // HOST_SHARE, HOST_MIN)
        self._counts: dict[str, int] = {}
        self._queues: OrderedDict[str, deque[tuple[Connected, Callable[[], None]]]] = OrderedDict()
        self._spent_s = 0.0

    def begin(self, host: str) -> bool:
        """Count another handshake; return False if its host has too many."""
        count = self._counts.get(host, 0)
        if count >= self._host_max:
            return False
        self._counts[host] = count + 1
        return True

    def end(self, host: str) -> None:
        """Forget a handshake that is complete, or whose connection has ended."""
        count = self._counts.pop(host, 0)
        if count > 1:
            self._counts[host] = count - 1

    @property
    def may_continue(self) -> bool:
        """Whether a handshake may continue now: there is time left in this turn, and no other
        waits.
        """
        return self._spent_s < _SLICE_S and not self._queues

    def note(self, spent_s: float) -> None:
        """Count the time that a handshake has taken."""
        self._spent_s += spent_s
        self._schedule()

    def wait(self, host: str, peer: Connected, shake_on: Callable[[], None]) -> None:
        """Let a connection continue in a later turn of the loop."""
        self._queues.setdefault(host, deque()).append((peer, shake_on))
        self._schedule()

    def _run(self) -> None:
        self._spent_s = 0.0
        end = monotonic() + _SLICE_S
        while self._queues:
            host, queue = self._queues.popitem(last=False)
            peer, shake_on = queue.popleft()
            if queue:
                self._queues[host] = queue
            self._guard(peer, shake_on, "a handshake cannot be continued")
            if monotonic() > end:
                break
        if self._queues:
            self._schedule()
