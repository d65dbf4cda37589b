# SPDX-License-Identifier: Apache-2.0
"""Bounds the memory of all connections of a server; does no I/O itself: one budget for the output
that peers have not read (`UnsentBudget`), and one limit on input and output (`MemoryLimit`).

Limits per connection do not protect a server from many peers: fifty peers that send requests but
read no answers may each hold output up to the high-water mark. The budget therefore counts output
*before* it exists: a request whose answer may be large is served only while `admits` allows it, and
otherwise waits (`room.py`).

Rules
    A connection may hold an eighth of what is left for all, so many slow readers get small shares.
    The last quarter of the budget is for connections that have read every earlier answer, so peers
    that never read cannot use up the room of consumers. Requests that wait for room count too, up
    to half of the budget. In one turn of the loop, a bounded number of bytes is built, so sends do
    not wait for the answers to hundreds of pulls.

    Under pressure, the connections with the most output are paused: the server neither reads nor
    serves their requests until only a quarter of that output is left. Connections that do not drain
    are closed, largest first; they have little time while other requests wait for room.

Hot path
    The bytes of each write are subtracted from `left`. The connections are measured only when
    `left` is used up, so at most once per sixteenth of the budget, and while requests wait. They
    are measured in several turns of the loop if they are thousands (`Measuring`).
"""

import asyncio
from collections.abc import Callable, Collection, Generator, Iterator
from operator import itemgetter
from typing import Final

from cometmq.remoting.log import Log
from cometmq.remoting.transport.flow.connected import Connected
from cometmq.remoting.transport.flow.turns import (
    CLOSED_PER_TURN,
    VISITS_PER_TURN,
    NextTurn,
    Walk,
)
from cometmq.remoting.transport.stats import TransportStats

Sizes = list[tuple[int, Connected]]

CLOSE_COST: Final = VISITS_PER_TURN // CLOSED_PER_TURN
"""Cost of closing a connection, in visits."""


class Measuring(NextTurn):
    """Visits connections, then judges what was found; both a limited number of connections in each
    turn of the loop.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        peers: Collection[Connected],
        visit: Callable[[Connected], None],
        judge: Callable[[], Iterator[int]],
    ) -> None:
        """`judge` yields the cost of each visit that it makes."""
        super().__init__(loop)
        self._judge = judge
        self._walk = Walk(loop, peers, visit, self._measured)
        self._judging: Iterator[int] = iter(())
        self.sizes: Sizes = []
        """For `visit` and `judge`: what the connections hold."""
        self.is_running = False

    def begin(self) -> None:
        """Begin a measurement, unless one is visiting connections."""
        self.is_running = True
        self._walk.begin()

    def _measured(self) -> None:
        self._judging = self._judge()
        self._run()

    def _run(self) -> None:
        left = VISITS_PER_TURN
        self.is_running = False  # unless there is more to do
        for cost in self._judging:
            left -= cost
            if left <= 0:
                self.is_running = True
                self._schedule()
                return


# uvloop keeps a buffer whole until the kernel has taken all of it. Writes of 4 MiB would let a slow
# reader keep much more memory than it has left to read; writes of this size avoid that, but cost
# pulls of 250 KB 40 % more processor time.
TIGHT_WRITE_BYTES: Final = 256 * 1024
LARGE_BYTES: Final = 64 * 1024
"""Output above this size counts as soon as it is built, and smaller output when it is written."""
_STEPS: Final = 16  # at most this many measurements while one budget is sent
_OPEN_SHARE: Final = 2  # unpaused connections may hold half of the budget
_TIGHT_SHARE: Final = 4
_EXCESS_SHARE: Final = 4
_RESERVE_SHARE: Final = 4
_REQUEST_SHARE: Final = 2
_PEER_SHARE: Final = 8
_HURRY: Final = 10
"""Divisor of the time to drain while requests wait for room, or while usage exceeds the budget by a
quarter. The time is not zero, because output written in this turn of the loop counts as unsent
until the kernel takes it, perhaps at the end of the turn.
"""
_UNLIMITED: Final = 1 << 62
TURN_BYTES: Final = 4 << 20
"""Large answers that are built in one turn of the loop: a few milliseconds."""


class UnsentBudget:
    """Keeps the total output held for all peers below a limit."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        bytes_max: int | None,
        drain_timeout_ms: int,
        stats: TransportStats,
        log: Log,
    ) -> None:
        """A `bytes_max` of None means no limit."""
        self.holders: set[Connected] = set()
        """The connections that may hold output or waiting requests; each adds itself before it
        does.
        """
        self._bytes_max = _UNLIMITED if bytes_max is None else bytes_max
        self.reserved_bytes = self._bytes_max // _RESERVE_SHARE
        """The part of the budget for connections that have read all their answers."""
        self._drain_timeout_ms = drain_timeout_ms
        self._stats = stats
        self._log = log
        self._paused = 0  # number of connections since the last log line
        self._last_total = 0
        self._request_bytes = 0  # in the running measurement
        self._measuring = Measuring(loop, self.holders, self._visit, self._judge)
        self._began = (0, 0)  # the time and `left` when the last measurement began
        self.freed_bytes = 0
        """The sum of all decreases of the total, in bytes; the owner may reset it."""
        self.left = self._bytes_max
        self.floor = 0
        """The value of `left` below which the connections are measured again."""
        self.plenty = self._bytes_max - self._bytes_max // _TIGHT_SHARE
        """The value of `left` above which every answer may be built."""
        self.turn_left = TURN_BYTES
        """The number of bytes that may still be built in this turn of the loop."""
        self.is_tight = False
        """Whether more than a quarter of the budget is used; connections then write small
        portions.
        """
        self.is_wanted = False
        """Whether requests wait for room."""

    def unsent_bytes(self) -> int:
        """Return the output that the kernel has not accepted yet; with thousands of connections,
        the output when they were measured last.
        """
        if len(self.holders) > VISITS_PER_TURN:
            return self.used_bytes
        return sum(peer.outlet.unsent_bytes for peer in self.holders)

    @property
    def used_bytes(self) -> int:
        """The output held for all connections when it was measured last."""
        return self._bytes_max - self.left

    def admits(self, held_bytes: int, *, reads_well: bool) -> bool:
        """Return whether another answer may be built for a connection that holds `held_bytes`.

        `reads_well` means that the connection has been sent answers, and has taken all of them.
        """
        open_bytes = self.left - self.reserved_bytes
        if held_bytes > max(open_bytes, 0) // _PEER_SHARE:
            return False
        return open_bytes > 0 or (reads_well and self.left > 0)

    def check(self, now_ms: int) -> None:
        """Close paused peers that do not drain, and log new pauses; called by a timer."""
        if self._bytes_max == _UNLIMITED:
            return
        self.measure(now_ms)
        if self._paused:
            self._log.warning(
                "connections.paused", count=self._paused, unsent_bytes=self.used_bytes,
                unsent_bytes_max=self._bytes_max,
            )  # fmt: skip
            self._paused = 0

    def measure(self, now_ms: int) -> None:
        """Keep the output of all connections within the budget: at once, unless they are thousands
        or the last measurement has not ended.
        """
        if not self._measuring.is_running:
            self._began = (now_ms, self.left)
            self._measuring.begin()

    def _visit(self, peer: Connected) -> None:
        self._request_bytes += (requests := peer.intake.waiting_bytes)
        if size := peer.outlet.held_bytes:
            self._measuring.sizes.append((size, peer))
        elif not requests:
            self.holders.discard(peer)

    def _judge(self) -> Iterator[int]:
        """Close or pause the largest connections, if necessary; yield the cost of each visit."""
        sizes, request_bytes = self._measuring.sizes, self._request_bytes
        self._measuring.sizes, self._request_bytes = [], 0
        now_ms, left = self._began
        total = sum(size for size, _ in sizes) + min(
            request_bytes, self._bytes_max // _REQUEST_SHARE
        )
        limit = self._bytes_max - (self.reserved_bytes if self.is_wanted else 0)
        if total > limit:
            sizes.sort(key=itemgetter(0), reverse=True)
            total -= yield from self._close(sizes, total, now_ms)
            yield from self._pause(sizes)
        self.freed_bytes += max(0, self._last_total - total)
        self._last_total = total
        # Connections may have been visited before or after they wrote this.
        total += max(0, left - self.left)
        self.is_tight = total > self._bytes_max // _TIGHT_SHARE
        self.left = self._bytes_max - total
        # Leave at least one step; otherwise every write would measure all connections of a full
        # budget.
        self.floor = min(0, self.left - self._bytes_max // _STEPS)

    def _close(self, sizes: Sizes, total: int, now_ms: int) -> Generator[int, None, int]:
        """Close peers that do not drain; return the number of bytes freed.

        While requests wait, these are all peers that read nothing; otherwise, only paused ones.
        """
        limit, patience_ms = self._bytes_max, self._drain_timeout_ms
        is_wanted = self.is_wanted
        if is_wanted or total > limit + limit // _EXCESS_SHARE:
            patience_ms //= _HURRY
        if is_wanted:
            limit -= self.reserved_bytes + limit // _PEER_SHARE
        closed = 0
        for size, peer in sizes:
            if total - closed <= limit:
                break
            is_examined = is_wanted or peer.outlet.is_restrained
            if not is_examined or peer.outlet.stalled_ms(now_ms) < patience_ms:
                yield 1
            else:
                closed += size
                self._stats.budget_closed += 1
                self._log.warning("connection.overflowed", peer=peer.address, bytes=size)
                peer.abort()
                yield CLOSE_COST
        return closed

    def _pause(self, sizes: Sizes) -> Iterator[int]:
        """Pause the largest peers until the unpaused ones together are within their share."""
        open_bytes = sum(size for size, peer in sizes if not peer.outlet.is_restrained)
        for size, peer in sizes:
            if open_bytes <= self._bytes_max // _OPEN_SHARE:
                break
            if not peer.outlet.is_restrained:
                open_bytes -= size
                self._paused += 1
                self._stats.budget_paused += 1
                peer.outlet.restrain()
            yield 1


_MEASUREMENTS: Final = 16  # at most, while the limit arrives in incomplete frames


class MemoryLimit:
    """Closes the connections that use the most memory, for input and output, while all together
    exceed a limit; at first only those of which no request has been served.
    """

    def __init__(  # each by name
        self,
        bytes_max: int | None,
        *,
        loop: asyncio.AbstractEventLoop,
        peers: Collection[Connected],
        budget: UnsentBudget,
        stats: TransportStats,
        log: Log,
    ) -> None:
        """A `bytes_max` of None means no limit."""
        self._bytes_max = bytes_max
        self._peers = peers
        self._budget = budget
        self._stats = stats
        self._log = log
        self._measuring = Measuring(loop, peers, self._measure, self._enforce)
        self._last_bytes = 0
        self._received_bytes = 0

    def note_incomplete(self, size: int) -> None:
        """Count received bytes of a long incomplete frame, and measure whenever a sixteenth of the
        limit has arrived.
        """
        self._received_bytes += size
        if self._bytes_max is not None and self._received_bytes > self._bytes_max // _MEASUREMENTS:
            self._received_bytes = 0
            self._measuring.begin()

    def check(self) -> None:
        """Measure all connections, and close some if they exceed the limit; called by a timer."""
        if self._bytes_max is not None:
            self._measuring.begin()

    def total_bytes(self) -> int:
        """Return how much memory the connections use; with thousands of connections, as last
        measured.
        """
        if self._bytes_max is not None and len(self._peers) > VISITS_PER_TURN:
            return self._last_bytes
        return sum(peer.buffered_bytes for peer in self._peers)

    def _measure(self, peer: Connected) -> None:
        if peer.is_open and (size := peer.buffered_bytes):
            self._measuring.sizes.append((size, peer))

    def _enforce(self) -> Iterator[int]:
        """Close the connections that hold the most memory until the total is within its limit."""
        assert self._bytes_max is not None
        sizes, self._measuring.sizes = self._measuring.sizes, []
        total = sum(size for size, _ in sizes)
        self._budget.freed_bytes += max(0, self._last_bytes - total)
        self._last_bytes = total
        excess_bytes = total - self._bytes_max
        if excess_bytes > 0:
            sizes.sort(key=_rank, reverse=True)
        for size, peer in sizes:
            if excess_bytes <= 0:
                break
            excess_bytes -= size
            if peer.is_open:
                self._stats.overflow_closed += 1
                self._log.warning("connection.overflowed", peer=peer.address, bytes=size)
                peer.abort()
            yield CLOSE_COST


def _rank(row: tuple[int, Connected]) -> tuple[bool, int]:
    """Rank the connections that have been served no request last, so that they are closed first:
    filling the memory needs no account.
    """
    size, peer = row
    return not peer.is_served, size
