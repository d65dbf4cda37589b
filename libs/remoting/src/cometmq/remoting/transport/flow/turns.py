# SPDX-License-Identifier: Apache-2.0
"""The order in which connections with waiting requests are served; does no I/O itself.

A limit on the number of requests served in a row does not protect other connections from requests
that take long: twenty connections with one request of 100 ms each would occupy the loop for two
seconds. Serving is therefore timed. A connection whose requests repeatedly take long is served only
from a queue, and each turn of the loop spends a limited time on that queue. When a turn has taken
long, all bytes that arrive in the same turn wait in the queues.

There are three queues, by the rank of their connections: KNOWN (fast ones) first, then NEW, then
SLOW. A turn serves at least one connection of each queue, so that none starves. In each queue,
accounts (or addresses) take turns: the system may interrupt the program while it serves a fast
connection, which then counts as slow, and would wait for each of a flood's connections. While a
slow connection takes long, the number of its requests that are served in a row is reduced.

Work that requests stage for later, above all a commit, is charged to the connections afterwards
(`Hub.charge`), because it runs after their requests have returned; so are searches (`Peer.charge`).

While connections wait, only processor time counts: on a busy machine, the system interrupts fast
requests, too.
"""

import asyncio
from collections.abc import Callable
from time import monotonic, thread_time
from typing import Final

from cometmq.remoting.transport.flow.connected import Connected
from cometmq.remoting.transport.flow.fair_queue import FairQueue
from cometmq.remoting.transport.flow.next_turn import NextTurn
from cometmq.remoting.transport.flow.places import requester_of

KNOWN: Final = 0
"""The rank of connections whose requests took little time."""
NEW: Final = 1
"""The rank of connections about which nothing is known."""
SLOW: Final = 2
"""The rank of connections whose requests take long."""

SLICE_S: Final = 0.002
"""How long the requests of one connection are served in a row; the last one may end later."""
SLOW_S: Final = 0.001
"""A connection that is served for longer than this in a row counts as slower than before."""
_SLOW_FROM: Final = 3
"""The slowness (see `Pace`) from which on a connection waits in the queue of slow ones."""
_SLOWNESS_MAX: Final = 8
_LONG_TURNS: Final = 8  # connections that may use full turns at the same time
_CALLS_MIN: Final = 16  # smaller portions cost more than they gain
_DIVISOR_MAX: Final = 1 << 10
_TURN_S: Final = 0.005
"""How long waiting requests are served in one turn of the loop; the last one may end later."""
_LONG_S: Final = 0.02
"""A turn that has spent more time on long requests starts no further ones."""
BRIEF_S: Final = 0.0002
"""Serving received bytes for longer than this counts towards `_BUSY_S`. Counting every request
would cost 1 % of the time of those that take a tenth of a millisecond.
"""
_BUSY_S: Final = 0.01
"""After this time, all bytes that arrive in the same turn wait in the queues, where accounts take
turns: otherwise, an account would be served as often as it has connections.
"""


class Pace:
    """Tracks whether serving a connection takes long.

    `_slowness` grows with each long time and falls with each short one; it determines the rank.
    """

    __slots__ = ("_slowness", "divisor", "is_steady", "rank")

    def __init__(self) -> None:
        self._slowness = 0
        self.rank = NEW
        self.is_steady = False
        """Whether noting a further short time would change nothing, so that callers need not call
        `note`.
        """
        self.divisor = 1
        """The number of requests that are served in a row is divided by this."""

    def note(self, spent_s: float, count: int) -> bool:
        """Note how long it took to serve `count` requests, or frames of this size; return whether
        that is long.

        One long time of less than `_LONG_S` does not make a connection SLOW, because the system may
        have interrupted the program.
        """
        if spent_s > SLOW_S:
            self.is_steady = False
            is_long = spent_s > _LONG_S
            self._slowness = min(self._slowness + (3 if is_long else 2), _SLOWNESS_MAX)
            if self._slowness >= _SLOW_FROM:
                self.rank = SLOW
                # Faster than it is halved below: a short time may precede each long one.
                self.divisor = min(self.divisor * (16 if is_long else 4), _DIVISOR_MAX)
            return True
        if count:
            if self._slowness:
                self._slowness -= 1
            if self.divisor > 1:
                self.divisor //= 2
            if self._slowness < _SLOW_FROM:
                self.rank = KNOWN
            self.is_steady = not self._slowness and self.divisor == 1
        return False


class Turns(NextTurn):
    """Serves the connections of one server or client that wait for their turn."""

    __slots__ = (
        "_behind_count",
        "_busy_s",
        "_calls_most",
        "_known_s",
        "_queues",
        "_spent_s",
        "asking_much",
        "calls_max",
        "clock",
        "is_long",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, calls_max: int) -> None:
        super().__init__(loop)
        self._calls_most = calls_max
        self.calls_max = calls_max
        """How many requests of one connection may currently be served in a row."""
        self._behind_count = 0
        self._queues: tuple[FairQueue[Connected], ...] = (FairQueue(), FairQueue(), FairQueue())
        self._spent_s = self._busy_s = 0.0
        self._known_s = 0.0  # the processor time of this thread when it was read last
        self.clock: Callable[[], float] = monotonic
        """Measures how long received bytes are served. While connections wait, it is the processor
        time of this thread, which takes a microsecond to read.
        """
        self.asking_much = 0
        """How many connections of a client are not read, because their servers ask too much."""
        self.is_long = False
        """Whether this turn of the loop has already spent too much time on requests."""

    def fell_behind(self, count: int) -> None:
        """Add `count`, 1 or -1, to the number of connections that have a backlog.

        The number determines how many requests of a connection are served in the next turn of the
        loop. A few connections with a backlog may take long turns. Many of them share the same
        total, so a connection without a backlog never waits for many long turns.
        """
        self._behind_count += count
        most = self._calls_most
        share = most * _LONG_TURNS // max(_LONG_TURNS, self._behind_count)
        self.calls_max = max(share, min(most, _CALLS_MIN))

    def add(self, peer: Connected, rank: int) -> None:
        """Let a connection catch up in a later turn of the loop."""
        self._queues[rank].put(requester_of(peer), peer)
        self._schedule()

    def worked(self, spent_s: float) -> float:
        """Return how much of a time that has just passed the program has worked, at most as much as
        since the last call; call this only after a time that seems long.
        """
        before_s, self._known_s = self._known_s, thread_time()
        return min(spent_s, self._known_s - before_s)

    def note(self, spent_s: float) -> None:
        """Count time that this turn has spent on a connection with long requests."""
        self._spent_s += spent_s
        self.is_long = self.is_long or self._spent_s > _LONG_S
        self._schedule()

    def spend(self, spent_s: float) -> None:
        """Count time that this turn has spent on received bytes, if it is more than `BRIEF_S`."""
        self._busy_s += spent_s
        self.is_long = self.is_long or self._busy_s > _BUSY_S
        self._schedule()

    def _run(self) -> None:
        self._known_s = thread_time()
        end_s = self._known_s + _TURN_S - self._spent_s
        for queue in self._queues:
            for _ in range(len(queue)):
                peer = queue.pop()
                self._guard(peer, peer.intake.catch_up, "waiting requests cannot be served")
                if thread_time() > end_s:
                    break
        self._spent_s = self._busy_s = 0.0
        self.is_long = False
        is_waiting = any(self._queues)
        self.clock = thread_time if is_waiting else monotonic
        if is_waiting:
            self._schedule()
