# SPDX-License-Identifier: Apache-2.0
"""Compare index files with the log, and repair the entries, slots and headers that changed on disk.

Readers rarely notice such damage: a slot of zeros looks like a key that no message has. The walk
therefore reads the entries of all files in order, and the keys of the log's records in order. Both
are the same sequence, except that

- entries whose records have expired have no key,
- a key may have several entries, if a program crashed and indexed a record again,
- keys have no entry if indexing was turned off. The next intact entry shows where it goes on.

An entry that belongs to no record stands in the place of the next key. Entries and slots are
written again in place. The walk does not sync them, for the reason given in `entry_repair.py`. It
uses no record of the log that its checksum does not prove.
"""

import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, NamedTuple

from cometmq.store.disk import DiskFile
from cometmq.store.errors import DiskError
from cometmq.store.index.index import IndexView
from cometmq.store.index.index_file import IndexFile, IndexSnapshot
from cometmq.store.index.index_format import HEADER, Entry, IndexHeader
from cometmq.store.index.index_slots import PAGE_BYTES, PAGE_SLOTS, SLOT_BYTES, zero_slots
from cometmq.store.index.keys import ENTRY, seconds_between
from cometmq.store.index.mending import Mending
from cometmq.store.log.checksums import Checksums, spans
from cometmq.store.log.damage import DamagedRange, merged
from cometmq.store.log.file_sequence import FileSequence
from cometmq.store.upkeep.log_keys import KeyRow, LogKeys

PART_COUNT: Final = 1_000
"""Number of entries that are read and compared at once. Blocks of entries that stand in wrong places
are recognised up to this size.
"""

SLOTS_PER_READ: Final = 64 << 10
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

    def __init__(self, snapshot: IndexSnapshot, before_ms: int) -> None:
        """`before_ms` is the time of the last record in the previous file."""
        self.name = snapshot.file.name
        self.number = 1
        self._before_ms = before_ms
        self._newest = zero_slots(snapshot.shape.slot_count)
        self._begin_ms: int | None = None
        self._first: KeyRow | None = None
        self._last: KeyRow | None = None
        self._expired_offset = 0

    def compare(self, snapshot: IndexSnapshot, keys: LogKeys, proofs: Proofs) -> tuple[int, int]:
        """Compare the next entries, and repair them; return their number and that of wrong ones.

        Stop before the first entry whose record may be at or after the end of the keys.
        """
        shape, disk_file = snapshot.shape, snapshot.disk_file
        count = min(snapshot.end - self.number, PART_COUNT)
        data = disk_file.read(shape.entry_position(self.number), count * ENTRY.size)
        entries = list(ENTRY.iter_unpack(data[: len(data) // ENTRY.size * ENTRY.size]))
        has_more = self.number + len(entries) < snapshot.end
        rows = self._matched(entries, keys, has_more=has_more)
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

    def _matched(
        self, entries: list[Entry], keys: LogKeys, *, has_more: bool
    ) -> list[KeyRow | None]:
        """Return the key that each entry must stand for; None if that cannot be known.

        `has_more` says that other entries follow; odd ones at the end are then left to the next
        part, which shows what follows them.
        """
        rows: list[KeyRow | None] = []
        odd: list[int] = []  # since the last match: places that are wrong if keys are missing there
        taken: list[int] = []  # since the last match: places of entries without a record
        shift: _Shift | None = None
        for at, (hash_, offset, _, _) in enumerate(entries):
            key = keys.peek()
            if key is None:
                break
            if hash_ == key.hash_ and offset == key.offset:
                keys.drop_next(is_match=True)
                odd, taken = [], []
                rows.append(key)
                if shift is not None:
                    shift.keys.append(key)
                continue
            row = keys.find(hash_, offset)
            is_newer = row is not None and not keys.has_passed(row)
            if is_newer and (at if shift is None else shift.begin):
                has_more = True  # the next part shows more of what follows
                break
            if is_newer and any(key.offset <= it[1] < offset for it in entries[at + 1 :]):
                row = None  # older entries follow, so these bytes belong elsewhere
            if row is None and self._expired_offset <= offset < keys.files.first:
                self._expired_offset, odd, shift = offset, [], None
                rows.append(None)
                continue
            if row is None and keys.is_begun:
                keys.drop_next()
                taken.append(at)
                rows.append(key)
                if shift is not None:
                    shift.keys.append(key)
                continue
            shift = shift or _Shift(at)
            if row is None or not is_newer:
                odd.append(at)
                rows.append(None)
                shift.odd_count += 1
            else:
                skipped = keys.skip_to(row)
                _fill(rows, odd, taken, skipped)
                rows.append(row)
                shift.skip(skipped, row, filled_count=min(len(odd), len(skipped)))
                odd, taken = [], []
            if shift.is_over:
                rows[shift.begin :] = shift.keys
                shift = None
        if has_more and shift is not None and shift.begin:
            del rows[shift.begin :]
            keys.put_back(shift.keys)
        return rows

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
        if not all(checksums.prove(spans(files, *part)) for part in ranges):
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
            mending = self._compare_growing(snapshot, snapshot.table.values)
            return IndexFault(snapshot.file, mending=mending)
        if self.number < snapshot.end:  # the checksums of the log end before the file does
            return IndexFault(snapshot.file)
        count = self._repair_slots(snapshot, proofs)
        header = self._repair_header(snapshot, proofs)
        return IndexFault(snapshot.file, slot_count=count, header=header)

    def _compare_growing(self, snapshot: IndexSnapshot, slots: memoryview) -> Mending:
        """Compare memory and disk; the loop repairs both."""
        header = self._right_header(
            snapshot.header, is_whole=self.number == snapshot.header.next_number
        )
        mending = Mending(snapshot, self.number, header, _disk_header(snapshot))
        for start, right in self._slots():
            memory = slots[start : start + SLOTS_PER_READ].tobytes()
            known = range(self.number, snapshot.file.header.next_number)  # the loop adds keys
            mending.slots += [
                (start + slot, value, newest)
                for slot, value, newest in _differing(memory, right)
                if value not in known
            ]
            for slot, _, _ in _differing(_disk_slots(snapshot, start, len(right)), memory):
                mending.disk_slot_count += 1
                mending.disk_pages.add((start + slot) // PAGE_SLOTS)
        return mending

    def _slots(self) -> Iterator[tuple[int, bytes]]:
        """Yield the right values of slots, and the number of the first one."""
        for start in range(0, len(self._newest), SLOTS_PER_READ):
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


@dataclass(slots=True)
class _Shift:
    """Entries that may stand in wrong places, since the first one that did not fit the next key.

    If a block of entries is overwritten with a part of itself, some of its entries fit the keys
    again, and others have no key. It is recognised by its end: as many keys were skipped as places
    have no key.
    """

    begin: int
    """The place of the first entry, in its part."""
    keys: list[KeyRow] = field(default_factory=list)
    """All keys since then, in order."""
    odd_count: int = 0
    """Number of places without a key."""
    skipped_count: int = 0
    """Number of keys without a place."""

    def skip(self, skipped: list[KeyRow], row: KeyRow, *, filled_count: int) -> None:
        """Note a key that has its place, and those before it, some of which got places."""
        self.keys += [*skipped, row]
        self.odd_count -= filled_count
        self.skipped_count += len(skipped) - filled_count

    @property
    def is_over(self) -> bool:
        """Whether all keys have places if they are put in order."""
        return self.odd_count == self.skipped_count


def _fill(
    rows: list[KeyRow | None], odd: list[int], taken: list[int], skipped: list[KeyRow]
) -> None:
    """Put keys that have no entry into the last odd places, and keep all keys in order."""
    places = odd[max(0, len(odd) - len(skipped)) :]
    if places:
        missing = [*(rows[at] for at in taken), *skipped]
        for at, key in zip(sorted(taken + places), missing, strict=False):
            rows[at] = key


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
    if found == right:
        return
    for start in range(0, len(right), PAGE_BYTES):
        page, right_page = found[start : start + PAGE_BYTES], right[start : start + PAGE_BYTES]
        if page != right_page:
            pairs = zip(memoryview(page).cast("i"), memoryview(right_page).cast("i"), strict=True)
            for slot, (value, newest) in enumerate(pairs, start // SLOT_BYTES):
                if value != newest:
                    yield slot, value, newest


class IndexWalk:
    """The walk through the index of one store; only one thread at a time uses it."""

    def __init__(self) -> None:
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
            self._keys = keys = LogKeys(files, end)
            if earlier:
                keys.begin_behind(earlier[-1].last_entry())
        check = self._check
        if check is None or check.name != snapshot.file.name:
            before_ms = earlier[-1].header.end_timestamp if earlier else 0
            check = self._check = FileCheck(snapshot, before_ms)
        return check
