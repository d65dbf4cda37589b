# SPDX-License-Identifier: Apache-2.0
"""Compare index files with the log.

An entry is right if the record at its offset has a key with its hash, its time is that of the
record, and it leads to the previous entry of its slot. An entry that was copied from another place
leads elsewhere. Keys may lack an entry, because indexing can be turned off, and may have several,
because a program that crashed may have indexed a record again.
"""

import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from errno import EIO
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from cometmq.remoting.message.flags import index_hash
from cometmq.remoting.message.properties import parse_properties
from cometmq.remoting.message.record import Scan
from cometmq.store.disk import DiskFile
from cometmq.store.errors import CorruptStore, DiskError
from cometmq.store.index.index import IndexView
from cometmq.store.index.index_file import IndexFile, IndexSnapshot
from cometmq.store.index.index_format import (
    ENTRY,
    HEADER,
    Entry,
    IndexHeader,
    IndexShape,
    seconds_between,
)
from cometmq.store.index.index_slots import PAGE_BYTES, SLOT_BYTES, SlotTable, zero_slots
from cometmq.store.log.checksums import Checksums
from cometmq.store.log.damage import DamagedRange
from cometmq.store.log.file_sequence import FileSequence
from cometmq.store.log.log_scanner import LogScanner
from cometmq.store.parts import no_pause
from cometmq.store.writing.append import ROLLBACK
from cometmq.store.writing.dispatcher import tag_and_keys

PART_COUNT: Final = 64
"""A walk pauses after this number of entries, which take 0.4 ms; see `Parts.pause`."""

UNPROVEN_BYTES: Final = 64 << 10
"""Damage within this distance may be the reason why no record begins at an offset."""

SLOTS_PER_READ: Final = 16 << 10
"""Number of slots that are compared between two pauses: 0.1 ms."""


NEAR_BYTES: Final = 16 << 10
"""Skipping records over this distance takes less time than looking up one record."""


class RecordKeys(NamedTuple):
    """What the index says about one record."""

    offset: int
    size: int
    timestamp: int
    keys: tuple[int, ...]
    """The hashes of its keys, in the order in which the index has them."""
    tag: int | None
    """The hash of its tag, which RocketMQ 5 adds behind the keys."""

    @property
    def hashes(self) -> tuple[int | None, ...]:
        """All hashes that an entry may have."""
        return (*self.keys, self.tag)


def keys_of(scan: Scan) -> RecordKeys:
    """Return what the index says about a record."""
    topic, place = scan.topic, (scan.physical_offset, scan.size, scan.store_timestamp)
    if scan.sys_flag & ROLLBACK == ROLLBACK:
        return RecordKeys(*place, (), None)
    _, keys = tag_and_keys(scan.properties)
    tag = None
    if b"TAGS" in scan.properties:
        tag = parse_properties(str(scan.properties, "utf-8", "replace")).get("TAGS")
    return RecordKeys(
        *place,
        tuple(index_hash(topic, key) for key in keys),
        index_hash(topic, f"T#{tag}") if tag else None,
    )


class KeyReader:
    """Finds one record after another; blocks.

    Records near the last one are scanned in large reads, the others looked up one by one.
    """

    def __init__(self, files: FileSequence, end: int) -> None:
        self.files = files
        self._end = end
        self._scans: Iterator[Scan] = iter(())
        self._last: RecordKeys | None = None

    def at(self, offset: int) -> RecordKeys | None:
        """Return the keys of the record at an offset; None if no readable record begins there."""
        last = self._last
        if last is None or last.offset != offset:
            try:
                scan = self._scanned(last, offset)
            except (CorruptStore, DiskError):
                scan = None
            self._last = last = None if scan is None else keys_of(scan)
        return last

    def _scanned(self, last: RecordKeys | None, offset: int) -> Scan | None:
        if not self.files.first <= offset < self._end:
            return None
        scan: Scan | None = None
        if last is not None and 0 < offset - last.offset <= NEAR_BYTES:
            scan = next((it for it in self._scans if it.physical_offset >= offset), None)
        if scan is None or scan.physical_offset != offset:
            self._scans = iter(
                LogScanner(self.files, offset, check_crc=False, end=self._end, first_bytes=0)
            )
            scan = next(self._scans, None)
        return scan if scan is not None and scan.physical_offset == offset else None


class Fault(NamedTuple):
    """One thing that is wrong in a file."""

    is_chain: bool
    """Whether an entry or a slot leads elsewhere than to the previous entry of its slot."""
    text: str


class FileCheck:
    """The comparison of one file, which may take many steps."""

    def __init__(self, shape: IndexShape, begin_timestamp: int) -> None:
        self.number = 1
        """The number of the next entry."""
        self.live_count = 0
        """The number of entries whose records have not expired."""
        self.first: tuple[Entry, RecordKeys | None] | None = None
        self.last: tuple[Entry, RecordKeys | None] | None = None
        self._begin_ms = begin_timestamp
        self._newest = zero_slots(shape.slot_count)

    def compare(
        self,
        entry: Entry,
        reader: KeyReader,
        is_unproven: Callable[[RecordKeys | None, int], bool] = lambda *_: False,
    ) -> Iterator[Fault]:
        """Compare the next entry. A record for which `is_unproven` may differ from its entry."""
        newest, number, slot = self._newest, self.number, entry[0] % len(self._newest)
        hash_, offset, seconds, previous = entry
        if previous != newest[slot]:
            yield Fault(True, f"entry {number} leads to {previous}, not to {newest[slot]}")
        newest[slot] = number
        self.number += 1
        keys = None
        if not 0 <= offset < reader.files.first or self.live_count:
            self.live_count += 1
            keys = reader.at(offset)
            is_right = keys is not None and hash_ in keys.hashes
            if not is_right and not is_unproven(keys, offset):
                text = f"entry {number} refers to offset {offset}, which has no such key"
                yield Fault(False, text)
            # RocketMQ's first entry refers to the last record of the previous file.
            if is_right and keys is not None and number > 1:
                right = seconds_between(self._begin_ms, keys.timestamp)
                if seconds != right and not is_unproven(keys, offset):
                    text = f"entry {number} has the time {seconds} s, its record {right} s"
                    yield Fault(False, text)
        self.last = entry, keys
        self.first = self.first or self.last

    def slots(self, read: Callable[[int, int], bytes], below: int) -> Iterator[Fault]:
        """Compare slots, which `read` returns in the order of memory. Those that lead to `below` or
        to a newer entry are not compared.
        """
        for start in range(0, len(self._newest), SLOTS_PER_READ):
            right = self._newest[start : start + SLOTS_PER_READ].tobytes()
            found = read(start, len(right))
            for slot, (value, newest) in _differing(found, right):
                if not self.number <= value < below:
                    yield Fault(True, f"slot {start + slot} leads to {value}, not to {newest}")

    def has_bounds(self, header: IndexHeader) -> bool:
        """Return whether a header has the bounds of the entries, as far as these are known."""
        if self.first is None or self.last is None:
            return True
        (first, first_keys), (last, last_keys) = self.first, self.last
        begin_ms = header.begin_timestamp if first_keys is None else first_keys.timestamp
        end_ms = header.end_timestamp if last_keys is None else last_keys.timestamp
        return (
            (header.begin_timestamp, header.begin_offset) == (begin_ms, first[1])
            # Recovery knows only the seconds of the last record.
            and end_ms - 1000 < header.end_timestamp <= end_ms
            and header.end_offset == last[1]
        )


def disk_slots(file: DiskFile, shape: IndexShape, start: int, size: int) -> bytes:
    """Return slots of a file in the order of memory; blocks."""
    values = array("i", file.read(shape.slot_position(start), size).ljust(size, b"\0"))
    if sys.byteorder == "little":
        values.byteswap()
    return values.tobytes()


def _differing(found: bytes, right: bytes) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield the slots that differ, with both values."""
    for start in range(0, len(right) if found != right else 0, PAGE_BYTES):
        values, wanted = found[start : start + PAGE_BYTES], right[start : start + PAGE_BYTES]
        if values != wanted:
            pairs = zip(memoryview(values).cast("i"), memoryview(wanted).cast("i"), strict=True)
            yield from (
                (slot, pair)
                for slot, pair in enumerate(pairs, start // SLOT_BYTES)
                if pair[0] != pair[1]
            )


class LogPart(NamedTuple):
    """The part of the log that a walk may use, as of the plan of its step."""

    files: FileSequence
    end: int
    """The end of the part that has checksums."""
    log_end: int
    checksums: Checksums

    def is_unproven(self, keys: RecordKeys | None, offset: int) -> bool:
        """Return whether the bytes of a record, or those where none begins, may be damaged."""
        size = UNPROVEN_BYTES if keys is None else keys.size
        part = DamagedRange(offset, min(offset + size, self.end))
        try:
            return part.start < part.end and bool(self.checksums.still_damaged(self.files, part))
        except DiskError:
            return True


Compared: TypeAlias = tuple[int, Sequence[tuple[IndexFile, str]]]
"""The number of entries that a step has compared, and the damaged files with what is wrong."""


class IndexWalk:
    """The walk through the index of one store; only one thread at a time uses it."""

    def __init__(self, pause: Callable[[], None] = no_pause) -> None:
        self._pause = pause
        self._check: tuple[str, FileCheck] | None = None
        self._passed_name = ""
        self._cut_count = 0
        self.has_ended = True
        """Whether all files have been compared."""

    def begin(self) -> None:
        """Begin with the first file."""
        self._check, self._passed_name, self.has_ended = None, "", False

    def step(self, index: IndexView, log: LogPart, count_max: int) -> Compared:
        """Compare about `count_max` entries; return their number, and the damaged files with what
        is wrong. Blocks.

        The first fault ends the comparison of a file.
        """
        if index.cut_count != self._cut_count:  # entries were removed; numbers are used again
            self._check, self._cut_count = None, index.cut_count
        reader = KeyReader(log.files, log.end)
        found: list[tuple[IndexFile, str]] = []
        count = 0
        while count < count_max and not self.has_ended:
            snapshot = next((it for it in index.files if it.file.name > self._passed_name), None)
            if snapshot is None:
                self._check, self.has_ended = None, True
                break
            name = snapshot.file.name
            if self._check is None or self._check[0] != name:
                check = FileCheck(snapshot.shape, snapshot.header.begin_timestamp)
                self._check = name, check
            check = self._check[1]
            before, most = check.number, min(PART_COUNT, count_max - count)
            try:
                fault = next(self._faults(check, snapshot, reader, log, most), None)
                is_done = check.number - before < most or check.number >= snapshot.end
            except DiskError as error:  # another one than EIO says nothing about the file
                fault = Fault(False, str(error)) if error.errno == EIO else None
                is_done = True
            count += check.number - before
            if fault is not None:
                found.append((snapshot.file, fault.text))
            if fault is not None or is_done:
                self._passed_name = name
            self._pause()
        return count, found

    def _faults(
        self,
        check: FileCheck,
        snapshot: IndexSnapshot,
        reader: KeyReader,
        log: LogPart,
        count_max: int,
    ) -> Iterator[Fault]:
        """Compare the next entries of a file, and at its end all slots and the header."""
        count = min(snapshot.end - check.number, count_max)
        for entry in read_entries(snapshot.disk_file, snapshot.shape, check.number, count):
            if log.end <= entry[1] < log.log_end:
                break  # its record has no checksum yet
            yield from check.compare(entry, reader, log.is_unproven)
            count -= 1
        else:
            if count:
                yield Fault(False, f"there is no entry {check.number}")
            if check.number < snapshot.end:
                return
        if snapshot.table is not None:
            yield from self._faults_of_growing(check, snapshot, snapshot.table)
        elif check.number >= snapshot.end:
            yield from check.slots(self._disk_slots(snapshot), below=0)
            header = disk_header(snapshot.disk_file)
            has_count = header.next_number == check.number and _is_last(snapshot, check.number - 1)
            if not has_count or not check.has_bounds(header):
                yield Fault(False, f"the header says {header}")

    def _faults_of_growing(
        self, check: FileCheck, snapshot: IndexSnapshot, table: SlotTable[IndexHeader]
    ) -> Iterator[Fault]:
        """Compare memory, as far as it was read from a disk, and the disk, if it is up to date."""
        if table.was_read:
            below = snapshot.file.header.next_number  # the loop adds keys
            yield from check.slots(partial(self._memory_slots, table), below)
        if snapshot.is_flushed:
            yield from check.slots(self._disk_slots(snapshot), below=1 << 31)
            header = disk_header(snapshot.disk_file)
            is_whole = check.number == header.next_number
            is_same = header == snapshot.header or snapshot.file.header != snapshot.header
            if not is_same or (is_whole and not check.has_bounds(header)):
                yield Fault(False, f"the header says {header}")

    def _memory_slots(self, table: SlotTable[IndexHeader], start: int, size: int) -> bytes:
        self._pause()
        return table.values[start : start + size // SLOT_BYTES].tobytes()

    def _disk_slots(self, snapshot: IndexSnapshot) -> Callable[[int, int], bytes]:
        def read(start: int, size: int) -> bytes:
            self._pause()
            return disk_slots(snapshot.disk_file, snapshot.shape, start, size)

        return read


def disk_header(file: DiskFile) -> IndexHeader:
    """Read the header of a file; blocks."""
    return IndexHeader(*HEADER.unpack(file.read(0, HEADER.size)))


def read_entries(file: DiskFile, shape: IndexShape, number: int, count: int) -> Sequence[Entry]:
    """Return up to `count` entries, fewer if the file has lost some; blocks."""
    data = file.read(shape.entry_position(number), count * ENTRY.size)
    return list(ENTRY.iter_unpack(data[: len(data) // ENTRY.size * ENTRY.size]))


def _is_last(snapshot: IndexSnapshot, number: int) -> bool:
    """Return whether no entry follows this one in its file."""
    shape = snapshot.shape
    behind = read_entries(snapshot.disk_file, shape, number + 1, number + 1 < shape.entry_count)
    return not any(map(any, behind))
