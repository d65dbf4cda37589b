# SPDX-License-Identifier: Apache-2.0
"""The state that the connections of one server or client share."""

import asyncio
import contextlib
from collections.abc import Callable

from cometmq.remoting.connection import Codec
from cometmq.remoting.log import Log
from cometmq.remoting.transport.flow.budget import TURN_BYTES, MemoryLimit, UnsentBudget
from cometmq.remoting.transport.flow.connected import Connected
from cometmq.remoting.transport.flow.frames import UnfinishedFrames
from cometmq.remoting.transport.flow.places import Places
from cometmq.remoting.transport.flow.room import Room
from cometmq.remoting.transport.flow.turns import Turns
from cometmq.remoting.transport.flow.writes import Writes
from cometmq.remoting.transport.settings import ConnectionSettings, ServerSettings
from cometmq.remoting.transport.stats import TransportStats
from cometmq.remoting.transport.tasks import TaskSet, due_on_grid
from cometmq.remoting.transport.tls import TlsGate


class Hub:
    """The settings, limits, queues and counters that the connections of one server or client
    share.
    """

    def __init__(  # noqa: PLR0913  # what all connections share, each by name
        self,
        codec: Codec,
        settings: ConnectionSettings,
        *,
        clock_ms: Callable[[], int],
        log: Log,
        on_open: Callable[[Connected], None] | None = None,
        on_close: Callable[[Connected], None] | None = None,
        tls: TlsGate | None = None,
        before_write: Callable[[], None] | None = None,
        save: Callable[[], None] | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.codec = codec
        self.settings = settings
        self.clock_ms = clock_ms
        self.log = log
        self.on_open = on_open
        self.on_close = on_close
        self.tls = tls
        self.stats = TransportStats()
        server = settings if isinstance(settings, ServerSettings) else None
        connections_max = 0 if server is None else server.connections_max
        self.tasks = TaskSet(log)
        self.writes = Writes(self.loop, before_write, save)
        self.turns = Turns(self.loop, settings.calls_per_turn_max)
        self.all_ended = asyncio.Event()
        """Set when the last connection has been removed."""
        self.peers: set[Connected] = set()
        self.places = Places(connections_max)
        self.budget = UnsentBudget(
            self.loop,
            bytes_max=_net_bytes(settings.unsent_total_bytes_max),
            drain_timeout_ms=settings.drain_timeout_ms,
            stats=self.stats,
            log=log,
        )
        self.room = Room(self.budget, self.loop)
        self.memory = MemoryLimit(
            None if server is None else server.buffered_bytes_max,
            loop=self.loop,
            peers=self.peers,
            budget=self.budget,
            stats=self.stats,
            log=log,
        )
        self.frames = UnfinishedFrames(
            None if server is None else server.frames_bytes_max, stats=self.stats, log=log
        )

    def charge(self, spent_s: float) -> None:
        """Charge connections for work that took `spent_s` after their requests were served, such as
        a commit.

        Each connection is charged in proportion to the size of its requests served since the last
        such work.
        """
        spent_s = self.turns.worked(spent_s)
        intakes = [peer.intake for peer in self.peers if peer.intake.uncharged_bytes]
        total = sum(intake.uncharged_bytes for intake in intakes)
        for intake in intakes:
            size, intake.uncharged_bytes = intake.uncharged_bytes, 0
            intake.charge(spent_s * size / total)
        self.turns.note(spent_s)

    def note_large(self, size: int) -> None:
        """Count bytes of large answers that were built in this turn of the loop."""
        budget = self.budget
        if budget.turn_left == TURN_BYTES:
            self.loop.call_soon(self._begin_turn)
        budget.turn_left -= size

    def _begin_turn(self) -> None:
        self.budget.turn_left = TURN_BYTES

    def discard(self, peer: Connected) -> None:
        """Remove a closed connection."""
        self.peers.discard(peer)
        self.places.leave(peer)
        if not self.peers:
            self.all_ended.set()

    async def close(self, drain_ms: int) -> None:
        """Close every connection; output that is not sent in time is lost."""
        self.writes.flush()
        for is_patient in (True, False):
            for peer in tuple(self.peers):
                if is_patient:
                    peer.close()
                else:
                    peer.abort()
            if self.peers:
                self.all_ended.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.all_ended.wait(), drain_ms / 1000)

    def later(self, check: Callable[[], None]) -> tuple[asyncio.Handle, float]:
        """Schedule a check of the connections after about `check_interval_ms`; return its handle,
        and when it is due, in seconds of the loop's clock.

        The time is returned because uvloop's handles do not know it once it has just passed.
        """
        due_s = due_on_grid(self.loop.time(), self.settings.check_interval_ms / 1000)
        return self.loop.call_at(due_s, check), due_s

    def now_ms(self) -> int:
        """Return the loop's time in milliseconds, the clock of all deadlines."""
        return int(self.loop.time() * 1000)


def _net_bytes(bytes_max: int | None) -> int | None:
    """Return the part of a memory limit that output may use: a quarter is left for the gaps between
    buffers.
    """
    return None if bytes_max is None else bytes_max - bytes_max // 4
