# SPDX-License-Identifier: Apache-2.0
"""The ledger of one broker's transactions: state table, check counters and redo log.

`half_next` and `op_next` are the next offsets to read from the broker's two queues. A change is
appended to the redo log before it is applied to the tables, so replaying the log repairs whatever
state a crash leaves. Replay is idempotent, because records hold new values, not increments.

Invariants: all entries from `half_begin` to `half_next` are written; `open_count` and the counts
per chunk agree with the table; reading the two queues from `low_water` and `op_mark` onwards yields
the same open transactions.

This module uses neither a clock nor the network; the disk is a parameter.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from cometmq.remoting.types import Buffer
from cometmq.store.disk import Disk, DiskFile
from cometmq.store.redo_log import FILE_BYTES, Record, RedoLog
from cometmq.txn_checker.entry import CHECK, COUNT_MAX, ENTRY, Check, Entry, Half, State
from cometmq.txn_checker.entry_files import EntryFiles

ENTRIES_PER_FILE: Final = 250_000
CHUNK: Final = 4_096
"""Open entries are counted per chunk of this many entries; rounds skip chunks without open entries.
"""

GAP_MAX: Final = 64
"""Entries this close together are read and written together, with those between them: that costs
less than more system calls.
"""

REDO_LOG: Final = "redolog"
FOLDERS: Final = ("statetable", "checks", "ops", REDO_LOG)

_STATES: Final = frozenset(State)
_STATE_BYTES: Final = 4
_OPEN_STATE: Final = State.PREPARED.to_bytes(_STATE_BYTES, "big")
_POSITIONS: Final = Struct(">QQQQ")
_START: Final = Struct(">Q")
_INDEX: Final = Struct(">Q")
_ASKED: Final = Struct(">QIHH")
_HALF_BYTES: Final = ENTRY.size + CHECK.size
_OP_BYTES: Final = _INDEX.size


class Kind(IntEnum):
    """The kinds of redo log records."""

    CHECKPOINT = 1
    HALVES = 2
    OPS = 3
    ASKED = 4
    CLOSED = 5
    HALVES_GONE = 6
    OPS_GONE = 7


class OpenHalf(NamedTuple):
    """A transaction that is neither committed nor rolled back."""

    offset: int
    entry: Entry
    check: Check


class Checkpoint(NamedTuple):
    """The files to sync before the redo log can be truncated to `log_start`."""

    disk: Disk
    folders: Sequence[str]
    files: Sequence[DiskFile]
    log_start: int
    half_begin: int
    op_begin: int
    write_counts: Sequence[int]

    def sync(self) -> None:
        """Make the files durable; blocks."""
        for file in self.files:
            file.sync()
        for folder in self.folders:
            if self.disk.exists(folder):
                self.disk.sync_folder(folder)


class Ledger:
    def __init__(
        self,
        disk: Disk,
        folder: str,
        *,
        entries_per_file: int = ENTRIES_PER_FILE,
        log_file_bytes: int = FILE_BYTES,
    ) -> None:
        """Recover from the folder; blocks. Set `is_new` if the log or the tables are incomplete."""

        def files(name: str, size: int) -> EntryFiles:
            return EntryFiles(
                disk, f"{folder}/{name}", entry_bytes=size, entries_per_file=entries_per_file
            )

        self._disk = disk
        self.folder = folder
        disk.make_folder(folder)
        self._table = files("statetable", ENTRY.size)
        self._checks = files("checks", CHECK.size)
        self._ops = files("ops", _OP_BYTES)
        self._tables = (self._table, self._checks, self._ops)
        self._part = min(CHUNK, log_file_bytes // 64)  # so that a part always fits into one record
        self._log = RedoLog(disk, f"{folder}/{REDO_LOG}", file_bytes=log_file_bytes)
        self.half_begin = self.half_next = self.op_begin = self.op_next = 0
        self.open_count = 0
        self.ended_count = 0
        self._chunks: dict[int, int] = {}
        self._op_mark = 0
        self.is_changed = False  # whether anything changed since the last checkpoint
        self.is_new = not self._recover()
        if self.is_new:
            self._clear()

    # Recovery

    def _recover(self) -> bool:
        """Replay the redo log; return False if the log or the tables are incomplete."""
        records = self._log.replay()
        first = next(records, None)
        if first is None or first.kind != Kind.CHECKPOINT:
            return False
        self._apply(first)
        for record in records:
            if record.kind == Kind.CHECKPOINT and self._is_behind(record.payload):
                return False  # records between the two checkpoints are missing
            self._apply(record)
        return self._recount()

    def _is_behind(self, checkpoint: bytes) -> bool:
        _, half_next, _, op_next = _POSITIONS.unpack(checkpoint)
        return bool(self.half_next < half_next or self.op_next < op_next)

    def _recount(self) -> bool:
        """Count the open entries; return False if an entry was never written."""
        self._chunks.clear()
        self.open_count = 0
        index = self.half_begin
        while index < self.half_next:
            count = min(CHUNK - index % CHUNK, self.half_next - index)
            data = self._table.read(index, count)
            states = [entry[4] for entry in ENTRY.iter_unpack(data)]
            if not _STATES.issuperset(states):
                return False
            self._count(index, states.count(State.PREPARED))
            index += count
        self._op_mark = self.op_begin
        return True

    def _clear(self) -> None:
        for table in self._tables:
            table.clear()
        self._log.clear()
        self._chunks.clear()
        self.half_begin = self.half_next = self.op_begin = self.op_next = 0
        self._op_mark = self.open_count = 0

    def reset(self) -> None:
        """Drop all state, because the broker's queues have been replaced."""
        self._clear()
        self.is_new = True

    def begin(self, half_offset: int, op_offset: int) -> None:
        """Begin a new ledger at these offsets in the two queues."""
        assert self.is_new
        self.half_begin = self.half_next = half_offset
        self.op_begin = self.op_next = self._op_mark = op_offset
        self._log.begin_file(Kind.CHECKPOINT, self._positions())
        self.is_new = False

    # Changes

    def add_halves(self, halves: Sequence[Half]) -> None:
        for start in range(0, len(halves), self._part):
            part = halves[start : start + self._part]
            entries = b"".join(half.entry() for half in part)
            checks = b"".join(half.check() for half in part)
            self._change(Kind.HALVES, _START.pack(self.half_next) + entries + checks)

    def read_ops(self, ops: Sequence[Collection[int]]) -> int:
        """Apply the next op messages, each given as a list of half messages that it completes.

        Return how many were applied. The rest refer to half messages that have not been read yet.
        """
        taken = 0
        while taken < len(ops):
            count = self._read_some_ops(ops[taken : taken + self._part])
            if not count:
                break
            taken += count
        return taken

    def _read_some_ops(self, ops: Sequence[Collection[int]]) -> int:
        ends: list[bytes] = []
        highest: list[bytes] = []
        are_open = self._open_among(half for halves in ops for half in halves)
        for halves in ops:
            if any(half >= self.half_next for half in halves):
                break
            if highest and len(ends) + len(halves) > self._part:
                break
            highest.append(_INDEX.pack(max(halves, default=-1) + 1))
            ends += [_INDEX.pack(half) for half in halves if half in are_open]
        for start in range(
            self._part, len(ends), self._part
        ):  # one op message may end more half messages than a record holds
            rest = b"".join(ends[start : start + self._part])
            self._change(Kind.OPS, _POSITIONS.pack(self.op_next, 0, len(rest) // 8, 0) + rest)
        if highest:
            head = _POSITIONS.pack(self.op_next, len(highest), min(len(ends), self._part), 0)
            self._change(Kind.OPS, head + b"".join((*highest, *ends[: self._part])))
        return len(highest)

    def note_asked(self, halves: Sequence[OpenHalf], now_s: int) -> None:
        """Count one check for each of these transactions."""
        for start in range(0, len(halves), self._part):
            payload = b"".join(
                _ASKED.pack(
                    half.offset,
                    now_s,
                    min(half.check.asked_count + 1, COUNT_MAX),
                    half.check.immunity_s,
                )
                for half in halves[start : start + self._part]
            )
            self._change(Kind.ASKED, payload)

    def close(self, offsets: Iterable[int]) -> None:
        """Mark half messages as ended because they were set aside or are no longer in the log."""
        known = [_INDEX.pack(offset) for offset in sorted(self._open_among(offsets))]
        for start in range(0, len(known), self._part):
            self._change(Kind.CLOSED, b"".join(known[start : start + self._part]))

    def halves_gone(self, below: int) -> None:
        """Drop the half messages below an offset, because the broker has deleted them."""
        if below > self.half_begin:
            self._change(Kind.HALVES_GONE, _START.pack(below))

    def ops_gone(self, below: int) -> None:
        """Skip the op messages below an offset, because the broker has deleted them."""
        if below > self.op_next:
            self._change(Kind.OPS_GONE, _START.pack(below))

    def _change(self, kind: Kind, payload: bytes) -> None:
        if not self._log.has_room(len(payload)):
            self._log.begin_file(Kind.CHECKPOINT, self._positions())
        self._log.append(kind, payload)
        self._apply(Record(kind, payload))

    def _apply(self, record: Record) -> None:
        self.is_changed = True
        self._APPLY[Kind(record.kind)](self, record.payload)

    def _apply_checkpoint(self, payload: bytes) -> None:
        half_begin, half_next, op_begin, op_next = _POSITIONS.unpack(payload)
        self.half_begin = max(self.half_begin, half_begin)
        self.half_next = max(self.half_next, half_next)
        self.op_begin = max(self.op_begin, op_begin)
        self.op_next = max(self.op_next, op_next)

    def _apply_halves(self, payload: bytes) -> None:
        (start,) = _START.unpack_from(payload)
        count = (len(payload) - _START.size) // _HALF_BYTES
        checks_at = _START.size + count * ENTRY.size
        self._table.write(start, payload[_START.size : checks_at])
        self._checks.write(start, payload[checks_at:])
        self.half_next = max(self.half_next, start + count)
        entries = ENTRY.iter_unpack(payload[_START.size : checks_at])
        self._count_each(
            [index for index, entry in enumerate(entries, start) if entry[4] == State.PREPARED], 1
        )

    def _apply_ops(self, payload: bytes) -> None:
        start, op_count, end_count, _ = _POSITIONS.unpack_from(payload)
        ends_at = _POSITIONS.size + op_count * _OP_BYTES
        self._ops.write(start, payload[_POSITIONS.size : ends_at])
        self.op_next = start + op_count
        self._set_states(payload[ends_at : ends_at + end_count * _INDEX.size], State.COMMITTED)

    def _apply_asked(self, payload: bytes) -> None:
        for index, asked_s, count, immunity_s in _ASKED.iter_unpack(payload):
            self._checks.write(index, CHECK.pack(asked_s, count, immunity_s))

    def _apply_closed(self, payload: bytes) -> None:
        self._set_states(payload, State.ROLLED_BACK)

    def _apply_halves_gone(self, payload: bytes) -> None:
        (below,) = _START.unpack(payload)
        self.half_begin = below
        self.half_next = max(self.half_next, below)
        for chunk in [one for one in self._chunks if one * CHUNK < below]:
            self.open_count -= self._chunks.pop(chunk)
            end = min((chunk + 1) * CHUNK, self.half_next)
            if end > below:
                rest = ENTRY.iter_unpack(self._table.read(below, end - below))
                self._count(below, sum(entry[4] == State.PREPARED for entry in rest))

    def _apply_ops_gone(self, payload: bytes) -> None:
        (self.op_next,) = _START.unpack(payload)
        self.op_begin = self._op_mark = self.op_next

    _APPLY: Final[dict[Kind, Callable[["Ledger", bytes], None]]] = {
        Kind.CHECKPOINT: _apply_checkpoint,
        Kind.HALVES: _apply_halves,
        Kind.OPS: _apply_ops,
        Kind.ASKED: _apply_asked,
        Kind.CLOSED: _apply_closed,
        Kind.HALVES_GONE: _apply_halves_gone,
        Kind.OPS_GONE: _apply_ops_gone,
    }

    def _set_states(self, indices: bytes, state: State) -> None:
        """Change the state of the given entries that are still open.

        Others were changed before, because replay may repeat a record.
        """
        known = {index for (index,) in _INDEX.iter_unpack(indices) if index >= self.half_begin}
        new_state = state.to_bytes(_STATE_BYTES, "big")
        for run in _runs(known):
            first = run[0]
            data = bytearray(self._table.read(first, run[-1] + 1 - first))
            changed = _open_in(run, data)
            for index in changed:
                end = (index + 1 - first) * ENTRY.size
                data[end - _STATE_BYTES : end] = new_state
            if changed:
                self._count_each(changed, -1)
                self._table.write(first, bytes(data))
            self.ended_count += len(changed) if state is State.COMMITTED else 0

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

    def _open_among(self, indices: Iterable[int]) -> set[int]:
        """Return which of the given entries are open."""
        known = {
            index
            for index in indices
            if self.half_begin <= index < self.half_next and index // CHUNK in self._chunks
        }
        found: set[int] = set()
        for run in _runs(known):
            found.update(_open_in(run, self._table.read(run[0], run[-1] + 1 - run[0])))
        return found

    # Queries

    def entry(self, index: int) -> Entry | None:
        """Return an entry; None if it is not in the table."""
        if not self.half_begin <= index < self.half_next:
            return None
        return self._entry(index)

    def _entry(self, index: int) -> Entry:
        return Entry._make(ENTRY.unpack(self._table.read(index, 1)))

    @property
    def newest(self) -> Entry | None:
        """Return the half message read last; None if its entry no longer exists."""
        if not self.half_next:
            return None
        entry = self._entry(self.half_next - 1)
        return entry if entry.size else None

    def open_halves(self, begin: int = 0) -> Iterator[list[OpenHalf]]:
        """Yield the open transactions at or after an index, in queue order, one list per chunk."""
        for chunk in sorted(self._chunks):
            first = max(chunk * CHUNK, self.half_begin, begin)
            count = min((chunk + 1) * CHUNK, self.half_next) - first
            if count <= 0 or chunk not in self._chunks:
                continue
            entries = ENTRY.iter_unpack(self._table.read(first, count))
            checks = CHECK.iter_unpack(self._checks.read(first, count))
            yield [
                OpenHalf(index, Entry._make(entry), Check._make(check))
                for index, (entry, check) in enumerate(zip(entries, checks, strict=True), first)
                if entry[4] == State.PREPARED
            ]

    @property
    def oldest(self) -> OpenHalf | None:
        return next((halves[0] for halves in self.open_halves() if halves), None)

    @property
    def low_water(self) -> int:
        """Return the offset of the oldest open half message, or the next offset if none is open."""
        oldest = self.oldest
        return self.half_next if oldest is None else oldest.offset

    def op_mark(self, low_water: int) -> int:
        """Return the op offset before which every op message refers to a half message that is
        already below the low-water mark.
        """
        while self._op_mark < self.op_next:
            count = min(CHUNK, self.op_next - self._op_mark)
            for (after,) in _INDEX.iter_unpack(self._ops.read(self._op_mark, count)):
                if after > low_water:
                    return self._op_mark
                self._op_mark += 1
        return self._op_mark

    @property
    def size_bytes(self) -> int:
        parts = (self._table, self._checks, self._ops, self._log)
        return sum(part.size_bytes for part in parts)

    # Checkpoints

    def _positions(self) -> bytes:
        return _POSITIONS.pack(self.half_begin, self.half_next, self.op_begin, self.op_next)

    def checkpoint(self) -> Checkpoint:
        """Start a new log file; after `sync`, pass the result to `note_synced`.

        Entries below the low-water mark and the op mark no longer belong to the ledger.
        """
        self.half_begin = max(self.half_begin, self.low_water)
        self.op_begin = max(self.op_begin, self.op_mark(self.half_begin))
        self.is_changed = False
        log_file = self._log.begin_file(Kind.CHECKPOINT, self._positions())
        files = [file for table in self._tables for file in table.unsynced()]
        folders = [self.folder, *(f"{self.folder}/{name}" for name in FOLDERS)]
        return Checkpoint(
            self._disk,
            folders,
            [*files, log_file],
            self._log.file_start,
            self.half_begin,
            self.op_begin,
            [table.write_count for table in self._tables],
        )

    def note_synced(self, checkpoint: Checkpoint) -> None:
        """Delete the files that recovery no longer needs.

        Never pass a checkpoint whose sync failed; the next checkpoint syncs its files again.
        """
        for table, write_count in zip(self._tables, checkpoint.write_counts, strict=True):
            table.note_synced(write_count)
        self._log.drop_below(checkpoint.log_start)
        self._table.drop_below(checkpoint.half_begin)
        self._checks.drop_below(checkpoint.half_begin)
        self._ops.drop_below(checkpoint.op_begin)


def _runs(indices: Collection[int]) -> Iterator[list[int]]:
    """Yield the indices in order, in runs whose entries are read and written together."""
    run: list[int] = []
    for index in sorted(indices):
        if run and (index - run[-1] > GAP_MAX or index - run[0] >= CHUNK):
            yield run
            run = []
        run.append(index)
    if run:
        yield run


def _open_in(run: Sequence[int], data: Buffer) -> list[int]:
    """Return which entries of a run are open; `data` holds them and all entries between them."""
    first_end = (1 - run[0]) * ENTRY.size
    return [
        index
        for index in run
        if data[(end := first_end + index * ENTRY.size) - _STATE_BYTES : end] == _OPEN_STATE
    ]
