# SPDX-License-Identifier: Apache-2.0
"""The queues that have changed since the last checkpoint."""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from itertools import islice

from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.settings import CQ_ENTRY_BYTES
from cometmq.store.upkeep.jobs import QueueWrite, Written


class UnsavedQueues:
    """Knows which entries are only in memory, and which a spill has written without a sync."""

    __slots__ = ("_spilled", "_spilled_folders", "queues")

    def __init__(self) -> None:
        self.queues: dict[ConsumeQueue, None] = {}
        """Queues with entries in memory, in the order in which they got the first one."""
        # Queue -> the first of its entries that a spill has written since the checkpoint.
        self._spilled: dict[ConsumeQueue, int] = {}
        self._spilled_folders: set[str] = set()

    def forget(self, queue: ConsumeQueue) -> None:
        """Drop a deleted queue."""
        self.queues.pop(queue, None)
        self._spilled.pop(queue, None)
        self._spilled_folders.discard(queue.files.folder)

    def note(self, queues: Iterable[ConsumeQueue]) -> None:
        """Note queues with new entries in memory."""
        self.queues.update(dict.fromkeys(queues))

    @property
    def new_count(self) -> int:
        """The number of queues that have no file yet."""
        return sum(not queue.files.files for queue in self.queues)

    def new(self, count_max: int) -> list[ConsumeQueue]:
        """Return some queues that have no file yet."""
        return list(islice((queue for queue in self.queues if not queue.files.files), count_max))

    def writes(self, queues: Iterable[ConsumeQueue] | None = None) -> list[QueueWrite]:
        """Copy the entries, of some queues or of all, that exist only in memory."""
        return [
            QueueWrite(queue, *unwritten)
            for queue in (self.queues if queues is None else queues)
            if (unwritten := queue.unwritten())[1]
        ]

    def spilled_files(self) -> Written:
        """Return what spills have written since the checkpoint."""
        # Retention may have removed files since the spill, so the files are looked up again.
        files = {}
        for queue, first in self._spilled.items():
            for file in queue.files.files_from(first * CQ_ENTRY_BYTES):
                files[file.path] = file
        return Written(files, set(self._spilled_folders))

    def note_spilled(self, writes: Iterable[QueueWrite], folders: AbstractSet[str]) -> None:
        """Release the entries that a spill has written, and remember where."""
        for queue, queue_offset, _ in writes:
            if queue not in self.queues:
                continue  # its topic was deleted meanwhile
            self._spilled.setdefault(queue, queue_offset)
            if queue.files.folder in folders:
                self._spilled_folders.add(queue.files.folder)
        self._release(writes)

    def note_saved(self, writes: Iterable[QueueWrite]) -> None:
        """Release the entries that a checkpoint has written."""
        self._release(writes)
        self._spilled.clear()
        self._spilled_folders.clear()

    def _release(self, writes: Iterable[QueueWrite]) -> None:
        for queue, queue_offset, entries in writes:
            queue.mark_written(queue_offset + len(entries) // CQ_ENTRY_BYTES)
            if not queue.tail_bytes:
                self.queues.pop(queue, None)
