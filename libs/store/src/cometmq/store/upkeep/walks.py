# SPDX-License-Identifier: Apache-2.0
"""Plans the walks that compare entries of queues and index with the log, at an even rate."""

from collections.abc import Callable
from functools import partial
from typing import Final

from cometmq.store.parts import Parts
from cometmq.store.upkeep.entry_check import EntryWalk, Suspects
from cometmq.store.upkeep.index_rebuild import IndexRepair, WalkPart
from cometmq.store.upkeep.sealer import Sealer

ENTRIES_PER_S: Final = 1_000
"""The rate of each walk. An entry takes 5 to 6 us (bench/micro/bench_index_check.py), so both walks
together take 1 to 2 % of one core.
"""
STEP_ENTRIES_MIN: Final = 1_000
STEP_ENTRIES_MAX: Final = 4_000


class Walks:
    """The walks through one store, for the thread that owns the store."""

    def __init__(self, parts: Parts, sealer: Sealer) -> None:
        self._parts = parts
        self._sealer = sealer
        self._queues = EntryWalk(parts.pause)
        self._end = 0
        self._last_ms: int | None = None
        self.index = IndexRepair(parts, sealer)
        self.on_suspects: Callable[[Suspects], None] = lambda _found: None
        """Receives entries of queues that do not fit their records."""

    def begin(self, offset: int, end: int) -> None:
        """Begin the walks that have ended; that of the queues begins at an offset of the log.

        Both end at `end`: a walk that also compared all new entries would never end.
        """
        self._end = end
        if self._queues.has_ended:
            self._queues.begin(offset)
        if self.index.has_ended:
            self.index.begin()

    def step(self, now_ms: int) -> "WalkStep | None":
        """Return the next step; None if the walks have ended, or until it is due."""
        if self._queues.has_ended and self.index.has_ended:
            self._last_ms = None
            return None
        if self._last_ms is None or now_ms < self._last_ms:
            self._last_ms = now_ms
        count = (now_ms - self._last_ms) * ENTRIES_PER_S // 1000
        if count < STEP_ENTRIES_MIN:
            return None
        self._last_ms = now_ms
        count = min(count, STEP_ENTRIES_MAX)
        end = min(self._end, self._sealer.offset)
        parts = self._parts
        queues = partial(self._queues.step, parts.commit_log.files, parts.queues, end, count)
        return WalkStep(self, queues, self.index.step(end, count))


class WalkStep:
    """One step of each walk."""

    def __init__(self, walks: Walks, queues: Callable[[], Suspects], index: WalkPart) -> None:
        self._walks = walks
        self._queues = queues
        self._index = index
        self._found = Suspects()

    def run(self) -> None:
        """Compare entries; blocks."""
        self._found = self._queues()
        self._index.run()

    def done(self) -> None:
        """Report the outcome to the store."""
        self._index.done()
        self._walks.on_suspects(self._found)
