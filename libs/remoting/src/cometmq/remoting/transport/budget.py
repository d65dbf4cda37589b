# SPDX-License-Identifier: Apache-2.0
"""One budget for the unsent output of all connections of a server; does no I/O itself.

Limits per connection do not protect a server from many peers: fifty peers that send requests but
read no answers may each hold output up to the high-water mark. When the budget is exceeded, the
connections with the most unsent output are paused: the server neither reads nor serves their
requests until only a quarter of that output is left. Connections that do not drain are closed,
largest first.

Hot path
    The bytes of each write are subtracted from ``left``. The connections are measured only when
    ``left`` is used up, so at most once per sixteenth of the budget.
"""

from collections.abc import Collection, Iterable
from typing import Final, Generic, Protocol, TypeVar

from cometmq.remoting.log import Log
from cometmq.remoting.transport.stats import TransportStats

# uvloop keeps a buffer whole until the kernel has taken all of it, and counts only the rest as
# unsent. Writes of 4 MiB let a slow reader take twice the memory that the budget counts; writes of
# this size avoid that, but cost pulls of 250 KB 40 % more processor time.
TIGHT_WRITE_BYTES: Final = 256 * 1024
_STEPS: Final = 16  # at most this many measurements while one budget is sent
_OPEN_SHARE: Final = 2  # unpaused connections may hold half of the budget
_TIGHT_SHARE: Final = 4
_EXCESS_SHARE: Final = 4
_HURRY: Final = 10
"""Divisor of the time to drain while usage exceeds the budget by a quarter. The time is not zero,
because output written in this turn of the loop counts as unsent until the kernel takes it, perhaps
at the end of the turn.
"""
_UNLIMITED: Final = 1 << 62


class Unsent(Protocol):
    """The part of a connection that the budget uses."""

    @property
    def address(self) -> str:
        """The remote address as ``ip:port``."""

    @property
    def unsent_bytes(self) -> int:
        """Output that the kernel has not taken yet."""

    @property
    def is_restrained(self) -> bool:
        """Whether the budget has paused the connection."""

    def restrain(self) -> None:
        """Pause until a quarter of the unsent output is left."""

    def stalled_ms(self, now_ms: int) -> int:
        """Return how long the peer of a paused connection has read nothing."""

    def abort(self) -> None:
        """Close immediately; unsent output is lost."""


PeerT = TypeVar("PeerT", bound=Unsent)
Sizes = list[tuple[int, PeerT]]


class UnsentBudget(Generic[PeerT]):
    """Keeps the total unsent output of all peers below a limit."""

    __slots__ = (
        "_bytes_max",
        "_drain_timeout_ms",
        "_log",
        "_paused",
        "_peers",
        "_stats",
        "is_tight",
        "left",
    )

    def __init__(
        self,
        peers: Collection[PeerT],
        *,
        bytes_max: int | None,
        drain_timeout_ms: int,
        stats: TransportStats,
        log: Log,
    ) -> None:
        """Watch ``peers``, which may change; a ``bytes_max`` of None means no limit."""
        self._peers = peers
        self._bytes_max = _UNLIMITED if bytes_max is None else bytes_max
        self._drain_timeout_ms = drain_timeout_ms
        self._stats = stats
        self._log = log
        self._paused = 0  # number of connections since the last log line
        self.left = self._bytes_max
        self.is_tight = False
        """Whether more than a quarter of the budget is used; connections then write small portions.
        """

    def check(self, now_ms: int) -> None:
        """Close paused peers that do not drain, and log new pauses; called by a timer."""
        if self._bytes_max == _UNLIMITED:
            return
        unsent_bytes = self.measure(now_ms)
        if self._paused:
            self._log.warning(
                "connections.paused", count=self._paused, unsent_bytes=unsent_bytes,
                unsent_bytes_max=self._bytes_max,
            )  # fmt: skip
            self._paused = 0

    def measure(self, now_ms: int) -> int:
        """Keep all unsent output within the budget, and return its total in bytes."""
        sizes = [(size, peer) for peer in self._peers if (size := peer.unsent_bytes)]
        total = sum(size for size, _ in sizes)
        if total > self._bytes_max:
            sizes.sort(key=lambda row: row[0], reverse=True)
            total -= self._close(sizes, total, now_ms)
            self._pause(sizes)
        self.is_tight = total > self._bytes_max // _TIGHT_SHARE
        # Leave at least one step; otherwise every write would measure all connections of a full
        # budget.
        self.left = max(self._bytes_max - total, self._bytes_max // _STEPS)
        return total

    def _close(self, sizes: Sizes[PeerT], total: int, now_ms: int) -> int:
        """Close paused peers that do not drain; return the number of unsent bytes freed."""
        limit, patience_ms = self._bytes_max, self._drain_timeout_ms
        if total > limit + limit // _EXCESS_SHARE:
            patience_ms //= _HURRY
        closed = 0
        for size, peer in self._restrained(sizes):
            if total - closed <= limit:
                break
            if peer.stalled_ms(now_ms) >= patience_ms:
                closed += size
                self._stats.budget_closed += 1
                self._log.warning("connection.overflowed", peer=peer.address, bytes=size)
                peer.abort()
        return closed

    def _pause(self, sizes: Sizes[PeerT]) -> None:
        """Pause the largest peers until the unpaused ones together are within their share."""
        open_bytes = sum(size for size, peer in sizes if not peer.is_restrained)
        for size, peer in sizes:
            if open_bytes <= self._bytes_max // _OPEN_SHARE:
                break
            if not peer.is_restrained:
                open_bytes -= size
                self._paused += 1
                self._stats.budget_paused += 1
                peer.restrain()

    @staticmethod
    def _restrained(sizes: Sizes[PeerT]) -> Iterable[tuple[int, PeerT]]:
        return [(size, peer) for size, peer in sizes if peer.is_restrained]
