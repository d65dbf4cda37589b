# SPDX-License-Identifier: Apache-2.0
"""One file of the hash index: from keys to physical offsets.

Layout (docs/protocol/store.md#index): header of 40 bytes, then the slots (int32: number of the
newest entry, 0 = none), then the entries (int32 hash, int64 physical offset, int32 seconds since
the file's first message, int32 number of the entry before it in the same slot). Entry 0 is never
used, so the header holds the next free number.

Invariants: the file that grows has its slots in memory; its new entries are in `_unwritten`
until they are appended. Slots and header reach the disk after all entries that they speak of, so
that a crash can be undone: entries that the header does not count are linked again, and a slot
that points at an entry which does not count leads, through the entries, to one that does.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from cometmq.store.disk import DiskFile
from cometmq.store.errors import CorruptStore
from cometmq.store.index_slots import PAGE_SLOTS, SLOT_BYTES, SlotPages, SlotTable
from cometmq.store.reads import Lookup, Read

HEADER: Final = struct.Struct(">qqqqii")
ENTRY: Final = struct.Struct(">iqii")
SECONDS_MAX: Final = 0x7FFFFFFF

KeyedRecord: TypeAlias = tuple[str, str, int, int]
"""What the index needs: topic, key, physical offset, store timestamp; one for each key."""

Check: TypeAlias = Callable[[int], Lookup[bool]]
"""Looks at the record at a physical offset and says whether the search goes on."""

_pack_entry = ENTRY.pack


class IndexShape(NamedTuple):
    """How many slots and entries each file has."""

    slot_count: int
    entry_count: int

    @property
    def file_size(self) -> int:
        """Bytes of a whole file."""
        return self.entry_position(self.entry_count)

    def slot_position(self, slot: int) -> int:
        """Return where a slot is in the file."""
        return HEADER.size + slot * SLOT_BYTES

    def entry_position(self, number: int) -> int:
        """Return where an entry is in the file."""
        return HEADER.size + self.slot_count * SLOT_BYTES + number * ENTRY.size


class IndexHeader(NamedTuple):
    """What the first 40 bytes say."""

    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    used_slot_count: int = 0
    next_number: int = 1


class IndexFlush(NamedTuple):
    """What to write, fixed at one moment; a worker thread runs it."""

    file: DiskFile
    shape: IndexShape
    first_number: int
    entries: bytes
    slots: list[SlotPages]
    header: IndexHeader | None

    def run(self) -> None:
        """Write and sync the entries, then the slots and the header."""
        if self.entries:
            self.file.write(self.shape.entry_position(self.first_number), [self.entries])
        self.file.sync()
        for pages in self.slots:
            pages.write(self.file, self.shape.slot_position(0))
        if self.header is not None:
            if self.slots:
                self.file.sync()
            self.file.write(0, [HEADER.pack(*self.header)])
        if self.slots or self.header is not None:
            self.file.sync()


def _seconds(timestamp: int, begin: int) -> int:
    """Return what an entry says of its time."""
    return min(max(0, (timestamp - begin) // 1000), SECONDS_MAX) if begin > 0 else 0


class IndexFile:
    """One index file; the newest one grows."""

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
        """Be a file that only answers look-ups; `begin` and `recover` make it grow."""
        self.name = name
        self.file = file
        self.shape = shape
        self.header = header
        self._slots: SlotTable[IndexHeader] | None = None
        self._unwritten = bytearray()
        self._flushed_count = header.next_number  # entries that the file's header counts
        self._has_begin = False  # whether the file's header says when it begins

    @classmethod
    def load(cls, name: str, file: DiskFile, shape: IndexShape) -> "IndexFile":
        """Read the header of a file."""
        if file.size() != shape.file_size:
            raise CorruptStore(
                f"{file.path} has {file.size()} bytes, but maxHashSlotNum={shape.slot_count} and"
                f" maxIndexNum={shape.entry_count} make {shape.file_size}"
            )
        header = IndexHeader(*HEADER.unpack(file.read(0, HEADER.size)))
        count = min(max(header.next_number, 1), shape.entry_count)
        index_file = cls(name, file, shape, header._replace(next_number=count))
        index_file._has_begin = header.begin_timestamp > 0
        return index_file

    @property
    def is_full(self) -> bool:
        """Whether no entry fits any more."""
        return self.header.next_number >= self.shape.entry_count

    @property
    def is_growing(self) -> bool:
        """Whether its slots are in memory."""
        return self._slots is not None

    def begins_at_or_after(self, offset: int) -> bool:
        """Whether no entry can be of a record before this offset."""
        return not self._has_begin or self.header.begin_offset >= offset

    @property
    def written_count(self) -> int:
        """The first entry number that is only in memory."""
        return self.header.next_number - len(self._unwritten) // ENTRY.size

    @property
    def unflushed_count(self) -> int:
        """Entries that the file's header does not count."""
        return self.header.next_number - self._flushed_count

    def begin(self) -> None:
        """Start to grow as a new, empty file."""
        self._slots = SlotTable(self.shape.slot_count)

    def add(self, hashes: list[int], rows: Sequence[KeyedRecord]) -> int:
        """Add entries in the order of the log as far as they fit; return how many did."""
        table, header = self._slots, self.header
        assert table is not None
        slots = table.values
        number, used, begin = header.next_number, header.used_slot_count, header.begin_timestamp
        count = min(len(hashes), self.shape.entry_count - number)
        if count <= 0:
            return 0
        if number == 1:
            _, _, offset, begin = rows[0]
            header = header._replace(begin_timestamp=begin, begin_offset=offset)
        slot_count = self.shape.slot_count
        mark_dirty = table.dirty_pages.add
        entries: list[bytes] = []
        seconds, seconds_of = 0, -1
        for hash_, (_, _, offset, timestamp) in zip(hashes, rows[:count], strict=False):
            if timestamp != seconds_of:
                seconds, seconds_of = _seconds(timestamp, begin), timestamp
            slot = hash_ % slot_count
            previous = slots[slot]
            entries.append(_pack_entry(hash_, offset, seconds, previous))
            slots[slot] = number
            mark_dirty(slot // PAGE_SLOTS)
            if not previous:
                used += 1
            number += 1
        self._unwritten += b"".join(entries)
        _, _, end_offset, end_timestamp = rows[count - 1]
        self.header = header._replace(
            end_timestamp=end_timestamp,
            end_offset=end_offset,
            used_slot_count=used,
            next_number=number,
        )
        return count

    def plan_flush(self, *, is_complete: bool) -> IndexFlush:
        """Say what to write so that the disk has all entries.

        `is_complete` adds all slots and the header; otherwise they follow in small steps.
        """
        table = self._slots
        assert table is not None
        slots: list[SlotPages] = []
        header: IndexHeader | None = None
        if is_complete:
            slots, header = table.copy_all(), self.header
        elif not self._has_begin:
            header = self.header._replace(used_slot_count=0, next_number=1)
        else:
            if not table.is_sweeping:
                table.begin_sweep(self.header)
            slots, header = table.step()
        entries = bytes(self._unwritten)
        return IndexFlush(self.file, self.shape, self.written_count, entries, slots, header)

    def mark_flushed(self, flush: IndexFlush) -> None:
        """Forget what a flush has written."""
        end = flush.first_number + len(flush.entries) // ENTRY.size
        del self._unwritten[: (end - self.written_count) * ENTRY.size]
        if flush.header is not None:
            self._flushed_count = flush.header.next_number
            self._has_begin = True

    def mark_failed(self, flush: IndexFlush) -> None:
        """Remember that slots of a flush may not be on the disk."""
        if self._slots is not None:
            self._slots.give_back(flush.slots)

    def rest(self) -> None:
        """Stop growing: free the slots, which the file has now."""
        assert not self._unwritten
        self._slots = None

    def recover(self, *, written_count: int, offset_end: int, was_clean: bool) -> None:
        """Grow again, with the entries of records before `offset_end` only.

        `written_count` is how many entries the file is known to have, which may be more than
        its header says: they are linked again without a look at the log. After a crash slots
        may lead to entries that neither of the two counts.
        """
        old = self.header
        known = max(old.next_number, min(written_count, self.shape.entry_count))
        count = self._count_before(offset_end, known)
        data = self.file.read(HEADER.size, self.shape.slot_count * SLOT_BYTES)
        table: SlotTable[IndexHeader] = SlotTable(self.shape.slot_count, data)
        self._slots = table
        used = old.used_slot_count + self._link(table, min(old.next_number, count), count)
        if not was_clean or not count == old.next_number == written_count:
            self._unlink(table, count)
        if count < old.next_number:
            self._flushed_count = 0  # the file's header counts too many
            used = sum(map(bool, table.values))
        self._rewrite_header(count, used)

    def _count_before(self, offset_end: int, known: int) -> int:
        """Count the leading entries that are valid and of records before an offset."""
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
        """Make the slots point at entries that the file has but its header does not count.

        Return how many of these were the first of their slot.
        """
        slots, mark_dirty = table.values, table.dirty_pages.add
        slot_count = self.shape.slot_count
        first_count = 0
        for number, (hash_, _, _, previous) in self._entries(start, count):
            slot = hash_ % slot_count
            slots[slot] = number
            mark_dirty(slot // PAGE_SLOTS)
            first_count += not previous
        return first_count

    def _unlink(self, table: SlotTable[IndexHeader], count: int) -> None:
        """Lead slots that point at or beyond `count` back to the entry before it."""
        slots, entry_count = table.values, self.shape.entry_count
        if max(slots) < count:
            return
        for slot, newest in enumerate(slots):
            if newest < count:
                continue
            number = newest
            for _ in range(entry_count):
                if number < count:
                    break
                number = self._file_entry(number)[3] if number < entry_count else 0
            slots[slot] = number
            table.dirty_pages.add(slot // PAGE_SLOTS)

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
        """Yield written entries with their numbers, some thousand per read."""
        step = 16384
        for first in range(start, end, step):
            last = min(first + step, end)
            data = self.file.read(self.shape.entry_position(first), (last - first) * ENTRY.size)
            yield from enumerate(ENTRY.iter_unpack(data), first)

    def all_entries(self, known: int = 0) -> Iterator[tuple[int, tuple[int, int, int, int]]]:
        """Yield number and fields of every entry of a file that does not grow.

        `known` is the next entry number by the checkpoint, which may be ahead of the header.
        """
        return self._entries(1, max(self.header.next_number, min(known, self.shape.entry_count)))

    def visit(self, hash_: int, begin_ms: int, end_ms: int, check: Check) -> Lookup[bool]:
        """Have the records of entries with this hash checked, newest first.

        Return whether the search goes on with older files. Entries know whole seconds only, so
        a candidate may be up to a second out of range.
        """
        header = self.header
        number = yield from self.newest(hash_ % self.shape.slot_count)
        limit = header.next_number
        while 0 < number < limit:
            entry_hash, offset, seconds, previous = yield from self._entry(number)
            stored_ms = header.begin_timestamp + seconds * 1000
            if seconds < 0 or stored_ms + 999 < begin_ms:
                return True
            if entry_hash == hash_ and stored_ms <= end_ms and not (yield from check(offset)):
                return False
            limit = number  # an entry only ever points at older ones
            number = previous
        return True

    def newest(self, slot: int) -> Lookup[int]:
        """Find the number of a slot's newest entry."""
        if self._slots is not None:
            return self._slots.values[slot]
        data = yield Read(self.file, self.shape.slot_position(slot), SLOT_BYTES)
        return int.from_bytes(data, "big", signed=True)

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """Whether the file may have messages of this time; a recovery knows whole seconds only."""
        header = self.header
        return header.begin_timestamp <= end_ms and begin_ms <= header.end_timestamp + 999
