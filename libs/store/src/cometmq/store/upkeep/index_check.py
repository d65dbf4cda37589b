# SPDX-License-Identifier: Apache-2.0
"""Compare index files with the log, and repair the entries, slots and headers that changed on disk.

Readers rarely notice such damage: a slot of zeros looks like a key that no message has. The walk
therefore reads the entries of all files in order, and the keys of the log's records in order
(`index_matching.py`). Entries and slots are written again in place. The walk does not sync them,
for the reason given in `entry_repair.py`. It uses no record of the log that its checksum does not
prove.
"""

import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import ne
from typing import Final, NamedTuple

from cometmq.store.disk import DiskFile
from cometmq.store.errors import DiskError
from cometmq.store.index.index import IndexView
from cometmq.store.index.index_file import IndexFile, IndexSnapshot
from cometmq.store.index.index_format import HEADER, Entry, IndexHeader
from cometmq.store.index.index_slots import PAGE_BYTES, PAGE_SLOTS, SlotTable, zero_slots
from cometmq.store.index.keys import ENTRY, seconds_between
from cometmq.store.index.mending import Mending
from cometmq.store.log.checksums import Checksums
from cometmq.store.log.damage import DamagedRange, merged
from cometmq.store.log.file_sequence import FileSequence
from cometmq.store.parts import no_pause
from cometmq.store.upkeep.index_matching import Matching
from cometmq.store.upkeep.log_keys import KeyRow, LogKeys

PART_COUNT: Final = 1_000
"""Number of entries that are read and compared at once. Blocks of entries that stand in wrong
places are recognised up to this size.
"""

SLOTS_PER_READ: Final = 16 << 10
"""Number of slots that are compared between two pauses: 0.1 ms, or 1 ms if all pages differ."""
SAMPLE_COUNT_MIN: Final = 3
"""Number of entries that show the begin time of a file whose first record has expired."""


class IndexFault(NamedTuple):
    """What was wrong in a part of a file; the disk has been repaired."""

    file: IndexFile
    entry_count: int = 0
    slot_count: int = 0
    header: IndexHeader | None = None
    """The right header, if it was wrong."""
    mending: Mending | None = None
    """For a file that grows: what the loop has to repair."""
    error: DiskError | None = None
    """Why the file could not be compared or repaired."""


class Stale(Exception):
    """Records were removed from the log since the step was planned."""


class Proofs(NamedTuple):
    """The checksums of the log, as of the plan of a step."""

    checksums: Checksums
    generation: int

    def write(self, file: DiskFile, position: int, data: bytes) -> None:
        """Repair bytes of an index file; raise Stale if they may belong to other entries now."""
        if not self.checksums.write_if_current(self.generation, file, position, data):
            raise Stale


class FileCheck:
    """The comparison of one file, which may take many steps."""

    def __init__(self, snapshot: IndexSnapshot, before_ms: int, pause: Callable[[], None]) -> None:
        """`before_ms` is the time of the last record in the previous file."""
        self.name = snapshot.file.name
        self.number = 1
        self._before_ms = before_ms
        self._pause = pause
        self._newest = zero_slots(snapshot.shape.slot_count)
        self._begin_ms: int | None = None
        self._first: KeyRow | None = None
        self._last: KeyRow | None = None
        self._matching = Matching()

    def compare(self, snapshot: IndexSnapshot, keys: LogKeys, proofs: Proofs) -> tuple[int, int]:
        """Compare the next entries, and repair them; return their number and that of wrong ones.

        Stop before the first entry whose record may be at or after the end of the keys.
        """
        shape, disk_file = snapshot.shape, snapshot.disk_file
        count = min(snapshot.end - self.number, PART_COUNT)
        data = disk_file.read(shape.entry_position(self.number), count * ENTRY.size)
        entries = list(ENTRY.iter_unpack(data[: len(data) // ENTRY.size * ENTRY.size]))
        has_more = self.number + len(entries) < snapshot.end
        rows = self._matching.match(entries, keys, has_more=has_more)
        self._note_begin(snapshot, entries, rows)
        self._drop_unproven(entries, rows, keys.files, proofs.checksums)
        wrong = self._linked(entries, rows)
        for _, run in groupby(enumerate(wrong), lambda it: it[1] - it[0]):
            numbers = [number for _, number in run]
            position = shape.entry_position(numbers[0])
            proofs.write(disk_file, position, b"".join(wrong[number] for number in numbers))
        if self.number == 1 and rows:
            self._first = rows[0]
        if rows:
            self._last = rows[-1]
        self.number += len(rows)
        return len(rows), len(wrong)

    def _note_begin(
        self, snapshot: IndexSnapshot, entries: list[Entry], rows: list[KeyRow | None]
    ) -> None:
        """Find the time to which the seconds of entries refer, if it is not known yet."""
        if self._begin_ms is not None or not rows:
            return
        if self.number == 1 and rows[0] is not None:
            self._begin_ms = rows[0].timestamp
            return
        samples = sorted(
            row.timestamp - entry[2] * 1000
            for entry, row in zip(entries, rows, strict=False)
            if row is not None and entry[:2] == row[:2] and entry[2] > 0
        )
        if len(samples) >= SAMPLE_COUNT_MIN:
            latest, begin_ms = samples[len(samples) // 2], snapshot.header.begin_timestamp
            self._begin_ms = begin_ms if latest - 1000 < begin_ms <= latest else latest

    def _seconds(self, number: int, seconds: int, row: KeyRow) -> int:
        """Return the right seconds of an entry; `seconds` are its own."""
        if self._begin_ms is None:
            return seconds
        # RocketMQ's first entry refers to the last record of the previous file.
        if number == 1 and seconds == seconds_between(self._before_ms, row.timestamp):
            return seconds
        return seconds_between(self._begin_ms, row.timestamp)

    def _drop_unproven(
        self,
        entries: list[Entry],
        rows: list[KeyRow | None],
        files: FileSequence,
        checksums: Checksums,
    ) -> None:
        """Forget the rows that contradict their entries if the log's bytes are not proven."""
        doubtful = {
            at: row
            for at, (entry, row) in enumerate(zip(entries, rows, strict=False))
            if row is not None
            and (*row[:2], self._seconds(self.number + at, entry[2], row)) != entry[:3]
        }
        ranges = merged(DamagedRange(it.offset, it.offset + it.size) for it in doubtful.values())
        if any(checksums.still_damaged(files, part) for part in ranges):
            for at in doubtful:
                rows[at] = None

    def _linked(self, entries: list[Entry], rows: list[KeyRow | None]) -> dict[int, bytes]:
        """Link the entries into the slots; return the right bytes of wrong ones by number."""
        newest, slot_count = self._newest, len(self._newest)
        wrong: dict[int, bytes] = {}
        for number, (entry, row) in enumerate(zip(entries, rows, strict=False), self.number):
            if row is None:
                slot = entry[0] % slot_count
                if any(entry) and entry[3] == newest[slot]:
                    newest[slot] = number
                continue
            slot = row.hash_ % slot_count
            seconds = self._seconds(number, entry[2], row)
            right = (row.hash_, row.offset, seconds, newest[slot])
            newest[slot] = number
            if right != entry:
                wrong[number] = ENTRY.pack(*right)
        return wrong

    def finish(self, snapshot: IndexSnapshot, proofs: Proofs) -> IndexFault:
        """Compare slots and header with the entries; repair the disk, unless the file grows."""
        if snapshot.table is not None:
            mending = self._compare_growing(snapshot, snapshot.table)
            return IndexFault(snapshot.file, mending=mending)
        if self.number < snapshot.end:  # the checksums of the log end before the file does
            return IndexFault(snapshot.file)
        count = self._repair_slots(snapshot, proofs)
        header = self._repair_header(snapshot, proofs)
        return IndexFault(snapshot.file, slot_count=count, header=header)

    def _compare_growing(self, snapshot: IndexSnapshot, table: SlotTable[IndexHeader]) -> Mending:
        """Compare memory and disk; the loop repairs both."""
        header = self._right_header(
            snapshot.header, is_whole=self.number == snapshot.header.next_number
        )
        mending = Mending(snapshot, self.number, header, _disk_header(snapshot))
        for start, right in self._slots():
            memory = table.values[start : start + SLOTS_PER_READ].tobytes()
            if table.was_read:
                known = range(self.number, snapshot.file.header.next_number)  # the loop adds keys
                mending.slots += [
                    (start + slot, value, newest)
                    for slot, value, newest in _differing(memory, right)
                    if value not in known
                ]
            disk = _disk_slots(snapshot, start, len(right))
            for page, found, wanted in _differing_pages(disk, memory):
                mending.disk_pages.add(start // PAGE_SLOTS + page)
                if snapshot.is_flushed:  # else, slots that are not written yet differ, too
                    mending.disk_slot_count += sum(map(ne, found, wanted))
        return mending

    def _slots(self) -> Iterator[tuple[int, bytes]]:
        """Yield the right values of slots, and the number of the first one."""
        for start in range(0, len(self._newest), SLOTS_PER_READ):
            self._pause()
            yield start, self._newest[start : start + SLOTS_PER_READ].tobytes()

    def _repair_slots(self, snapshot: IndexSnapshot, proofs: Proofs) -> int:
        """Write wrong slots of a file that does not grow; return their number."""
        count = 0
        for start, right in self._slots():
            found = list(_differing(_disk_slots(snapshot, start, len(right)), right))
            if found:
                count += len(found)
                position = snapshot.shape.slot_position(start)
                proofs.write(snapshot.disk_file, position, _swapped(right))
        return count

    def _repair_header(self, snapshot: IndexSnapshot, proofs: Proofs) -> IndexHeader | None:
        """Write the header of a file that does not grow; return it if it was wrong."""
        found = _disk_header(snapshot)
        right = self._right_header(found, is_whole=True)._replace(next_number=snapshot.end)
        if right != found:
            right = right._replace(used_slot_count=sum(map(bool, self._newest)))
            proofs.write(snapshot.disk_file, 0, HEADER.pack(*right))
        bounds = right._replace(used_slot_count=snapshot.header.used_slot_count)
        return None if right == found and bounds == snapshot.header else right

    def _right_header(self, header: IndexHeader, *, is_whole: bool) -> IndexHeader:
        """Return a header with the right bounds, as far as they are known; `is_whole` says that it
        counts no more entries than have been compared.
        """
        if self._begin_ms is not None:
            header = header._replace(begin_timestamp=self._begin_ms)
        if self._first is not None:
            header = header._replace(begin_offset=self._first.offset)
        if self._last is not None and is_whole:
            end_ms = self._last.timestamp
            # Recovery knows only the seconds of the last record.
            if not end_ms - 1000 < header.end_timestamp <= end_ms:
                header = header._replace(end_timestamp=end_ms)
            header = header._replace(end_offset=self._last.offset)
        return header


def _disk_header(snapshot: IndexSnapshot) -> IndexHeader:
    return IndexHeader(*HEADER.unpack(snapshot.disk_file.read(0, HEADER.size)))


def _disk_slots(snapshot: IndexSnapshot, start: int, size: int) -> bytes:
    data = snapshot.disk_file.read(snapshot.shape.slot_position(start), size)
    return _swapped(data.ljust(size, b"\0"))


def _swapped(data: bytes) -> bytes:
    """Change the order of bytes between that of the file and that of memory."""
    values = array("i", data)
    if sys.byteorder == "little":
        values.byteswap()
    return values.tobytes()


def _differing(found: bytes, right: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield the slots that differ, with both values."""
    for page, values, wanted in _differing_pages(found, right):
        pairs = zip(values, wanted, strict=True)
        for slot, (value, newest) in enumerate(pairs, page * PAGE_SLOTS):
            if value != newest:
                yield slot, value, newest


def _differing_pages(found: bytes, right: bytes) -> Iterator[tuple[int, memoryview, memoryview]]:
    """Yield the pages that differ, with the slots of both."""
    if found == right:
        return
    for page, start in enumerate(range(0, len(right), PAGE_BYTES)):
        values, wanted = found[start : start + PAGE_BYTES], right[start : start + PAGE_BYTES]
        if values != wanted:
            yield page, memoryview(values).cast("i"), memoryview(wanted).cast("i")


class IndexWalk:
    """The walk through the index of one store; only one thread at a time uses it."""

    def __init__(self, pause: Callable[[], None] = no_pause) -> None:
        self._pause = pause
        self._check: FileCheck | None = None
        self._keys: LogKeys | None = None
        self._passed_name = ""
        self._cut_count = 0
        self.has_ended = True
        """Whether all files have been compared."""

    @property
    def passed_name(self) -> str:
        """The name of the last file that has been compared to its end."""
        return self._passed_name

    def begin(self, after: str = "") -> None:
        """Begin with the first file behind the one with this name."""
        self._check = self._keys = None
        self._passed_name, self.has_ended = after, False

    def step(
        self,
        index: IndexView,
        files: FileSequence,
        end: int,
        proofs: Proofs,
        count_max: int,
    ) -> tuple[int, list[IndexFault]]:
        """Compare about `count_max` entries of records before `end`; return their number and what
        was wrong. Blocks.

        If records are removed from the log meanwhile, the next step begins with the file again.
        """
        if index.cut_count != self._cut_count:
            self.begin(self._passed_name)
            self._cut_count = index.cut_count
        if self._keys is not None:
            self._keys.resume(files, end)
        faults: list[IndexFault] = []
        left = count_max
        while left > 0 and not self.has_ended:
            behind = [it for it in index.files if it.file.name > self._passed_name]
            if not behind:
                self._check, self._keys, self.has_ended = None, None, True
                break
            snapshot = behind[0]
            earlier = index.files[: len(index.files) - len(behind)]
            try:
                check = self._begun(snapshot, earlier, files, end)
                assert self._keys is not None
                count, wrong_count = check.compare(snapshot, self._keys, proofs)
                if wrong_count:
                    faults.append(IndexFault(snapshot.file, entry_count=wrong_count))
                if not count or check.number >= snapshot.end:
                    faults.append(check.finish(snapshot, proofs))
                    self._pass(snapshot)
            except Stale:
                self.begin(self._passed_name)
                break
            except DiskError as error:  # the file has expired, or bytes cannot be read
                faults.append(IndexFault(snapshot.file, error=error))
                count, self._keys = 0, None
                self._pass(snapshot)
            left -= count
        return count_max - left, faults

    def _pass(self, snapshot: IndexSnapshot) -> None:
        self._check, self._passed_name = None, snapshot.file.name

    def _begun(
        self,
        snapshot: IndexSnapshot,
        earlier: Sequence[IndexSnapshot],
        files: FileSequence,
        end: int,
    ) -> FileCheck:
        """Return the comparison of this file, which has been begun or begins now."""
        if self._keys is None:
            self._keys = keys = LogKeys(files, end, self._pause)
            if earlier:
                keys.begin_behind(earlier[-1].last_entry())
        check = self._check
        if check is None or check.name != snapshot.file.name:
            before_ms = earlier[-1].header.end_timestamp if earlier else 0
            check = self._check = FileCheck(snapshot, before_ms, self._pause)
        return check
