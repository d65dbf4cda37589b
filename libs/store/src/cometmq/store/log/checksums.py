# SPDX-License-Identifier: Apache-2.0
"""A checksum of each block of the log, in a file beside each log file (docs/protocol/store.md).

The CRC of a body does not cover the rest of its record, and nothing else would detect bytes that
change on the disk after a sync. After a checkpoint the CRC-32 of every block added to the log is
computed (`extend`). The scrubber, and startup in some cases, compare blocks with their checksums
(`check`).

Invariants:

- An entry covers the first `length` bytes of its block and has its own CRC. If an entry fails
  its CRC, is torn or is missing, its block counts as unknown, never as damaged.
- Entries are written after the bytes they cover are synced, and removed durably before these bytes
  are cut or overwritten.
- Only checkpoints write entries of the block that contains the sealed end and of later blocks; only
  the scrubber writes earlier ones. A truncation may run at the same time as the scrubber's thread,
  so `generation` and a lock protect the entries.
"""

import errno
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias
from zlib import crc32

from cometmq.remoting.types import Buffer
from cometmq.store.disk import Descriptor, Disk, DiskFile
from cometmq.store.errors import DiskError
from cometmq.store.layout import Layout
from cometmq.store.log.damage import DamagedRange
from cometmq.store.log.file_sequence import FileSequence

BLOCK_BYTES: Final = 64 << 10
"""A damaged byte makes all messages of its block unreadable, so blocks should be small; but each
block costs an entry. The checksums of 1 MiB take 0.7 ms (bench/micro/bench_checksums.py).
"""

CHUNK_BYTES: Final = 1 << 20
"""Bytes that are read at a time."""

PIECE_BYTES: Final = 4 << 10

Part: TypeAlias = tuple[int, int, int]
"""The begin and end of a range of a file, and the CRC-32 of the bytes before it."""

FileCrcs: TypeAlias = Callable[[int, Sequence[Part]], Sequence[int] | None]
"""Returns the CRC-32 of each part of a file, given its descriptor; None if some bytes cannot be
read.
"""

Entry: TypeAlias = tuple[int, int]
"""Number of covered bytes from the start of the block, and their CRC-32."""

_UNKNOWN: Final[Entry] = (0, 0)
_ENTRY: Final = struct.Struct(">III")  # length, CRC of these bytes, CRC of offset, length and CRC
_PROVEN: Final = struct.Struct(">qII")


class Span(NamedTuple):
    """A range of one log file: the file's start offset, and two positions in the file."""

    file: DiskFile
    start: int
    begin: int
    end: int


class Check(NamedTuple):
    """The outcome of comparing a span with its checksums."""

    damaged: list[DamagedRange]
    unknown: dict[int, Entry]
    """Computed entries, by block number, that are missing from the checksum file."""


def spans(files: FileSequence, begin: int, end: int) -> list[Span]:
    """Split a range of the log at file boundaries."""
    begin, end = max(begin, files.first), min(end, files.end)
    found = []
    while begin < end:
        position = (begin - files.first) % files.file_size
        count = min(end - begin, files.file_size - position)
        found.append(Span(files.file_at(begin), begin - position, position, position + count))
        begin += count
    return found


def block_start(files: FileSequence, offset: int) -> int:
    """Return the first offset of the block that contains an offset."""
    position = (offset - files.first) % files.file_size
    return offset - position % BLOCK_BYTES


class Checksums:
    """Computes, stores and compares the checksums of one store's log."""

    def __init__(
        self, disk: Disk, layout: Layout, file_size: int, *, file_crcs: FileCrcs | None = None
    ) -> None:
        """Use `file_crcs` instead of Python code for files that have a descriptor."""
        self._file_crcs = file_crcs
        self._disk = disk
        self._layout = layout
        self.file_size = file_size
        self._size = -(-file_size // BLOCK_BYTES) * _ENTRY.size
        self._files: dict[int, DiskFile] = {}
        self._lock = threading.Lock()
        self.generation = 0
        """A counter that changes whenever entries are removed."""

    def load(self) -> None:
        """Find the files; a file of the wrong size is treated as missing."""
        folder = self._layout.checksums
        for name in self._disk.names(folder):
            if name.isdigit():
                file = self._disk.open(f"{folder}/{name}")
                if file.size() == self._size:
                    self._files[int(name)] = file

    def without_log_file(self, first: int) -> list[int]:
        """Return the starts of log files that are missing before `first`, the log's first offset,
        although their checksums still exist; in order.
        """
        return [start for start in self._starts() if start < first]

    def _starts(self) -> list[int]:
        names = self._disk.names(self._layout.checksums)
        return sorted(int(name) for name in names if name.isdigit())

    def keep(self, files: FileSequence, end: int) -> int:
        """Delete the checksums of files that begin outside the log or at or after `end`.

        Return the number of files whose checksums were deleted.
        """
        doomed = [start for start in self._starts() if not files.first <= start < end]
        for start in doomed:
            self._remove(start)
        return len(doomed)

    def take_paths(self, starts: Sequence[int]) -> list[str]:
        """Drop the checksums of expired log files; return the paths of their files, which the
        caller deletes.
        """
        with self._lock:
            self.generation += 1  # the scrubber must not create them again
            for start in starts:
                self._files.pop(start, None)
        return [self._layout.checksum_file(start) for start in starts]

    def _remove(self, start: int) -> None:
        self._files.pop(start, None)
        self._disk.remove(self._layout.checksum_file(start))

    def extend(self, parts: Sequence[Span], generation: int) -> None:
        """Compute and sync the checksums of synced bytes, skipping unreadable blocks; may block."""
        for span in parts:
            for chunk in _chunks(span):
                fresh = self._computed(chunk, self._read(chunk))
                self.learn(chunk.start, fresh, generation)
            file = self._files.get(span.start)
            if file is not None:
                file.sync()

    def check(self, span: Span) -> Check:
        """Compare a span with its checksums; may block. Unreadable bytes count as damaged."""
        result = Check([], {})
        for chunk in _chunks(span):
            known = self._read(chunk)
            _compare(chunk, known, result.damaged)
            broken = {damage.start for damage in result.damaged}
            for number, entry in self._computed(chunk, known).items():
                if chunk.start + number * BLOCK_BYTES not in broken:
                    result.unknown[number] = entry
        return result

    def block_size(self, number: int) -> int:
        """Return the size of the block with this number; the last block of a file may be
        shorter.
        """
        return min(BLOCK_BYTES, self.file_size - number * BLOCK_BYTES)

    def entry(self, start: int, number: int, *, may_block: bool) -> Entry | None:
        """Return the entry of one block, with length 0 if it is unknown; None if reading it would
        block.
        """
        found = self.entries(start, number, number + 1, may_block=may_block)
        return None if found is None else found[0]

    def entries(self, start: int, first: int, stop: int, *, may_block: bool) -> list[Entry] | None:
        """Return the entries of adjacent blocks, as `entry` does."""
        count = stop - first
        file = self._files.get(start)
        try:
            if file is None:
                data: Buffer | None = b""
            elif may_block:
                data = file.read(first * _ENTRY.size, count * _ENTRY.size)
            else:
                data = file.read_cached(first * _ENTRY.size, count * _ENTRY.size)
        except DiskError:
            data = b""  # unknown: the log itself may be intact
        if data is None:
            return None
        data = bytes(data)
        if not data.strip(b"\0"):  # usual at a checkpoint; saves 0.1 ms per MiB
            return [_UNKNOWN] * count
        rows = _ENTRY.iter_unpack(data.ljust(count * _ENTRY.size, b"\0"))
        return [
            (length, crc) if proof == _proof(start, number, length, crc) else _UNKNOWN
            for number, (length, crc, proof) in enumerate(rows, first)
        ]

    def descriptor(self, start: int) -> Descriptor | None:
        """Return a descriptor of the entries of the log file that begins at `start`; None if there
        are none.
        """
        file = self._files.get(start)
        try:
            return None if file is None else file.descriptor()
        except DiskError:
            return None  # unknown: the log itself may be intact

    def prove(self, parts: Sequence[Span]) -> bool:
        """Return whether every block has a matching checksum; may block."""
        checks = [self.check(span) for span in parts]
        return not any(check.damaged or check.unknown for check in checks)

    def restore(self, span: Span, data: Buffer, generation: int) -> int:
        """Replace the content of a damaged block by intact bytes, if they fit its checksum; may
        block.

        `span` begins at the start of the block, and `data` has at least one byte of it. If the
        checksum covers more bytes than `data` has, the missing ones are taken from the file.

        Return the number of bytes that the checksum covers. Return 0 and write nothing if the bytes
        do not fit, if the checksum is unknown, or if entries have been removed since `generation`.
        """
        length, crc = self.entry(span.start, span.begin // BLOCK_BYTES, may_block=True) or _UNKNOWN
        fresh = memoryview(data)[:length]
        whole = bytes(fresh)
        if len(whole) < length:
            whole += _readable(span.file, span.begin + len(whole), span.begin + length) or b""
        if not length or len(whole) < length or crc_of(whole, length) != crc:
            return 0
        # A handle of its own gets its own report of a failed sync: the one of the log's next sync,
        # which acknowledged messages depend on, must not be used up here.
        file = self._disk.open(span.file.path)
        try:
            with self._lock:  # a truncation removes entries first, and waits
                if generation != self.generation:
                    return 0
                file.write(span.begin, [fresh])
            file.sync()
        finally:
            file.close()
        return length

    def write_if_current(self, generation: int, file: DiskFile, at: int, data: Buffer) -> bool:
        """Write derived bytes, unless entries have been removed since `generation`; may block.

        A truncation of the log waits for the write, so that it never follows the truncation.
        """
        with self._lock:
            is_current = generation == self.generation
            if is_current:
                file.write(at, [data])
        return is_current

    def learn(self, start: int, entries: dict[int, Entry], generation: int) -> None:
        """Write computed entries, unless entries have been removed since `generation`."""
        with self._lock:
            if entries and generation == self.generation:
                self._write(start, entries)

    def truncate(self, files: FileSequence, offset: int) -> None:
        """Remove entries that cover bytes at or after an offset; blocks until this is durable."""
        with self._lock:
            self.generation += 1
            for start in [start for start in self._files if start >= offset]:
                self._remove(start)
            for span in spans(files, offset, offset + 1):
                self._cut(span)

    def _cut(self, span: Span) -> None:
        file = self._files.get(span.start)
        if file is None:
            return
        number, in_block = divmod(span.begin, BLOCK_BYTES)
        first = number * _ENTRY.size
        (entry,) = self._read(span._replace(end=span.begin + 1))
        if entry[0] <= in_block and not file.read(first + _ENTRY.size, self._size).strip(b"\0"):
            return
        begin = number * BLOCK_BYTES
        kept = span._replace(begin=begin, end=begin + in_block)
        known = [entry if entry[0] <= in_block else _UNKNOWN]
        fresh = self._computed(kept, known) if in_block else {}
        file.write(first, [bytes(self._size - first)])
        self._write(span.start, {number: fresh.get(number, known[0])})
        file.sync()

    def _computed(self, chunk: Span, known: list[Entry]) -> dict[int, Entry]:
        """Compute the entries that a chunk lacks; extend entries that cover part of their block."""
        first, _ = _blocks(chunk)
        lacking = [
            (number, entry, min(BLOCK_BYTES, chunk.end - number * BLOCK_BYTES))
            for number, entry in enumerate(known, first)
            if entry[0] < min(BLOCK_BYTES, chunk.end - number * BLOCK_BYTES)
        ]
        if not lacking:
            return {}
        parts = [
            (number * BLOCK_BYTES + length, number * BLOCK_BYTES + wanted, crc)
            for number, (length, crc), wanted in lacking
        ]
        crcs = self._crcs(chunk.file, parts)
        if crcs is None and len(lacking) > 1:  # skip the unreadable blocks only
            found: dict[int, Entry] = {}
            for number, entry, wanted in lacking:
                at = number * BLOCK_BYTES
                block = chunk._replace(begin=at, end=at + wanted)
                found |= self._computed(block, [entry])
            return found
        return {
            number: (wanted, crc)
            for (number, _, wanted), crc in zip(lacking, crcs or (), strict=False)
        }

    def _crcs(self, file: DiskFile, parts: Sequence[Part]) -> Sequence[int] | None:
        """Return the CRC-32 of each part of a file; None if some bytes cannot be read."""
        descriptor = file.descriptor() if self._file_crcs is not None else None
        if descriptor is not None and self._file_crcs is not None:
            found = self._file_crcs(descriptor.number, parts)
            if found is not None:
                return found
        return _crcs(file, parts)  # it raises the error, unless the disk is damaged

    def _read(self, span: Span) -> list[Entry]:
        return self.entries(span.start, *_blocks(span), may_block=True) or []

    def _write(self, start: int, entries: dict[int, Entry]) -> None:
        """Write the entries of consecutive blocks with one write each."""
        file = self._files.get(start)
        if file is None:
            path = self._layout.checksum_file(start)
            temporary = self._layout.temporary(path)
            file = self._files[start] = self._disk.create(path, self._size, temporary=temporary)
            self._disk.sync_folder(self._layout.checksums)
        for first, packed in _runs(start, entries):
            file.write(first * _ENTRY.size, [packed])


def crc_of(data: Buffer, length: int) -> int:
    """Return the CRC-32 of the first bytes, without releasing the interpreter lock.

    See `_crcs`: above 5 KiB, zlib releases the lock, and waits for it up to 5 ms.
    """
    crc = 0
    view = memoryview(data)
    for position in range(0, length, PIECE_BYTES):
        crc = crc32(view[position : min(position + PIECE_BYTES, length)], crc)
    return crc


def _blocks(span: Span) -> tuple[int, int]:
    return span.begin // BLOCK_BYTES, -(-span.end // BLOCK_BYTES)


def _chunks(span: Span) -> Iterator[Span]:
    """Split a span into pieces that begin at block boundaries."""
    begin = span.begin - span.begin % BLOCK_BYTES
    for position in range(begin, span.end, CHUNK_BYTES):
        yield span._replace(begin=position, end=min(position + CHUNK_BYTES, span.end))


def _proof(start: int, number: int, length: int, crc: int) -> int:
    return crc32(_PROVEN.pack(start + number * BLOCK_BYTES, length, crc), BLOCK_BYTES)


def _runs(start: int, entries: dict[int, Entry]) -> Iterator[tuple[int, bytes]]:
    run, first = bytearray(), 0
    for number in sorted(entries):
        if run and number != first + len(run) // _ENTRY.size:
            yield first, bytes(run)
            run.clear()
        if not run:
            first = number
        length, crc = entries[number]
        run += _ENTRY.pack(length, crc, _proof(start, number, length, crc))
    if run:
        yield first, bytes(run)


def _crcs(file: DiskFile, parts: Sequence[Part]) -> list[int] | None:
    """Read the bytes and compute their CRCs without releasing the interpreter lock.

    zlib releases the lock for inputs above 5 KiB. While the loop is busy, the thread then waits up
    to 5 ms to get it back, which made checkpoints fall far behind under full load. Smaller
    pieces avoid this: the CRCs of a chunk take 0.7 ms without interruption.
    """
    start, stop = parts[0][0], parts[-1][1]
    data = _readable(file, start, stop)
    if data is None or len(data) < stop - start:
        return None
    view, found = memoryview(data), []
    for begin, end, before in parts:
        crc = before
        for piece in range(begin - start, end - start, PIECE_BYTES):
            crc = crc32(view[piece : min(piece + PIECE_BYTES, end - start)], crc)
        found.append(crc)
    return found


def _compare(chunk: Span, known: list[Entry], damaged: list[DamagedRange]) -> None:
    first, _ = _blocks(chunk)
    data = _readable(chunk.file, chunk.begin, chunk.end)
    for number, (length, crc) in enumerate(known, first):
        begin = number * BLOCK_BYTES
        part: Buffer | None
        if data is not None and begin - chunk.begin + length <= len(data):
            part = memoryview(data)[begin - chunk.begin : begin - chunk.begin + length]
        else:  # an entry covers more than the span, or part of the chunk is unreadable
            end = max(begin + length, min(begin + BLOCK_BYTES, chunk.end))
            part = _readable(chunk.file, begin, end)
        if part is None or (length and crc32(part[:length]) != crc):
            covered = length or min(BLOCK_BYTES, chunk.end - begin)
            start = chunk.start + begin
            damaged.append(DamagedRange(start, start + covered))


def _readable(file: DiskFile, begin: int, end: int) -> bytes | None:
    """Return bytes of a file, or None if reading them fails."""
    try:
        return file.read(begin, end - begin)
    except DiskError as error:
        if error.errno != errno.EIO:
            raise
        return None
