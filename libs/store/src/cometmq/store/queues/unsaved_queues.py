# SPDX-License-Identifier: Apache-2.0
"""The queues that have changed since the last checkpoint."""

from collections import deque
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from cometmq.store.disk import Disk, DiskFile, Piece
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.settings import CQ_ENTRY_BYTES

PORTION_QUEUES: Final = 2_000
"""How many queues one job writes. The event loop copies their entries and releases them afterwards,
each in about 4 ms.
"""

NEW_QUEUES_MAX: Final = 500
"""How many queues without a file one job writes. Creating the folders and the file of a queue takes
0.5 ms, and several times that on a busy disk; a stop waits for the running job.
"""


NEW_FOLDERS_MAX: Final = 64
"""If there are more new files than this, one sync of the whole file system replaces two syncs for
each.

A new file needs two commits of the file system's journal; 12,000 of them took 42 s on a busy disk.
"""


class QueueWrite(NamedTuple):
    """Entries of one queue that are not in its files yet."""

    queue: ConsumeQueue
    queue_offset: int
    entries: bytes


class Written(NamedTuple):
    """Queue files that have been written but not synced, and folders that have a new file."""

    files: dict[str, DiskFile]
    folders: set[str]

    def write(self, disk: Disk, writes: Iterable[QueueWrite]) -> None:
        """Write entries to the files of their queues."""
        pieces: list[Piece] = []
        for queue, queue_offset, entries in writes:
            file_count = len(queue.files.files)
            pieces += queue.files.pieces_to_write(queue_offset, entries)
            if len(queue.files.files) != file_count:
                self.folders.add(queue.files.folder)
        self.files.update((file.path, file) for file, _, _ in pieces)
        disk.write_each(pieces)

    def sync(self, disk: Disk) -> None:
        """Sync the files and folders."""
        if len(self.folders) > NEW_FOLDERS_MAX and disk.sync_all(next(iter(self.folders))):
            return
        disk.sync_each(list(self.files.values()))
        for folder in self.folders:
            disk.sync_folder(folder)


class Spilled(NamedTuple):
    """What spills have written since the last checkpoint: for each queue, the offset of the first
    such entry, and the folders that have a new file.
    """

    queues: dict[ConsumeQueue, int]
    folders: set[str]

    def files(self) -> Written:
        """Look up the files, of which retention may have removed some; runs on a worker thread."""
        files = {}
        for queue, first in self.queues.items():
            for file in queue.files.files_from(first * CQ_ENTRY_BYTES):
                files[file.path] = file
        return Written(files, self.folders)


class UnsavedQueues:
    """Tracks the queues that have entries only in memory, and the entries that a spill has written
    without a sync.
    """

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

    def writes(self, queues: Iterable[ConsumeQueue] | None = None) -> list[QueueWrite]:
        """Copy the entries that exist only in memory: those of `queues`, or of all queues."""
        return [
            QueueWrite(queue, *unwritten)
            for queue in (self.queues if queues is None else queues)
            if (unwritten := queue.unwritten())[1]
        ]

    def spilled(self) -> Spilled:
        """Return the writes of spills since the checkpoint."""
        return Spilled(self._spilled.copy(), self._spilled_folders.copy())

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


class Round:
    """The queues with entries in memory when the round began; each job writes a portion of them."""

    __slots__ = ("_left", "_unsaved")

    def __init__(self, unsaved: UnsavedQueues) -> None:
        self._unsaved = unsaved
        self._left = deque(unsaved.queues)

    @property
    def is_done(self) -> bool:
        """Whether all portions were taken."""
        return not self._left

    def writes(self) -> list[QueueWrite]:
        """Copy the entries of the next portion of queues, at most NEW_QUEUES_MAX of which have no
        file yet.

        The copies include entries that came after the round began; deleted queues are left out.
        """
        unsaved, left = self._unsaved, self._left
        portion: list[ConsumeQueue] = []
        new_count = 0
        while left and len(portion) < PORTION_QUEUES and new_count < NEW_QUEUES_MAX:
            queue = left.popleft()
            if queue in unsaved.queues:
                portion.append(queue)
                new_count += not queue.files.files
        return unsaved.writes(portion)
