# SPDX-License-Identifier: Apache-2.0
"""The tables of a ledger: one entry for each half message, and one for each op message.

The index of an entry is the message's offset in its queue. A table has the entries from `begin` up
to and without `next`; `next` is also the next offset to read from the broker's queue. The ledger
writes each change to its redo log before it changes a table.

Compatibility: the transaction state table of RocketMQ 3 has the same 24-byte entries
(docs/protocol/state-table.md).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from cometmq.remoting.types import Buffer
from cometmq.store.disk import Disk, DiskFile

ENTRY: Final = Struct(">qiiii")
CHECK: Final = Struct(">IHH")
NO_IMMUNITY: Final = 0xFFFF
COUNT_MAX: Final = 0xFFFF


class State(IntEnum):
    """The state of a transaction; 0 marks an entry that was never written."""

    PREPARED = 4
    COMMITTED = 8
    ROLLED_BACK = 12


class Entry(NamedTuple):
    """One half message; its index in the table is its offset in the half queue."""

    physical_offset: int
    size: int
    stored_s: int
    """Seconds since 1970."""
    group_hash: int
    """Java's hash of the producer group."""
    state: int


class Check(NamedTuple):
    """The number and time of the checks of one half message."""

    asked_s: int
    """Time of the last check in seconds since 1970; 0 if there was none."""
    asked_count: int
    immunity_s: int
    """Minimum age at the first check, from the message's properties; NO_IMMUNITY if it has none, so
    that the setting applies.
    """


class Half(NamedTuple):
    """A half message as read from its queue."""

    physical_offset: int
    size: int
    stored_s: int
    group_hash: int
    immunity_s: int = NO_IMMUNITY
    check_count: int = 0
    """Number of checks that a RocketMQ broker made before, from the message's properties."""
    state: State = State.PREPARED

    def entry(self) -> bytes:
        return ENTRY.pack(
            self.physical_offset, self.size, self.stored_s, self.group_hash, self.state
        )

    def check(self) -> bytes:
        return CHECK.pack(0, self.check_count, self.immunity_s)


NO_HALF: Final = Half(0, 0, 0, 0, state=State.ROLLED_BACK)
"""Stands for a half message that is missing from the queue."""


class EntryFiles:
    """A table on disk: numbered entries of one size in files of one size.

    Each file is named after the offset of its first byte in the table. Entries without a file read
    as zeros. A write reaches the page cache; it is durable once its file is synced.
    """

    def __init__(self, disk: Disk, folder: str, *, entry_bytes: int, entries_per_file: int) -> None:
        self._disk = disk
        self._folder = folder
        self._entry_bytes = entry_bytes
        self._file_bytes = entry_bytes * entries_per_file
        self._files: dict[int, DiskFile] = {}
        self.write_count = 0
        self._unsynced: dict[int, int] = {}  # start of a file -> number of its last write
        for name in disk.names(folder):
            if name.isdigit() and int(name) % self._file_bytes == 0:
                self._files[int(name)] = disk.open(f"{folder}/{name}")

    def read(self, index: int, count: int) -> bytes:
        parts = []
        for start, offset, size in self._pieces(index, count):
            file = self._files.get(start)
            parts.append(
                bytes(size) if file is None else file.read(offset, size).ljust(size, b"\0")
            )
        return b"".join(parts)

    def write(self, index: int, data: bytes) -> None:
        """Replace the entries from `index` on; raise DiskError if the disk refuses."""
        position = 0
        for start, offset, size in self._pieces(index, len(data) // self._entry_bytes):
            file = self._files.get(start) or self._create(start)
            file.write(offset, [data[position : position + size]])
            self.write_count += 1
            self._unsynced[start] = self.write_count
            position += size

    def unsynced(self) -> list[DiskFile]:
        """Return the files with writes not yet confirmed by `note_synced`."""
        return [self._files[start] for start in self._unsynced]

    def note_synced(self, write_count: int) -> None:
        """Record that the first `write_count` writes are durable."""
        for start in [start for start, last in self._unsynced.items() if last <= write_count]:
            del self._unsynced[start]

    def drop_below(self, index: int) -> None:
        """Delete the files that hold only entries below `index`."""
        for start in [
            start for start in self._files if start + self._file_bytes <= self._at(index)
        ]:
            self._remove(start)

    def clear(self) -> None:
        for start in list(self._files):
            self._remove(start)

    @property
    def size_bytes(self) -> int:
        return len(self._files) * self._file_bytes

    def _at(self, index: int) -> int:
        return index * self._entry_bytes

    def _pieces(self, index: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Split a range of entries at file boundaries: yield each file's start, the offset in the
        file, and the number of bytes.
        """
        position, end = self._at(index), self._at(index + count)
        while position < end:
            start = position - position % self._file_bytes
            size = min(end, start + self._file_bytes) - position
            yield start, position - start, size
            position += size

    def _create(self, start: int) -> DiskFile:
        path = self._path(start)
        file = self._disk.create(path, self._file_bytes, temporary=f"{self._folder}.new")
        self._files[start] = file
        return file

    def _remove(self, start: int) -> None:
        del self._files[start]
        self._unsynced.pop(start, None)
        self._disk.remove(self._path(start))

    def _path(self, start: int) -> str:
        return f"{self._folder}/{start:020d}"


CHUNK: Final = 4_096
"""Number of entries in a chunk. Open entries are counted per chunk, so that rounds skip chunks
without open entries.
"""

GAP_MAX: Final = 64
"""Entries at most this far apart are read and written with one call, including the entries between
them, because further system calls cost more.
"""

OP: Final = Struct(">Q")
"""An entry of the op table: the highest offset of the half messages that the op message ends, plus
1; 0 if it ends none.
"""

_STATES: Final = frozenset(State)
_STATE_BYTES: Final = 4
_OPEN_STATE: Final = State.PREPARED.to_bytes(_STATE_BYTES, "big")


class OpenHalf(NamedTuple):
    """A transaction that is neither committed nor rolled back."""

    offset: int
    entry: Entry
    check: Check


class HalfTable:
    """The states and check counters of half messages, with the number of open ones."""

    def __init__(self, disk: Disk, folder: str, entries_per_file: int) -> None:
        self._states = EntryFiles(
            disk,
            f"{folder}/statetable",
            entry_bytes=ENTRY.size,
            entries_per_file=entries_per_file,
        )
        self._checks = EntryFiles(
            disk, f"{folder}/checks", entry_bytes=CHECK.size, entries_per_file=entries_per_file
        )
        self.files: Final = (self._states, self._checks)
        self.begin = self.next = 0
        self.open_count = 0
        self._chunks: dict[int, int] = {}

    def start(self, offset: int) -> None:
        """Make the table empty, with this offset as the next entry; keep the files."""
        self.begin = self.next = offset
        self.open_count = 0
        self._chunks.clear()

    def advance(self, begin: int, next_: int) -> None:
        """Raise `begin` and `next` during recovery; call `recount` afterwards."""
        self.begin = max(self.begin, begin)
        self.next = max(self.next, next_)

    def recount(self) -> bool:
        """Count the open entries; return False if an entry was never written."""
        self._chunks.clear()
        self.open_count = 0
        index = self.begin
        while index < self.next:
            count = min(CHUNK - index % CHUNK, self.next - index)
            data = self._states.read(index, count)
            states = [entry[4] for entry in ENTRY.iter_unpack(data)]
            if not _STATES.issuperset(states):
                return False
            self._count(index, states.count(State.PREPARED))
            index += count
        return True

    # Changes: replay may repeat them

    def put(self, start: int, entries: bytes, checks: bytes) -> None:
        self._states.write(start, entries)
        self._checks.write(start, checks)
        self.next = max(self.next, start + len(entries) // ENTRY.size)
        self._count_each(
            [
                index
                for index, entry in enumerate(ENTRY.iter_unpack(entries), start)
                if entry[4] == State.PREPARED
            ],
            1,
        )

    def put_check(self, index: int, check: bytes) -> None:
        self._checks.write(index, check)

    def end(self, indices: Iterable[int], state: State) -> int:
        """Change the state of those of the given entries that are open; return how many were open.

        Replay may repeat a record, so entries may have ended before.
        """
        new_state = state.to_bytes(_STATE_BYTES, "big")
        ended_count = 0
        for run in _runs({index for index in indices if index >= self.begin}):
            first = run[0]
            data = bytearray(self._states.read(first, run[-1] + 1 - first))
            changed = _open_in(run, data)
            for index in changed:
                end = (index + 1 - first) * ENTRY.size
                data[end - _STATE_BYTES : end] = new_state
            if changed:
                self._count_each(changed, -1)
                self._states.write(first, bytes(data))
            ended_count += len(changed)
        return ended_count

    def drop_below(self, below: int) -> None:
        """Remove the entries below this offset from the table and its counts."""
        self.begin = below
        self.next = max(self.next, below)
        for chunk in [one for one in self._chunks if one * CHUNK < below]:
            self.open_count -= self._chunks.pop(chunk)
            end = min((chunk + 1) * CHUNK, self.next)
            if end > below:
                rest = ENTRY.iter_unpack(self._states.read(below, end - below))
                self._count(below, sum(entry[4] == State.PREPARED for entry in rest))

    def _count_each(self, indices: Iterable[int], change: int) -> None:
        for chunk, count in Counter([index // CHUNK for index in indices]).items():
            self._count(chunk * CHUNK, change * count)

    def _count(self, index: int, change: int) -> None:
        chunk = index // CHUNK
        count = self._chunks.get(chunk, 0) + change
        self.open_count += change
        if count:
            self._chunks[chunk] = count
        else:
            self._chunks.pop(chunk, None)

    # Queries

    def open_among(self, indices: Iterable[int]) -> set[int]:
        """Return which of the given entries are open."""
        known = {
            index
            for index in indices
            if self.begin <= index < self.next and index // CHUNK in self._chunks
        }
        found: set[int] = set()
        for run in _runs(known):
            found.update(_open_in(run, self._states.read(run[0], run[-1] + 1 - run[0])))
        return found

    def entry(self, index: int) -> Entry | None:
        """Return an entry; None if its index is not in the table."""
        return self._entry(index) if self.begin <= index < self.next else None

    def _entry(self, index: int) -> Entry:
        return Entry._make(ENTRY.unpack(self._states.read(index, 1)))

    @property
    def newest(self) -> Entry | None:
        """The entry of the half message read last, even if it has ended; None if there is none."""
        if not self.next:
            return None
        entry = self._entry(self.next - 1)
        return entry if entry.size else None

    def open_chunks(self, begin: int = 0) -> Iterator[list[OpenHalf]]:
        """Yield the open transactions at or after an index, in queue order, one list per chunk."""
        for chunk in sorted(self._chunks):
            first = max(chunk * CHUNK, self.begin, begin)
            count = min((chunk + 1) * CHUNK, self.next) - first
            if count <= 0 or chunk not in self._chunks:
                continue
            entries = ENTRY.iter_unpack(self._states.read(first, count))
            checks = CHECK.iter_unpack(self._checks.read(first, count))
            yield [
                OpenHalf(index, Entry._make(entry), Check._make(check))
                for index, (entry, check) in enumerate(zip(entries, checks, strict=True), first)
                if entry[4] == State.PREPARED
            ]

    @property
    def oldest(self) -> OpenHalf | None:
        return next((halves[0] for halves in self.open_chunks() if halves), None)

    @property
    def low_water(self) -> int:
        """The offset of the oldest open half message; `next` if none is open."""
        oldest = self.oldest
        return self.next if oldest is None else oldest.offset


class OpTable:
    """For each op message, the highest half message that it ends; `mark` needs nothing else."""

    def __init__(self, disk: Disk, folder: str, entries_per_file: int) -> None:
        self.files: Final = EntryFiles(
            disk, f"{folder}/ops", entry_bytes=OP.size, entries_per_file=entries_per_file
        )
        self.begin = self.next = self._mark = 0

    def start(self, offset: int) -> None:
        """Make the table empty, with this offset as the next entry; keep the files."""
        self.begin = self.next = self._mark = offset

    def advance(self, begin: int, next_: int) -> None:
        """Raise `begin` and `next` during recovery."""
        self.begin = self._mark = max(self.begin, begin)
        self.next = max(self.next, next_)

    def put(self, start: int, entries: bytes) -> None:
        self.files.write(start, entries)
        self.next = start + len(entries) // OP.size

    def mark(self, low_water: int) -> int:
        """Return the offset of the first op message that ends a half message at or above
        `low_water`, `next` if there is none.

        `low_water` must not fall from call to call.
        """
        while self._mark < self.next:
            count = min(CHUNK, self.next - self._mark)
            for (after,) in OP.iter_unpack(self.files.read(self._mark, count)):
                if after > low_water:
                    return self._mark
                self._mark += 1
        return self._mark


def _runs(indices: Collection[int]) -> Iterator[list[int]]:
    """Yield the indices in ascending order, in runs without gaps of more than GAP_MAX."""
    run: list[int] = []
    for index in sorted(indices):
        if run and (index - run[-1] > GAP_MAX or index - run[0] >= CHUNK):
            yield run
            run = []
        run.append(index)
    if run:
        yield run


def _open_in(run: Sequence[int], data: Buffer) -> list[int]:
    """Return the open entries of a run; `data` has all entries from its first to its last."""
    first_end = (1 - run[0]) * ENTRY.size
    return [
        index
        for index in run
        if data[(end := first_end + index * ENTRY.size) - _STATE_BYTES : end] == _OPEN_STATE
    ]
