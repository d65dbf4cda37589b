# SPDX-License-Identifier: Apache-2.0
"""Bounds the memory that all connections of a server use for input and output."""

from collections.abc import Collection
from typing import Any, Final

from cometmq.remoting.log import Log
from cometmq.remoting.transport.flow.budget import UnsentBudget
from cometmq.remoting.transport.stats import TransportStats

_MEASUREMENTS: Final = 16  # at most, while the limit arrives in incomplete frames


class MemoryLimit:
    """The memory of all connections."""

    def __init__(
        self,
        bytes_max: int | None,
        *,
        peers: Collection[Any],
        budget: UnsentBudget,
        stats: TransportStats,
        log: Log,
    ) -> None:
        """A ``bytes_max`` of None means no limit."""
        self._bytes_max = bytes_max
        self._peers = peers
        self._budget = budget
        self._stats = stats
        self._log = log
        self._last_bytes = 0
        self._received_bytes = 0

    def note_incomplete(self, size: int) -> None:
        """Count received bytes of a long incomplete frame; measure now and then."""
        self._received_bytes += size
        if self._bytes_max is not None and self._received_bytes > self._bytes_max // _MEASUREMENTS:
            self._received_bytes = 0
            self._enforce(self._bytes_max)

    def check(self) -> None:
        """Keep the limit, if there is one; called by a timer."""
        if self._bytes_max is not None:
            self._enforce(self._bytes_max)

    def _enforce(self, bytes_max: int) -> None:
        """Close the connections that hold the most memory until the total is within its limit."""
        peers = [peer for peer in self._peers if peer.is_open]
        total = sum(peer.buffered_bytes for peer in peers)
        self._budget.freed_bytes += max(0, self._last_bytes - total)
        self._last_bytes = total
        if total <= bytes_max:
            return
        sizes = sorted((peer.buffered_bytes, id(peer), peer) for peer in peers)
        while sizes and total > bytes_max:
            size, _, peer = sizes.pop()
            total -= size
            self._stats.overflow_closed += 1
            self._log.warning("connection.overflowed", peer=peer.address, bytes=size)
            peer.abort()
