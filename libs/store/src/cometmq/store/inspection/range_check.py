# SPDX-License-Identifier: Apache-2.0
"""Compares whole ranges of the log with queues and index: native code reads the plain records of a
range, and what it computes must be the bytes in the files.

What differs in any way is left to the slow check, which knows the exceptions and names the faults.
"""

import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

from cometmq.store.errors import DiskError
from cometmq.store.index.index_file import IndexFile
from cometmq.store.index.index_format import ENTRY, Keys
from cometmq.store.index.index_slots import PAGE_SLOTS, SLOT_BYTES, zero_slots
from cometmq.store.queues.consume_queue import ConsumeQueue, entries_from
from cometmq.store.queues.queue_files import ENTRY as QUEUE_ENTRY
from cometmq.store.queues.queue_files import FILLER_SIZE
from cometmq.store.queues.queue_table import QueueTable
from cometmq.store.settings import CQ_ENTRY_BYTES
from cometmq.store.writing.runs import ReadRange, RecordRange

READ_COUNT: Final = 1024
"""Entries that are read at once."""


class QueueCursor:
    """Reads the entries of one queue in large pieces, in ascending order."""

    def __init__(self, queue: ConsumeQueue) -> None:
        self.queue = queue
        self.seen_count = 0
        self.is_gone = False  # deleted or shortened by a running broker
        self.begin = _first_place(queue)
        self._first = 0
        self._entries: list[tuple[int, int, int]] = []

    def entry(self, queue_offset: int) -> tuple[int, int, int] | None:
        """Return the entry at an offset; None if the queue has none there."""
        index = queue_offset - self._first
        if not 0 <= index < len(self._entries):
            self._first = queue_offset
            self._entries = entries_from(self.queue, queue_offset, READ_COUNT)
            index = 0
        return self._entries[index] if self._entries else None


def _first_place(queue: ConsumeQueue) -> int:
    """Return the physical offset of a queue's entry 0; 0 if the queue has lost that entry.

    Records before that offset belong to a deleted topic of the same name.
    """
    data = b"" if queue.files.first else queue.files.read(0, CQ_ENTRY_BYTES)
    if len(data) < CQ_ENTRY_BYTES:
        return 0
    place, size, _ = QUEUE_ENTRY.unpack(data)
    return 0 if size in {0, FILLER_SIZE} else int(place)


SLOTS_COMPARED: Final = 64 << 10


class RangeCheck:
    """Compares the records of ranges with the entries of their queues."""

    def __init__(
        self,
        read_range: ReadRange,
        queues: QueueTable,
        cursor: Callable[[str, int], QueueCursor | None],
        stop: int | None,
        on_range: Callable[[int, RecordRange], None],
    ) -> None:
        """`cursor` returns the cursor of a queue; ranges end before `stop`. `on_range` gets the end
        and the content of each range that was compared.
        """
        self._read_range = read_range
        self._queues = queues
        self._cursor = cursor
        self._stop = sys.maxsize if stop is None else stop
        self._on_range = on_range
        self._odd_end = 0  # of the last range that needs the slow check

    def take(self, data: bytes, position: int, base: int) -> int:
        """Compare the plain records from a position on; return their size, 0 for the slow check.

        The first byte of `data` lies at offset `base` of the log.
        """
        start = base + position
        if start < self._odd_end:
            return 0
        fields = self._read_range(
            data, position, base, check_crc=True, is_indexing=True, delayed=self._queues.delayed
        )
        if fields is None or not fields[1]:
            return 0
        found = RecordRange._make(fields)
        end = start + found.size
        cursors = None if end > self._stop or self._queues.floors else self._matched(found)
        if cursors is None:
            self._odd_end = end
            return 0
        for cursor, count in cursors:
            cursor.seen_count += count
        self._on_range(end, found)
        return found.size

    def _matched(self, found: RecordRange) -> list[tuple[QueueCursor, int]] | None:
        """Return the cursors of the runs with the number of their entries; None if any differs."""
        cursors = []
        for topic, queue_id, first, count, entries in found.runs:
            cursor = self._cursor(topic, queue_id)
            if cursor is None or cursor.is_gone:
                return None
            try:
                stored = cursor.queue.plan(first, count).read(may_block=True) or b""
            except DiskError:
                return None
            if QUEUE_ENTRY.unpack_from(entries)[0] < cursor.begin or stored != entries:
                return None
            cursors.append((cursor, count))
        return cursors


class IndexReplay:
    """Links the keys of the log again, and compares the result with the index files."""

    def __init__(self, files: Sequence[IndexFile], log_first: int, counts: dict[str, int]) -> None:
        """Begin with the first file that refers to no expired record. `counts` has the number of
        entries of files that a broker was filling, whose slots are not compared.
        """
        self._files = [it for it in files if it.header.begin_offset >= log_first]
        self._counts = counts
        self._begin_offset = self._files[0].header.begin_offset if self._files else 0
        self.proven: dict[str, int] = {}
        """The number of entries of each file that is right."""
        self._open()

    def _open(self) -> None:
        if self._files:
            shape = self._files[0].shape
            self._number = 1
            self._slots = zero_slots(shape.slot_count)
            self._dirty = bytearray(-(-shape.slot_count // PAGE_SLOTS))

    def feed(self, keys: Keys) -> None:
        """Compare the next keys of the log with the entries of the index."""
        start = 0
        if keys.count and keys.offset(0) < self._begin_offset:
            start = bisect_left(range(keys.count), self._begin_offset, key=keys.offset)
        try:
            while start < keys.count and self._files:
                start += self._feed(keys, start)
        except DiskError:
            self._files = []

    def _feed(self, keys: Keys, start: int) -> int:
        file, number = self._files[0], self._number
        count = min(keys.count - start, self._end(file) - number)
        if count <= 0:
            self._close()
            return 0
        entries, _ = keys.link(
            start, count, self._slots, self._dirty, PAGE_SLOTS, number,
            file.header.begin_timestamp,
        )  # fmt: skip
        if file.file.read(file.shape.entry_position(number), count * ENTRY.size) != entries:
            self._files = []  # nothing that follows is known to be in its place
            return 0
        self._number += count
        return count

    def _end(self, file: IndexFile) -> int:
        return max(file.header.next_number, self._counts.get(file.name, 0))

    def finish(self) -> None:
        """Close the last file, if all its entries were compared."""
        try:
            if self._files and self._number == self._end(self._files[0]):
                self._close()
        except DiskError:
            self._files = []

    def _close(self) -> None:
        file = self._files.pop(0)
        if file.name in self._counts or self._has_slots(file):
            self.proven[file.name] = self._number - 1
        self._open()

    def _has_slots(self, file: IndexFile) -> bool:
        """Return whether the slots of a file are those that its entries lead to."""
        for first in range(0, len(self._slots), SLOTS_COMPARED):
            values = array("i", self._slots[first : first + SLOTS_COMPARED])
            if sys.byteorder == "little":
                values.byteswap()
            at = file.shape.slot_position(first)
            if file.file.read(at, len(values) * SLOT_BYTES) != values.tobytes():
                return False
        return True
