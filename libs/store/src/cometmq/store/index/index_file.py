# SPDX-License-Identifier: Apache-2.0
"""One file of the hash index, which maps keys to physical offsets.

Invariants: the file being filled keeps its slots in memory; new entries are kept in `_unwritten`
until they are written. Slots and header reach the disk after all entries they refer to, so
recovery can repair the file after any crash (`relinking.py`).
"""

import sys
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeAlias

from cometmq.remoting.types import Buffer
from cometmq.store.disk import DiskFile
from cometmq.store.errors import CorruptStore
from cometmq.store.index.index_format import ENTRY, HEADER, Entry, IndexHeader, IndexShape, Keys
from cometmq.store.index.index_slots import PAGE_SLOTS, SLOT_BYTES, SlotPages, SlotTable
from cometmq.store.index.relinking import relink
from cometmq.store.index.unwritten import UnwrittenEntries
from cometmq.store.reads import Lookup, Read

CLOCK_JUMP_MS: Final = 24 * 3_600_000
"""Searches tolerate times out of order by this much, because the clock may have been set back."""

Check: TypeAlias = Callable[[int], Lookup[bool]]
"""Examines the record at a physical offset; returns whether the search continues."""


class IndexFlush(NamedTuple):
    """The writes of one flush; their content never changes, so a worker thread can make them."""

    file: DiskFile
    shape: IndexShape
    first_number: int
    end_number: int
    entries: tuple[Buffer, ...]
    slots: list[SlotPages]
    header: IndexHeader | None

    def write_entries(self) -> None:
        """Write the entries without syncing them."""
        if self.entries:
            self.file.write(self.shape.entry_position(self.first_number), self.entries)

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


class IndexSnapshot(NamedTuple):
    """The state of a file, for a job that compares its bytes."""

    file: "IndexFile"
    disk_file: DiskFile
    shape: IndexShape
    header: IndexHeader
    end: int
    """The number of the first entry that is not on the disk."""
    table: SlotTable[IndexHeader] | None
    """The slots of a file that grows; the loop changes them."""
    is_flushed: bool
    """Whether slots and header on the disk are those in memory."""


class IndexFile:
    """One index file; only the newest one grows."""

    __slots__ = (
        "_has_begin",
        "_slots",
        "_unwritten",
        "fault",
        "file",
        "flushed_count",
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
        self._unwritten = UnwrittenEntries()
        self.flushed_count = header.next_number
        """The number of entries that the header on the disk counts; 0 if slots or header on the
        disk must be written in any case.
        """
        self._has_begin = False  # whether the header on the disk has the begin timestamp
        self.fault = ""
        """What is wrong in the file, if it must be rebuilt."""

    @classmethod
    def load(cls, name: str, file: DiskFile, shape: IndexShape) -> "IndexFile":
        """Return a read-only index file, whose header is read from the disk; raise CorruptStore for
        a wrong size.
        """
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
        return self.header.next_number - self._unwritten.count

    @property
    def unwritten_bytes(self) -> int:
        """The size of the entries that exist only in memory."""
        return self._unwritten.size_bytes

    @property
    def unflushed_count(self) -> int:
        """The number of entries that the header on the disk does not count."""
        return self.header.next_number - self.flushed_count

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
        self._unwritten.add(entries)
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
            slots, header = table.take_all(), self.header
        elif not self._has_begin:
            # Entry times are relative to the begin timestamp, which must reach the disk first.
            header = self.header._replace(used_slot_count=0, next_number=1)
        else:
            if not table.is_sweeping:
                table.begin_sweep(self.header)
            slots, header = table.step()
        return self._flush(slots, header)

    def plan_spill(self) -> IndexFlush:
        """Plan to write the entries without syncing them; a later flush syncs them and updates the
        header.
        """
        return self._flush([], None)

    def _flush(self, slots: list[SlotPages], header: IndexHeader | None) -> IndexFlush:
        first, end = self.written_count, self.header.next_number
        entries = self._unwritten.pieces()
        return IndexFlush(self.file, self.shape, first, end, entries, slots, header)

    def write_oldest(self, size_bytes: int) -> int:
        """Write at least `size_bytes` of the oldest unwritten entries, or all; return the number of
        bytes released from memory. A later flush syncs them and updates the header.

        A running flush may write the same entries once more.
        """
        pieces = self._unwritten.pieces(size_bytes)
        self.file.write(self.shape.entry_position(self.written_count), pieces)
        size = sum(map(len, pieces))
        self._unwritten.release(size)
        return size

    def mark_flushed(self, flush: IndexFlush) -> None:
        """Release the entries that a flush has written."""
        self._unwritten.release((flush.end_number - self.written_count) * ENTRY.size)
        if flush.header is not None:
            self.flushed_count = flush.header.next_number
            self._has_begin = True

    def mark_failed(self, flush: IndexFlush) -> None:
        """Mark the slots of a failed flush as dirty again."""
        if self._slots is not None:
            self._slots.give_back(flush.slots)

    def rest(self) -> None:
        """Stop growing, and free the slots in memory; the file on the disk has them, too."""
        assert not self._unwritten.size_bytes
        self._slots = None

    def recover(self, *, written_count: int, offset_end: int, was_clean: bool) -> None:
        """Resume growing, with only the entries of records before `offset_end`; see `relink`."""
        self._slots, header = relink(
            self.file, self.shape, self.header,
            written_count=written_count, offset_end=offset_end, was_clean=was_clean,
        )  # fmt: skip
        if header.next_number < self.header.next_number or not self._slots.is_clean:
            self.flushed_count = 0  # the disk counts too many entries, or has wrong slots
        self.header = header

    def snapshot(self) -> IndexSnapshot:
        """Return the present state, for a job that compares the file with the log."""
        table = self._slots
        is_flushed = not self.unflushed_count and (table is None or table.is_clean)
        end = self.written_count
        return IndexSnapshot(self, self.file, self.shape, self.header, end, table, is_flushed)

    def _entry(self, number: int) -> Lookup[Entry]:
        written = self.written_count
        if number >= written:
            return self._unwritten.entry(number - written)
        data = yield Read(self.file, self.shape.entry_position(number), ENTRY.size)
        return ENTRY.unpack(data)

    def all_entries(self, known: int = 0) -> Iterator[tuple[int, Entry]]:
        """Yield the number and fields of every entry of a file that does not grow.

        `known` is the number of the next entry according to the checkpoint; it may exceed the
        header's.
        """
        end = max(self.header.next_number, min(known, self.shape.entry_count))
        return self.shape.entries(self.file, 1, end)

    def visit(self, hash_: int, begin_ms: int, end_ms: int, check: Check) -> Lookup[bool]:
        """Check the records of the entries with this hash, newest first.

        Return whether the search continues in older files. Entries store whole seconds, so a
        candidate may be out of range by up to a second.
        """
        header, slot_count = self.header, self.shape.slot_count
        slot, limit = hash_ % slot_count, header.next_number
        number = yield from self.newest(slot)
        if not 0 <= number < limit:
            self.fault = f"slot {slot} leads to {number}"
        while 0 < number < limit:
            entry_hash, offset, seconds, previous = yield from self._entry(number)
            is_right = entry_hash % slot_count == slot and 0 <= previous < number and seconds >= 0
            if not is_right:
                self.fault = f"entry {number} does not belong to slot {slot}"
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

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """Return whether the file may hold messages from this period.

        After recovery the file's bounds are whole seconds. The bounds are the times of the first
        and of the last entry, so entries from before a jump of the clock may be outside of them.
        """
        header = self.header
        first_ms, last_ms = header.begin_timestamp, header.end_timestamp + 999
        return first_ms - CLOCK_JUMP_MS <= end_ms and begin_ms <= last_ms + CLOCK_JUMP_MS
