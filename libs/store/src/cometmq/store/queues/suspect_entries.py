# SPDX-License-Identifier: Apache-2.0
"""The entries of queues that do not fit their records: which of them readers must not pass yet.

A reader stops before such an entry until `EntryRepair` has examined it, because the log may still
have its message. It passes entries that cannot be repaired, and all suspects while the examination
fails or hangs, so that no queue is blocked for ever.

Invariants: an entry counts as examined only if it could not be repaired, or need not be, and only
until bytes of the log change (`forget`). Beyond EXAMINED_MAX, the oldest are examined again before
readers pass them. Readers go on as soon as an examination ends, so they see its result.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from cometmq.store.queues.consume_queue import ConsumeQueue

SUSPECTS_MAX: Final = 20_000
"""Maximum number of entries that wait for their examination; readers report others again."""

EXAMINED_MAX: Final = 20_000
"""Maximum number of examined entries that are remembered."""

SPAN_COUNT_MAX: Final = 4_096
"""Number of entries of a queue that one examination covers; it takes about 0.1 s."""

_Place: TypeAlias = tuple[ConsumeQueue, int, int]
"""The queue, its `life`, and an offset."""


class SuspectEntries:
    """The suspects of one store; only the thread that owns the store uses this."""

    def __init__(self) -> None:
        self._found: dict[ConsumeQueue, set[int]] = {}  # longest waiting queue first
        self._count = 0
        self._examined: dict[_Place, None] = {}
        self.is_stalled = False
        """Whether readers pass suspects at once, because an examination hangs."""
        self.repaired_count = 0
        """The number of entries that were repaired."""
        self.listeners: list[Callable[[ConsumeQueue], None]] = []
        """Called with each queue of which entries were examined, or may be passed."""

    def __len__(self) -> int:
        return self._count

    def add(self, queue: ConsumeQueue, offsets: Sequence[int]) -> None:
        """Queue entries for the examination; readers report those again that do not fit in."""
        of_queue = self._found.setdefault(queue, set())
        before = len(of_queue)
        of_queue.update(offsets[: max(1, SUSPECTS_MAX - self._count)])
        self._count += len(of_queue) - before

    def first_awaited(self, queue: ConsumeQueue, offsets: Sequence[int]) -> int | None:
        """Queue those of these entries that were not examined yet. Return the first entry that a
        reader must not pass yet, or None.
        """
        unknown = [it for it in offsets if (queue, queue.life, it) not in self._examined]
        if not unknown:
            return None
        self.add(queue, unknown)
        return None if self.is_stalled else unknown[0]

    def take(self) -> tuple[ConsumeQueue, list[int]] | None:
        """Remove and return suspects that one examination covers, sorted."""
        if not self._found:
            return None
        queue = next(iter(self._found))
        offsets = sorted(self._found.pop(queue))
        taken = [it for it in offsets if it < offsets[0] + SPAN_COUNT_MAX]
        if len(taken) < len(offsets):
            self._found[queue] = set(offsets[len(taken) :])  # behind the other queues
        self._count -= len(taken)
        return queue, taken

    def settle(self, queue: ConsumeQueue, passed: Sequence[int]) -> None:
        """Let readers go on after an examination; it could not repair the entries in `passed`."""
        self.is_stalled = False
        self._examined.update(((queue, queue.life, it), None) for it in passed)
        for place in list(self._examined)[: max(0, len(self._examined) - EXAMINED_MAX)]:
            del self._examined[place]
        self._tell(queue)

    def stall(self, queue: ConsumeQueue) -> None:
        """Let readers pass all suspects, because the examination of `queue` hangs."""
        self.is_stalled = True
        for it in {queue, *self._found}:
            self._tell(it)

    def forget(self) -> None:
        """Forget what was examined, because bytes of the log may have changed."""
        self._examined.clear()

    def _tell(self, queue: ConsumeQueue) -> None:
        for listener in self.listeners:
            listener(queue)
