# SPDX-License-Identifier: Apache-2.0
"""Counts the requests in flight, that is unanswered ones, by connection and in total.

Requests that handlers or lanes answer at once never count, nor do those of closed connections. A
large request counts as several (`weight_of`).
"""

from cometmq.remoting.transport.flow.connected import Connected
from cometmq.remoting.transport.stats import TransportStats


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
