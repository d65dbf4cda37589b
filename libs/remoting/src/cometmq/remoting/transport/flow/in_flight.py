# SPDX-License-Identifier: Apache-2.0
"""Counts the requests in flight, that is unanswered ones, by connection and in total.

Requests that handlers or lanes answer at once never count, nor do those of closed connections. A
large request counts as several (`weight_of`).
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from cometmq.remoting.transport.flow.connected import Connected
from cometmq.remoting.transport.stats import TransportStats

Rows: TypeAlias = Sequence[tuple[Any, bytes]]
"""Pairs of a connection and a chunk that it has received."""


class InFlight:
    """Counts the requests in flight of all connections of a server or client, by the rules
    above.
    """

    def __init__(self, one_max: int, total_max: int, stats: TransportStats) -> None:
        """Allow `one_max` requests in flight for each connection, and `total_max` for all
        together.
        """
        self.one_max = one_max
        self.total_max = total_max
        self._stats = stats

    def exceeds(self, peer: Connected, more: int) -> bool:
        """Return whether this number of further requests would exceed a limit."""
        is_above = self._stats.in_flight + more > self.total_max
        return is_above or peer.in_flight + more > self.one_max

    def add(self, peer: Connected, count: int) -> None:
        """Count requests that will be answered later."""
        peer.in_flight += count
        self._stats.in_flight += count

    def answered(self, peer: Connected, count: int = 1) -> None:
        """Subtract requests of a connection that have been answered."""
        peer.in_flight -= count
        self._stats.in_flight -= count

    def forget(self, peer: Connected) -> None:
        """Subtract all requests of a connection that has ended."""
        self.answered(peer, peer.in_flight)

    def add_rows(self, rows: Rows, counts: Sequence[int], total: int) -> bool:
        """Count the requests of several connections that will be answered: `counts` of each row.

        `total` is the number of all requests of the rows. Return False and count nothing if a limit
        would be exceeded.
        """
        stats, most = self._stats, self.one_max
        if stats.in_flight + total > self.total_max:
            return False
        may_exceed = stats.in_flight + total > most  # otherwise no connection can exceed its limit
        both = zip(rows, counts, strict=True)
        if may_exceed and any(row[0].in_flight + count > most for row, count in both):
            return False
        for (peer, _), count in zip(rows, counts, strict=True):
            peer.in_flight += count
            stats.in_flight += count
        return True

    def answered_rows(self, rows: Iterable[tuple[Any, Any, int]]) -> None:
        """Subtract answered requests of several connections; each row ends with their number."""
        stats = self._stats
        for peer, _, count in rows:
            peer.in_flight -= count
            stats.in_flight -= count
