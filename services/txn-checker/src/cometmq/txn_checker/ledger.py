# SPDX-License-Identifier: Apache-2.0
"""The ledger of one broker's transactions: two tables and the redo log of their changes.

A change is appended to the redo log before it is applied to the tables, so replaying the log
repairs whatever state a crash leaves. Replay is idempotent, because records hold new values, not
increments.

The low-water mark is the offset of the oldest open half message (`HalfTable.low_water`). The op
mark is the offset of the first op message that ends a half message at or above it (`OpTable.mark`).

Invariants: every entry from `begin` to `next` is written. A new ledger that reads the half queue
from the low-water mark and the op queue from the op mark has the same open transactions.

This module uses neither a clock nor the network; the disk is a parameter.
"""

from collections.abc import Collection, Iterable, Sequence
from enum import IntEnum
from itertools import chain
from struct import Struct
from typing import Final, NamedTuple

from cometmq.store.disk import Disk, DiskFile
from cometmq.store.redo_log import FILE_BYTES, Record, RedoLog
from cometmq.txn_checker.tables import (
    CHECK,
    CHUNK,
    COUNT_MAX,
    ENTRY,
    OP,
    Half,
    HalfTable,
    OpenHalf,
    OpTable,
    State,
)

ENTRIES_PER_FILE: Final = 250_000
REDO_LOG: Final = "redolog"
FOLDERS: Final = ("statetable", "checks", "ops", REDO_LOG)

_POSITIONS: Final = Struct(">QQQQ")
_START: Final = Struct(">Q")
_INDEX: Final = Struct(">Q")
_ASKED: Final = Struct(">QIHH")
_HALF_BYTES: Final = ENTRY.size + CHECK.size


class Kind(IntEnum):
    """The kinds of redo log records."""

    CHECKPOINT = 1
    HALVES = 2
    OPS = 3
    ASKED = 4
    CLOSED = 5
    HALVES_GONE = 6
    OPS_GONE = 7


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
        """Recover from the folder; blocks. If the log or the tables are incomplete, set `is_new`:
        the caller must call `begin`.
        """
        self._disk = disk
        self.folder = folder
        disk.make_folder(folder)
        self.halves: Final = HalfTable(disk, folder, entries_per_file)
        self.ops: Final = OpTable(disk, folder, entries_per_file)
        self._tables = (*self.halves.files, self.ops.files)
        self._part = min(CHUNK, log_file_bytes // 64)  # so that a part always fits into one record
        self._log = RedoLog(disk, f"{folder}/{REDO_LOG}", file_bytes=log_file_bytes)
        self.ended_count = 0
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
        return self.halves.recount()

    def _is_behind(self, checkpoint: bytes) -> bool:
        _, half_next, _, op_next = _POSITIONS.unpack(checkpoint)
        return bool(self.halves.next < half_next or self.ops.next < op_next)

    def _clear(self) -> None:
        for table in self._tables:
            table.clear()
        self._log.clear()
        self.halves.start(0)
        self.ops.start(0)

    def reset(self) -> None:
        """Drop all state, because the broker's queues have been replaced."""
        self._clear()
        self.is_new = True

    def begin(self, half_offset: int, op_offset: int) -> None:
        """Begin a new ledger at these offsets in the two queues."""
        assert self.is_new
        self.halves.start(half_offset)
        self.ops.start(op_offset)
        self._log.begin_file(Kind.CHECKPOINT, self._positions())
        self.is_new = False

    # Changes

    def add_halves(self, halves: Sequence[Half]) -> None:
        for start in range(0, len(halves), self._part):
            part = halves[start : start + self._part]
            entries = b"".join(half.entry() for half in part)
            checks = b"".join(half.check() for half in part)
            self._change(Kind.HALVES, _START.pack(self.halves.next) + entries + checks)

    def read_ops(self, ops: Sequence[Collection[int]]) -> int:
        """Apply the next op messages, each given as the offsets of the half messages that it ends.

        Stop at the first one that ends a half message that has not been read yet; return the number
        of applied op messages.
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
        are_open = self.halves.open_among(half for halves in ops for half in halves)
        for halves in ops:
            if any(half >= self.halves.next for half in halves):
                break
            if highest and len(ends) + len(halves) > self._part:
                break
            highest.append(OP.pack(max(halves, default=-1) + 1))
            ends += [_INDEX.pack(half) for half in halves if half in are_open]
        for start in range(
            self._part, len(ends), self._part
        ):  # one op message may end more half messages than a record holds
            rest = b"".join(ends[start : start + self._part])
            self._change(Kind.OPS, _POSITIONS.pack(self.ops.next, 0, len(rest) // 8, 0) + rest)
        if highest:
            head = _POSITIONS.pack(self.ops.next, len(highest), min(len(ends), self._part), 0)
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
        known = [_INDEX.pack(offset) for offset in sorted(self.halves.open_among(offsets))]
        for start in range(0, len(known), self._part):
            self._change(Kind.CLOSED, b"".join(known[start : start + self._part]))

    def halves_gone(self, below: int) -> None:
        """Drop the half messages below an offset, because the broker has deleted them."""
        if below > self.halves.begin:
            self._change(Kind.HALVES_GONE, _START.pack(below))

    def ops_gone(self, below: int) -> None:
        """Skip the op messages below an offset, because the broker has deleted them."""
        if below > self.ops.next:
            self._change(Kind.OPS_GONE, _START.pack(below))

    def _change(self, kind: Kind, payload: bytes) -> None:
        if not self._log.has_room(len(payload)):
            self._log.begin_file(Kind.CHECKPOINT, self._positions())
        self._log.append(kind, payload)
        self._apply(Record(kind, payload))

    def _apply(self, record: Record) -> None:
        self.is_changed = True
        payload = record.payload
        match Kind(record.kind):
            case Kind.CHECKPOINT:
                half_begin, half_next, op_begin, op_next = _POSITIONS.unpack(payload)
                self.halves.advance(half_begin, half_next)
                self.ops.advance(op_begin, op_next)
            case Kind.HALVES:
                (start,) = _START.unpack_from(payload)
                count = (len(payload) - _START.size) // _HALF_BYTES
                checks_at = _START.size + count * ENTRY.size
                self.halves.put(start, payload[_START.size : checks_at], payload[checks_at:])
            case Kind.OPS:
                start, op_count, end_count, _ = _POSITIONS.unpack_from(payload)
                ends_at = _POSITIONS.size + op_count * OP.size
                ends = payload[ends_at : ends_at + end_count * _INDEX.size]
                self.ops.put(start, payload[_POSITIONS.size : ends_at])
                self.ended_count += self.halves.end(_indices(ends), State.COMMITTED)
            case Kind.ASKED:
                for index, asked_s, count, immunity_s in _ASKED.iter_unpack(payload):
                    self.halves.put_check(index, CHECK.pack(asked_s, count, immunity_s))
            case Kind.CLOSED:
                self.halves.end(_indices(payload), State.ROLLED_BACK)
            case Kind.HALVES_GONE:
                self.halves.drop_below(_START.unpack(payload)[0])
            case Kind.OPS_GONE:
                self.ops.start(_START.unpack(payload)[0])

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in (*self._tables, self._log))

    # Checkpoints

    def _positions(self) -> bytes:
        halves, ops = self.halves, self.ops
        return _POSITIONS.pack(halves.begin, halves.next, ops.begin, ops.next)

    def checkpoint(self) -> Checkpoint:
        """Drop the entries below the two marks, and start a new log file.

        The caller calls `sync` of the result on a thread, and then `note_synced`.
        """
        halves, ops = self.halves, self.ops
        halves.begin = max(halves.begin, halves.low_water)
        ops.begin = max(ops.begin, ops.mark(halves.begin))
        self.is_changed = False
        log_file = self._log.begin_file(Kind.CHECKPOINT, self._positions())
        files = [file for table in self._tables for file in table.unsynced()]
        folders = [self.folder, *(f"{self.folder}/{name}" for name in FOLDERS)]
        return Checkpoint(
            self._disk,
            folders,
            [*files, log_file],
            self._log.file_start,
            halves.begin,
            ops.begin,
            [table.write_count for table in self._tables],
        )

    def note_synced(self, checkpoint: Checkpoint) -> None:
        """Delete the files that recovery no longer needs, now that the checkpoint is durable.

        If the sync failed, do not call this; the next checkpoint syncs the same files again.
        """
        for table, write_count in zip(self._tables, checkpoint.write_counts, strict=True):
            table.note_synced(write_count)
        self._log.drop_below(checkpoint.log_start)
        for table in self.halves.files:
            table.drop_below(checkpoint.half_begin)
        self.ops.files.drop_below(checkpoint.op_begin)


def _indices(data: bytes) -> Iterable[int]:
    return chain.from_iterable(_INDEX.iter_unpack(data))
