# SPDX-License-Identifier: Apache-2.0
"""One file of the hash index, which maps keys to physical offsets.

Layout (docs/protocol/store.md#index): header of 40 bytes, then the slots (int32: number of the
newest entry, 0 = none), then the entries (int32 hash, int64 physical offset, int32 seconds since
the file's first message, int32 number of the previous entry in the same slot). Entry 0 is never
used, so the header holds the next free number.

Invariants: the file being filled keeps its slots in memory; new entries are kept in `_unwritten`
until they are appended. Slots and header reach the disk after all entries they refer to, so
recovery can repair the file after any crash. Recovery relinks the entries that the header does not
count, and a slot that points at an uncounted entry leads through the chain to a counted one.
"""

import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias

from cometmq.store.disk import DiskFile
from cometmq.store.errors import CorruptStore
from cometmq.store.index.index_slots import PAGE_SLOTS, SLOT_BYTES, SlotPages, SlotTable
from cometmq.store.index.keys import ENTRY, Keys
from cometmq.store.reads import Lookup, Read

HEADER: Final = struct.Struct(">qqqqii")
CLOCK_JUMP_MS: Final = 24 * 3_600_000
"""Searches tolerate times out of order by this much, because the clock may have been set back."""

Check: TypeAlias = Callable[[int], Lookup[bool]]
"""Examines the record at a physical offset; returns whether the search continues."""


class IndexShape(NamedTuple):
    """The number of slots and entries per file."""

    slot_count: int
    entry_count: int

    @property
    def file_size(self) -> int:
        """The size of a complete file in bytes."""
        return self.entry_position(self.entry_count)

    def slot_position(self, slot: int) -> int:
        """Return the position of a slot in the file."""
        return HEADER.size + slot * SLOT_BYTES

    def entry_position(self, number: int) -> int:
        """Return the position of an entry in the file."""
        return HEADER.size + self.slot_count * SLOT_BYTES + number * ENTRY.size


class IndexHeader(NamedTuple):
    """The fields of the 40-byte header."""

    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    used_slot_count: int = 0
    next_number: int = 1


class IndexFlush(NamedTuple):
    """The writes of one flush, as copies that a worker thread can write."""

    file: DiskFile
    shape: IndexShape
    first_number: int
    entries: bytes
    slots: list[SlotPages]
    header: IndexHeader | None

    def write_entries(self) -> None:
        """Write the entries without syncing them."""
        if self.entries:
            self.file.write(self.shape.entry_position(self.first_number), [self.entries])

    def run(self) -> None:
        """Write and sync the entries, then the slots and the header."""
        self.write_entries()
        self.file.sync()
        for pages in self.slots:
            pages.write(self.file, self.shape.slot_position(0))
        if self.header is not None:
            if self.slots:
                self.file.sync()
            self.file.write(0, [HEADER.pack(*self.header)])
        if self.slots or self.header is not None:
            self.file.sync()


class IndexFile:
    """One index file; only the newest one grows."""

    __slots__ = (
        "_flushed_count",
        "_has_begin",
        "_slots",
        "_unwritten",
        "file",
        "header",
        "name",
        "shape",
    )

    def __init__(self, name: str, file: DiskFile, shape: IndexShape, header: IndexHeader) -> None:
        """Create a read-only file; `begin` and `recover` make it grow."""
        self.name = name
        self.file = file
        self.shape = shape
        self.header = header
        self._slots: SlotTable[IndexHeader] | None = None
        self._unwritten = bytearray()
        self._flushed_count = header.next_number  # entries that the header on the disk counts
        self._has_begin = False  # whether the header on the disk has the begin timestamp

    @classmethod
    def load(cls, name: str, file: DiskFile, shape: IndexShape) -> "IndexFile":
        """Read the header of a file, and return a read-only index file."""
        if file.size() != shape.file_size:
            raise CorruptStore(
                f"{file.path} has {file.size()} bytes, but maxHashSlotNum={shape.slot_count} and"
                f" maxIndexNum={shape.entry_count} require {shape.file_size}"
            )
        header = IndexHeader(*HEADER.unpack(file.read(0, HEADER.size)))
        count = min(max(header.next_number, 1), shape.entry_count)
        index_file = cls(name, file, shape, header._replace(next_number=count))
        index_file._has_begin = header.begin_timestamp > 0
        return index_file

    @property
    def is_full(self) -> bool:
        """Whether no further entry fits."""
        return self.header.next_number >= self.shape.entry_count

    @property
    def is_growing(self) -> bool:
        """Whether the file's slots are in memory."""
        return self._slots is not None

    def begins_at_or_after(self, offset: int) -> bool:
        """Return whether all entries refer to records at or after this offset."""
        return not self._has_begin or self.header.begin_offset >= offset

    @property
    def written_count(self) -> int:
        """The number of the first entry that exists only in memory."""
        return self.header.next_number - len(self._unwritten) // ENTRY.size

    @property
    def unflushed_count(self) -> int:
        """The number of entries that the header on the disk does not count."""
        return self.header.next_number - self._flushed_count

    def begin(self) -> None:
        """Start growing as a new, empty file."""
        self._slots = SlotTable(self.shape.slot_count)

    def add(self, keys: Keys, start: int, count_max: int = sys.maxsize) -> int:
        """Add up to `count_max` keys from `start` on while they fit; return the number added."""
        table, header = self._slots, self.header
        assert table is not None
        number, begin = header.next_number, header.begin_timestamp
        count = min(keys.count - start, self.shape.entry_count - number, count_max)
        if count <= 0:
            return 0
        if number == 1:
            begin = keys.timestamp(start)
            header = header._replace(begin_timestamp=begin, begin_offset=keys.offset(start))
        entries, used = keys.link(
            start, count, table.values, table.dirty, PAGE_SLOTS, number, begin
        )
        self._unwritten += entries
        last = start + count - 1
        self.header = header._replace(
            end_timestamp=keys.timestamp(last),
            end_offset=keys.offset(last),
            used_slot_count=header.used_slot_count + used,
            next_number=number + count,
        )
        return count

    def plan_flush(self, *, is_complete: bool) -> IndexFlush:
        """Plan the writes that bring all entries to the disk.

        If `is_complete`, the plan includes all slots and the header. Otherwise it includes only the
        next few slot pages; the header follows with the last of them.
        """
        table = self._slots
        assert table is not None
        slots: list[SlotPages] = []
        header: IndexHeader | None = None
        if is_complete:
            slots, header = table.copy_all(), self.header
        elif not self._has_begin:
            # Entry times are relative to the begin timestamp, which must reach the disk first.
            header = self.header._replace(used_slot_count=0, next_number=1)
        else:
            if not table.is_sweeping:
                table.begin_sweep(self.header)
            slots, header = table.step()
        return self._flush(slots, header)

    def plan_spill(self) -> IndexFlush:
        """Plan the write of the entries alone; a later flush syncs and counts them."""
        return self._flush([], None)

    def _flush(self, slots: list[SlotPages], header: IndexHeader | None) -> IndexFlush:
        entries = bytes(self._unwritten)
        return IndexFlush(self.file, self.shape, self.written_count, entries, slots, header)

    def mark_flushed(self, flush: IndexFlush) -> None:
        """Release the entries that a flush has written."""
        end = flush.first_number + len(flush.entries) // ENTRY.size
        del self._unwritten[: (end - self.written_count) * ENTRY.size]
        if flush.header is not None:
            self._flushed_count = flush.header.next_number
            self._has_begin = True

    def mark_failed(self, flush: IndexFlush) -> None:
        """Mark the slots of a failed flush as dirty again."""
        if self._slots is not None:
            self._slots.give_back(flush.slots)

    def rest(self) -> None:
        """Stop growing and free the slots, which the file now contains."""
        assert not self._unwritten
        self._slots = None

    def recover(self, *, written_count: int, offset_end: int, was_clean: bool) -> None:
        """Resume growing, with only the entries of records before `offset_end`.

        `written_count` is the number of entries known to be in the file. It may exceed the header's
        count; such entries are relinked without reading the log. After a crash, slots may point at
        entries that neither count includes.
        """
        old = self.header
        known = max(old.next_number, min(written_count, self.shape.entry_count))
        count = self._count_before(offset_end, known)
        data = self.file.read(HEADER.size, self.shape.slot_count * SLOT_BYTES)
        table: SlotTable[IndexHeader] = SlotTable(self.shape.slot_count, data)
        self._slots = table
        used = old.used_slot_count + self._link(table, min(old.next_number, count), count)
        # Scanning five million slots takes time; after a clean stop no slot can be wrong.
        if not was_clean or not count == old.next_number == written_count:
            self._unlink(table, count)
        if count < old.next_number:
            self._flushed_count = 0  # the header on the disk counts too many entries
            used = sum(map(bool, table.values))
        self._rewrite_header(count, used)

    def _count_before(self, offset_end: int, known: int) -> int:
        """Count the leading entries that are valid and refer to records before this offset."""
        low, high = 1, known
        while low < high:
            middle = (low + high) // 2
            _, offset, seconds, previous = self._file_entry(middle)
            if offset < offset_end and seconds >= 0 and 0 <= previous < middle:
                low = middle + 1
            else:
                high = middle
        return low

    def _link(self, table: SlotTable[IndexHeader], start: int, count: int) -> int:
        """Link entries that are in the file but not counted by its header.

        Return how many of these entries were the first of their slot.
        """
        slots, dirty = table.values, table.dirty
        slot_count = self.shape.slot_count
        first_count = 0
        for number, (hash_, _, _, previous) in self._entries(start, count):
            slot = hash_ % slot_count
            slots[slot] = number
            dirty[slot // PAGE_SLOTS] = 1
            first_count += not previous
        return first_count

    def _unlink(self, table: SlotTable[IndexHeader], count: int) -> None:
        """Reset each slot that points at or beyond `count` to an earlier entry of its chain."""
        slots, entry_count = table.values, self.shape.entry_count
        if max(slots) < count:
            return
        for slot, newest in enumerate(slots):
            if newest < count:
                continue
            number = newest
            # The bound ends a chain that damage has turned into a cycle.
            for _ in range(entry_count):
                if number < count:
                    break
                number = self._file_entry(number)[3] if number < entry_count else 0
            slots[slot] = number
            table.dirty[slot // PAGE_SLOTS] = 1

    def _rewrite_header(self, count: int, used: int) -> None:
        old = self.header
        if count == old.next_number:
            return
        if count <= 1:
            self.header = old._replace(next_number=1, used_slot_count=0)
            return
        _, begin_offset, _, _ = self._file_entry(1)
        _, end_offset, seconds, _ = self._file_entry(count - 1)
        end_timestamp = old.begin_timestamp + seconds * 1000
        self.header = IndexHeader(
            old.begin_timestamp, end_timestamp, begin_offset, end_offset, used, count
        )

    def _entry(self, number: int) -> Lookup[tuple[int, int, int, int]]:
        written = self.written_count
        if number >= written:
            return ENTRY.unpack_from(self._unwritten, (number - written) * ENTRY.size)
        data = yield Read(self.file, self.shape.entry_position(number), ENTRY.size)
        return ENTRY.unpack(data)

    def _file_entry(self, number: int) -> tuple[int, int, int, int]:
        data = self.file.read(self.shape.entry_position(number), ENTRY.size)
        return ENTRY.unpack(data)

    def _entries(self, start: int, end: int) -> Iterator[tuple[int, tuple[int, int, int, int]]]:
        """Yield written entries with their numbers, reading a few thousand at a time."""
        step = 16384
        for first in range(start, end, step):
            last = min(first + step, end)
            data = self.file.read(self.shape.entry_position(first), (last - first) * ENTRY.size)
            yield from enumerate(ENTRY.iter_unpack(data), first)

    def all_entries(self, known: int = 0) -> Iterator[tuple[int, tuple[int, int, int, int]]]:
        """Yield the number and fields of every entry of a file that does not grow.

        `known` is the next entry number according to the checkpoint, which may be ahead of the
        header.
        """
        return self._entries(1, max(self.header.next_number, min(known, self.shape.entry_count)))

    def visit(self, hash_: int, begin_ms: int, end_ms: int, check: Check) -> Lookup[bool]:
        """Check the records of the entries with this hash, newest first.

        Return whether the search continues in older files. Entries store whole seconds, so a
        candidate may be out of range by up to a second.
        """
        header = self.header
        number = yield from self.newest(hash_ % self.shape.slot_count)
        limit = header.next_number
        while 0 < number < limit:
            entry_hash, offset, seconds, previous = yield from self._entry(number)
            # Times before the file's begin, as after the clock was set back, are stored as 0.
            stored_ms = header.begin_timestamp + seconds * 1000
            if seconds < 0 or stored_ms + 999 + CLOCK_JUMP_MS < begin_ms:
                return True
            is_candidate = begin_ms <= stored_ms + 999 and (stored_ms <= end_ms or not seconds)
            if entry_hash == hash_ and is_candidate and not (yield from check(offset)):
                return False
            limit = number  # a chain only leads to older entries
            number = previous
        return True

    def newest(self, slot: int) -> Lookup[int]:
        """Find the number of the newest entry in a slot."""
        if self._slots is not None:
            return self._slots.values[slot]
        data = yield Read(self.file, self.shape.slot_position(slot), SLOT_BYTES)
        return int.from_bytes(data, "big", signed=True)

    def newest_of(self, slots: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Yield each slot with the number of its newest entry, in the order of the file; blocks."""
        page, data = -1, b""
        for slot in sorted(slots):
            if self._slots is not None:
                yield slot, self._slots.values[slot]
                continue
            if page != slot // PAGE_SLOTS:
                page = slot // PAGE_SLOTS
                position = self.shape.slot_position(page * PAGE_SLOTS)
                data = self.file.read(position, PAGE_SLOTS * SLOT_BYTES)
            start = slot % PAGE_SLOTS * SLOT_BYTES
            yield slot, int.from_bytes(data[start : start + SLOT_BYTES], "big", signed=True)

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """Return whether the file may hold messages from this period.

        After recovery the file's bounds are whole seconds. The bounds are the times of the first
        and of the last entry, so entries from before a jump of the clock may be outside of them.
        """
        header = self.header
        first_ms, last_ms = header.begin_timestamp, header.end_timestamp + 999
        return first_ms - CLOCK_JUMP_MS <= end_ms and begin_ms <= last_ms + CLOCK_JUMP_MS
