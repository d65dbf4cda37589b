# SPDX-License-Identifier: Apache-2.0
"""Bounds the memory that all connections of a server use for input and output."""

import asyncio
from collections.abc import Collection
from typing import Any, Final

from cometmq.remoting.log import Log
from cometmq.remoting.transport.flow.budget import UnsentBudget
from cometmq.remoting.transport.flow.next_turn import NextTurn
from cometmq.remoting.transport.flow.walk import CLOSED_PER_TURN, VISITS_PER_TURN, Walk
from cometmq.remoting.transport.stats import TransportStats

_MEASUREMENTS: Final = 16  # at most, while the limit arrives in incomplete frames


class MemoryLimit(NextTurn):
    """Closes the connections that use the most memory while all together exceed a limit; at first
    only those of which no request has been served.
    """

    def __init__(  # each by name
        self,
        bytes_max: int | None,
        *,
        loop: asyncio.AbstractEventLoop,
        peers: Collection[Any],
        budget: UnsentBudget,
        stats: TransportStats,
        log: Log,
    ) -> None:
        """A `bytes_max` of None means no limit."""
        super().__init__(loop)
        self._bytes_max = bytes_max
        self._peers = peers
        self._budget = budget
        self._stats = stats
        self._log = log
        self._walk: Walk[Any] = Walk(loop, peers, self._measure, self._enforce)
        self._sizes: list[tuple[int, Any]] = []
        self._largest: list[tuple[int, Any]] = []  # to be closed, the last one first
        self._excess_bytes = 0
        self._last_bytes = 0
        self._received_bytes = 0

    def note_incomplete(self, size: int) -> None:
        """Count received bytes of a long incomplete frame, and measure whenever a sixteenth of the
        limit has arrived.
        """
        self._received_bytes += size
        if self._bytes_max is not None and self._received_bytes > self._bytes_max // _MEASUREMENTS:
            self._received_bytes = 0
            self._walk.begin()

    def check(self) -> None:
        """Measure all connections, and close some if they exceed the limit; called by a timer."""
        if self._bytes_max is not None:
            self._walk.begin()

    def total_bytes(self) -> int:
        """Return how much memory the connections use; with thousands of connections, as last
        measured.
        """
        if self._bytes_max is not None and len(self._peers) > VISITS_PER_TURN:
            return self._last_bytes
        return sum(peer.buffered_bytes for peer in self._peers)

    def _measure(self, peer: Any) -> None:
        if peer.is_open and (size := peer.buffered_bytes):
            self._sizes.append((size, peer))

    def _enforce(self) -> None:
        """Close the connections that hold the most memory until the total is within its limit."""
        assert self._bytes_max is not None
        sizes, self._sizes = self._sizes, []
        total = sum(size for size, _ in sizes)
        self._budget.freed_bytes += max(0, self._last_bytes - total)
        self._last_bytes = total
        self._excess_bytes = total - self._bytes_max
        if self._excess_bytes > 0:
            self._largest = sorted(sizes, key=_rank)
            self._run()

    def _run(self) -> None:
        for _ in range(CLOSED_PER_TURN):
            if self._excess_bytes <= 0 or not self._largest:
                self._largest = []
                return
            size, peer = self._largest.pop()
            self._excess_bytes -= size
            if peer.is_open:
                self._stats.overflow_closed += 1
                self._log.warning("connection.overflowed", peer=peer.address, bytes=size)
                peer.abort()
        self._schedule()


def _rank(row: tuple[int, Any]) -> tuple[bool, int]:
    """Rank the connections that have been served no request last, so that they are closed first:
    filling the memory needs no account.
    """
    size, peer = row
    return not peer.is_served, size
