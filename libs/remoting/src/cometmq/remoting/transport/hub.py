# SPDX-License-Identifier: Apache-2.0
"""State that the connections of one server or client share, and their common flush."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar

from cometmq.remoting.connection import Codec
from cometmq.remoting.log import Log
from cometmq.remoting.transport.flow.budget import TURN_BYTES, Unsent, UnsentBudget
from cometmq.remoting.transport.flow.room import Room
from cometmq.remoting.transport.flow.turns import Turns
from cometmq.remoting.transport.handshakes import Handshakes
from cometmq.remoting.transport.lane import Direct, Lane
from cometmq.remoting.transport.settings import ConnectionSettings
from cometmq.remoting.transport.stats import TransportStats
from cometmq.remoting.transport.tasks import due_on_grid
from cometmq.remoting.transport.tls import TlsGate

_LONG_TURNS: Final = 8  # connections that may use full turns at the same time
_CALLS_MIN: Final = 16  # smaller portions cost more than they gain


class Connected(Unsent, Protocol):
    """The part of a connection that the hub uses."""

    def flush(self) -> None:
        """Write the pending output."""

    def close(self) -> None:
        """Close the connection after its pending output is sent."""

    def catch_up(self) -> None:
        """Serve requests that have waited for their turn."""

    uncharged_bytes: int

    def charge(self, spent_s: float) -> None:
        """Note time that the program has spent on requests after they were served."""


PeerT = TypeVar("PeerT", bound=Connected)


class Hub(Generic[PeerT]):
    """State shared by the connections of one server or client."""

    __slots__ = (
        "_behind_count",
        "_dirty",
        "_is_empty",
        "_is_flush_scheduled",
        "_received_bytes",
        "_received_bytes_max",
        "before_write",
        "bound_memory",
        "budget",
        "calls_max",
        "clock_ms",
        "codec",
        "direct",
        "handshakes",
        "is_gathering",
        "lane",
        "log",
        "loop",
        "on_close",
        "on_open",
        "peers",
        "room",
        "save",
        "settings",
        "stats",
        "tls",
        "turns",
    )

    def __init__(  # noqa: PLR0913  # what all connections share, each by name
        self,
        codec: Codec,
        settings: ConnectionSettings,
        *,
        clock_ms: Callable[[], int],
        log: Log,
        on_open: Callable[[PeerT], None] | None = None,
        on_close: Callable[[PeerT], None] | None = None,
        tls: TlsGate | None = None,
        before_write: Callable[[], None] | None = None,
        save: Callable[[], None] | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.codec = codec
        self.settings = settings
        self.lane: Lane | None = None
        self.direct: Direct | None = None
        self.clock_ms = clock_ms
        self.log = log
        self.on_open = on_open
        self.on_close = on_close
        self.tls = tls
        self.before_write = before_write
        self.save = save
        self.bound_memory: Callable[[], None] | None = None
        """Keeps the memory of all connections below its limit; only servers have one."""
        self._received_bytes = 0
        self._received_bytes_max = 0
        self.is_gathering = False
        """Whether answers wait for the end of the turn of the loop, and then for ``save``."""
        self.stats = TransportStats()
        self.calls_max = settings.calls_per_turn_max
        """How many requests of one connection may currently be served in a row."""
        self._behind_count = 0
        self.turns: Turns[PeerT] = Turns(self.loop)
        self.handshakes: Handshakes[Any] = Handshakes(
            self.loop, getattr(settings, "connections_max", 0)
        )
        self.peers: set[PeerT] = set()
        self.budget: UnsentBudget[PeerT] = UnsentBudget(
            bytes_max=_net_bytes(settings.unsent_total_bytes_max),
            drain_timeout_ms=settings.drain_timeout_ms,
            stats=self.stats,
            log=log,
        )
        self.room: Room[Any] = Room(self.budget, self.loop)
        self._is_empty = asyncio.Event()
        self._dirty: list[PeerT] = []
        self._is_flush_scheduled = False

    def fell_behind(self, count: int) -> None:
        """Add ``count``, 1 or -1, to the number of connections that have a backlog.

        The number determines how many requests of a connection are served in the next turn of the
        loop. A few connections with a backlog may take long turns. Many of them share the same
        total, so a connection without a backlog never waits for many long turns.
        """
        self._behind_count += count
        most = self.settings.calls_per_turn_max
        share = most * _LONG_TURNS // max(_LONG_TURNS, self._behind_count)
        self.calls_max = max(share, min(most, _CALLS_MIN))

    def charge(self, spent_s: float) -> None:
        """Charge the connections for work that took long after their requests were served.

        Each one is charged by the size of the requests served since the last such work, most of
        which usually caused it.
        """
        sizes = [(peer, peer.uncharged_bytes) for peer in self.peers if peer.uncharged_bytes]
        total = sum(size for _, size in sizes)
        for peer, size in sizes:
            peer.uncharged_bytes = 0
            peer.charge(spent_s * size / total)
        self.turns.note(spent_s)

    def mark_dirty(self, peer: PeerT) -> None:
        """Send the peer's output at the end of this turn of the loop."""
        self._dirty.append(peer)
        self.schedule_flush()

    def schedule_flush(self) -> None:
        """Send all pending output at the end of this turn of the loop."""
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self.loop.call_soon(self._flush_scheduled)

    def note_large(self, size: int) -> None:
        """Count bytes of large answers that were built in this turn of the loop."""
        budget = self.budget
        if budget.turn_left == TURN_BYTES:
            self.loop.call_soon(self._begin_turn)
        budget.turn_left -= size

    def bound(self, bound_memory: Callable[[], None], *, every_bytes: int) -> None:
        """Call a function whenever so many bytes of long incomplete frames have arrived."""
        self.bound_memory, self._received_bytes_max = bound_memory, every_bytes

    def note_incomplete(self, size: int) -> None:
        """Count received bytes of a long incomplete frame."""
        self._received_bytes += size
        if self._received_bytes > self._received_bytes_max and self.bound_memory is not None:
            self._received_bytes = 0
            self.bound_memory()

    def _begin_turn(self) -> None:
        self.budget.turn_left = TURN_BYTES

    def prepare_write(self) -> None:
        """Make durable what the answers promise; call this before each write of answers."""
        if self.is_gathering and self.save is not None:
            self.is_gathering = False
            self.save()
        if self.before_write is not None:
            self.before_write()

    def flush(self) -> None:
        """Send all pending output, one write per connection."""
        if self.direct is not None:
            self.direct.flush()
        dirty, self._dirty = self._dirty, []
        for peer in dirty:
            peer.flush()

    def _flush_scheduled(self) -> None:
        self._is_flush_scheduled = False
        self.flush()

    def discard(self, peer: PeerT) -> None:
        """Remove a closed connection."""
        self.peers.discard(peer)
        if not self.peers:
            self._is_empty.set()

    async def close(self, drain_ms: int) -> None:
        """Close every connection; output that is not sent in time is lost."""
        self.flush()
        for is_patient in (True, False):
            for peer in tuple(self.peers):
                if is_patient:
                    peer.close()
                else:
                    peer.abort()
            if self.peers:
                self._is_empty.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._is_empty.wait(), drain_ms / 1000)

    def later(self, check: Callable[[], None]) -> asyncio.TimerHandle:
        """Schedule a check of the connections after about ``check_interval_ms``."""
        pause_s = self.settings.check_interval_ms / 1000
        return self.loop.call_at(due_on_grid(self.loop.time(), pause_s), check)

    def now_ms(self) -> int:
        """Return the loop's time in milliseconds, the clock of all deadlines."""
        return int(self.loop.time() * 1000)


def _net_bytes(bytes_max: int | None) -> int | None:
    """Return how much output may use a limited amount of memory: free gaps between buffers take the
    rest.
    """
    return None if bytes_max is None else bytes_max - bytes_max // 4
