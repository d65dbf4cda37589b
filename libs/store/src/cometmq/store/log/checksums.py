# SPDX-License-Identifier: Apache-2.0
"""A checksum of each block of the log, in a file beside each log file (docs/protocol/store.md).

The CRC of a body does not cover the rest of its record, and nothing else would detect bytes that
change on the disk after a sync. After a checkpoint the CRC-32 of every block added to the log is
computed (`extend`). The scrubber, and startup in some cases, compare blocks with their checksums
(`check`).

`damage_in` finds the damaged pages of a block that differs (`log/block_sums.py`).

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
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple
from zlib import crc32

from cometmq.remoting.types import Buffer
from cometmq.store.disk import Descriptor, Disk, DiskFile
from cometmq.store.errors import DiskError
from cometmq.store.layout import Layout
from cometmq.store.log.block_sums import (
    BLOCK_BYTES,
    ENTRY,
    SUMS_BYTES,
    UNKNOWN,
    BlockSums,
    ChecksumFile,
    Entry,
    Part,
    Sums,
    crc_of,
    damaged_pages,
    encoded,
    read_by_page,
    sizes,
)
from cometmq.store.log.damage import DamagedRange, merged
from cometmq.store.log.file_sequence import FileSequence

CHUNK_BYTES: Final = 1 << 20
"""Bytes that are compared at a time."""

EXTENDED_BYTES: Final = 4 << 20
"""Bytes whose checksums are computed and written at a time."""


class Span(NamedTuple):
    """A range of one log file: the file's start offset, and two positions in the file."""

    file: DiskFile
    start: int
    begin: int
    end: int


class Check(NamedTuple):
    """The outcome of comparing a span with its checksums."""

    damaged: list[DamagedRange]
    """Damaged pages, or whole blocks whose pages have no checksums, in log order."""
    unknown: dict[int, Sums]
    """Computed checksums, by block number, that are missing from the checksum file."""


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
        self, disk: Disk, layout: Layout, file_size: int, *, block_sums: BlockSums | None = None
    ) -> None:
        """Use `block_sums` instead of Python code for files that have a descriptor."""
        self._block_sums = block_sums
        self._disk = disk
        self._layout = layout
        self.file_size = file_size
        self._files: dict[int, ChecksumFile] = {}
        self._lock = threading.Lock()
        self.generation = 0
        """A counter that changes whenever entries are removed."""

    def load(self) -> None:
        """Find the files; a file of the wrong size is treated as missing."""
        folder = self._layout.checksums
        for name in self._disk.names(folder):
            if name.isdigit():
                file = self._disk.open(f"{folder}/{name}")
                if file.size() in sizes(self.file_size):
                    self._files[int(name)] = ChecksumFile(file, int(name), self.file_size)

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
            for chunk in _chunks(span, EXTENDED_BYTES):
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
            broken = self._compare(chunk, known, result.damaged)
            computed = self._computed(chunk, known)
            result.unknown.update((at, it) for at, it in computed.items() if at not in broken)
        return result

    def refine(self, span: Span, generation: int) -> None:
        """Compute the CRCs of pages that intact blocks lack, such as those of old releases."""
        for chunk in _chunks(span):
            lacking, file = {}, self._files.get(chunk.start)
            for number, entry in enumerate(self._read(chunk), _blocks(chunk)[0]):
                length, at = entry[0], number * BLOCK_BYTES
                if length and file is not None and file.pages(number, entry) == b"":
                    sums = self._sums(chunk, [(at, at + length, 0, b"")])
                    if sums is not None and ENTRY.unpack_from(sums)[:2] == entry:
                        lacking[number] = sums
            self.learn(chunk.start, lacking, generation)

    def entry(self, start: int, number: int, *, may_block: bool) -> Entry | None:
        """Return the entry of one block, with length 0 if it is unknown; None if reading it would
        block.
        """
        found = self.entries(start, number, number + 1, may_block=may_block)
        return None if found is None else found[0]

    def damage_in(
        self, start: int, number: int, entry: Entry, data: Buffer, *, may_block: bool
    ) -> list[DamagedRange] | None:
        """Return the damaged pages of a block whose bytes differ from its entry, or all of them if
        the CRCs of pages are unknown; None if reading these would block.
        """
        file = self._files.get(start)
        pages = b"" if file is None else file.pages(number, entry, may_block=may_block)
        if pages is None:
            return None
        return damaged_pages(data, start + number * BLOCK_BYTES, entry, pages)

    def entries(self, start: int, first: int, stop: int, *, may_block: bool) -> list[Entry] | None:
        """Return the entries of adjacent blocks, as `entry` does."""
        file = self._files.get(start)
        if file is None:
            return [UNKNOWN] * (stop - first)
        return file.entries(first, stop, may_block=may_block)

    def descriptor(self, start: int) -> Descriptor | None:
        """Return a descriptor of the entries of the log file that begins at `start`; None if there
        are none.
        """
        file = self._files.get(start)
        return None if file is None else file.descriptor()

    def still_damaged(self, files: FileSequence, part: DamagedRange) -> Sequence[DamagedRange]:
        """Return what is damaged in the blocks of a range; all of it if any checksum is unknown."""
        checks = [self.check(span) for span in spans(files, *part)]
        if any(check.unknown for check in checks):
            return (part,)
        return merged(it for check in checks for it in check.damaged)

    def restore(self, span: Span, data: Buffer, generation: int) -> int:
        """Replace the content of a damaged block by intact bytes, if they fit its checksum; may
        block.

        `span` begins at the start of the block, and `data` has at least one byte of it. If the
        checksum covers more bytes than `data` has, the missing ones are taken from the file.

        Return the number of bytes that the checksum covers. Return 0 and write nothing if the bytes
        do not fit, if the checksum is unknown, or if entries have been removed since `generation`.
        """
        length, crc = self.entry(span.start, span.begin // BLOCK_BYTES, may_block=True) or UNKNOWN
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

    def do_if_current(self, generation: int, action: Callable[[], object]) -> bool:
        """Change derived files, unless entries have been removed since `generation`; may block.

        A truncation of the log waits for the change, so that it never follows the truncation.
        """
        with self._lock:
            is_current = generation == self.generation
            if is_current:
                action()
        return is_current

    def learn(self, start: int, sums: dict[int, Sums], generation: int) -> None:
        """Write computed checksums, unless some have been removed since `generation`."""
        with self._lock:
            if sums and generation == self.generation:
                self._write(start, sums)

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
        (entry,) = self._read(span._replace(end=span.begin + 1))
        if entry[0] <= in_block and not file.has_entries_from(number + 1):
            return
        begin = number * BLOCK_BYTES
        kept = span._replace(begin=begin, end=begin + in_block)
        sums = {}
        if in_block and entry[0] == in_block:
            sums[number] = file.sums(number)
        elif in_block:
            sums = self._computed(kept, [entry if entry[0] < in_block else UNKNOWN])
        file.clear_from(number)
        file.write(self._disk, sums)
        file.sync()

    def _computed(self, chunk: Span, known: list[Entry]) -> dict[int, Sums]:
        """Compute the checksums that a chunk lacks; extend entries that cover part of their
        block.
        """
        first, _ = _blocks(chunk)
        lacking = [
            (number, entry, min(BLOCK_BYTES, chunk.end - number * BLOCK_BYTES))
            for number, entry in enumerate(known, first)
            if entry[0] < min(BLOCK_BYTES, chunk.end - number * BLOCK_BYTES)
        ]
        if not lacking:
            return {}
        file = self._files.get(chunk.start)
        parts: list[Part]
        if file is None:
            parts = [(it * BLOCK_BYTES, it * BLOCK_BYTES + end, 0, b"") for it, _, end in lacking]
        else:
            parts = [file.part(*it) for it in lacking]
        sums = self._sums(chunk, parts)
        if sums is None and len(lacking) > 1:  # skip the unreadable blocks only
            found: dict[int, Sums] = {}
            for number, entry, wanted in lacking:
                at = number * BLOCK_BYTES
                block = chunk._replace(begin=at, end=at + wanted)
                found |= self._computed(block, [entry])
            return found
        if sums is None:
            return {}
        return {
            number: sums[index * SUMS_BYTES : (index + 1) * SUMS_BYTES]
            for index, (number, _, _) in enumerate(lacking)
        }

    def _sums(self, span: Span, parts: Sequence[Part]) -> Sums | None:
        """Return the encoded checksums of some parts; None if some bytes cannot be read."""
        file = span.file
        descriptor = file.descriptor() if self._block_sums is not None else None
        if descriptor is not None and self._block_sums is not None:
            found = self._block_sums(descriptor.number, span.start, parts)
            if found is not None:
                return found
        begin, end = parts[0][0], parts[-1][1]
        data = _readable(file, begin, end)  # it raises the error, unless the disk is damaged
        if data is None or len(data) < end - begin:
            return None
        return encoded(data, span.start, parts)

    def _read(self, span: Span) -> list[Entry]:
        return self.entries(span.start, *_blocks(span), may_block=True) or []

    def _write(self, start: int, sums: dict[int, Sums]) -> None:
        file = self._files.get(start)
        if file is None:
            path = self._layout.checksum_file(start)
            _, size = sizes(self.file_size)
            created = self._disk.create(path, size, temporary=self._layout.temporary(path))
            file = self._files[start] = ChecksumFile(created, start, self.file_size)
            self._disk.sync_folder(self._layout.checksums)
        file.write(self._disk, sums)

    def _compare(self, chunk: Span, known: list[Entry], damaged: list[DamagedRange]) -> set[int]:
        """Add the damage in a chunk to `damaged`; return the numbers of the damaged blocks."""
        first, _ = _blocks(chunk)
        data = _readable(chunk.file, chunk.begin, chunk.end)
        broken = set()
        for number, entry in enumerate(known, first):
            begin, (length, crc) = number * BLOCK_BYTES, entry
            part: Buffer | None
            if data is not None and begin - chunk.begin + length <= len(data):
                part = memoryview(data)[begin - chunk.begin : begin - chunk.begin + length]
            else:  # an entry covers more than the span, or part of the chunk is unreadable
                part = _readable(
                    chunk.file, begin, max(begin + length, min(begin + BLOCK_BYTES, chunk.end))
                )
            if part is not None and (not length or crc32(part[:length]) == crc):
                continue
            broken.add(number)
            offset = chunk.start + begin
            if not length:
                damaged.append(DamagedRange(offset, offset + min(BLOCK_BYTES, chunk.end - begin)))
                continue
            if part is None:
                part = read_by_page(partial(_read_some, chunk.file), begin, length) or b""
            damaged += self.damage_in(chunk.start, number, entry, part, may_block=True) or ()
        return broken


def _blocks(span: Span) -> tuple[int, int]:
    return span.begin // BLOCK_BYTES, -(-span.end // BLOCK_BYTES)


def _chunks(span: Span, size: int = CHUNK_BYTES) -> Iterator[Span]:
    """Split a span into pieces that begin at block boundaries."""
    begin = span.begin - span.begin % BLOCK_BYTES
    for position in range(begin, span.end, size):
        yield span._replace(begin=position, end=min(position + size, span.end))


def _readable(file: DiskFile, begin: int, end: int) -> bytes | None:
    """Return bytes of a file, or None if reading them fails."""
    try:
        return file.read(begin, end - begin)
    except DiskError as error:
        if error.errno != errno.EIO:
            raise
        return None


def _read_some(file: DiskFile, begin: int, count: int) -> bytes:
    return _readable(file, begin, begin + count) or b""
