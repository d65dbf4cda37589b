# SPDX-License-Identifier: Apache-2.0
"""The checksums of a block of the log: computed, encoded, and compared with the block's pages.

A block has an entry with its CRC-32, and the running CRCs of its pages: the states that the
computation of its CRC passes through. They cost nothing to compute, and are read only if the block
differs, to find the pages that do. Their own CRC is continued from that of the entry, so they are
never older than it (docs/protocol/store.md#checksums).
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeAlias
from zlib import crc32

from cometmq.remoting.types import Buffer
from cometmq.store.disk import Descriptor, Disk, DiskFile
from cometmq.store.errors import DiskError
from cometmq.store.log.damage import DamagedRange

BLOCK_BYTES: Final = 64 << 10
"""The unit of comparison: readers load and keep whole blocks. The checksums of 1 MiB take 0.1 ms,
0.3 ms without native code (bench/micro/bench_checksums.py).
"""

PAGE_BYTES: Final = 4 << 10
"""The unit of damage: readers get no message that shares a byte with a damaged page."""

Part: TypeAlias = tuple[int, int, int, bytes | None]
"""The begin and end of a range of a file, which lies in one block; the CRC-32 of the bytes of the
block before it, and the CRCs of the pages before it, if they are known.
"""

BlockSums: TypeAlias = Callable[[int, int, Sequence[Part]], bytes | None]
"""Returns the encoded sums (`Sums`) of the blocks of some parts, given the descriptor of a log file
and its start; None if some bytes cannot be read.
"""

Sums: TypeAlias = bytes
"""The encoded checksums of a block: its entry, and the CRCs of its pages."""

Entry: TypeAlias = tuple[int, int]
"""Number of covered bytes from the start of the block, and their CRC-32."""

UNKNOWN: Final[Entry] = (0, 0)
ENTRY: Final = struct.Struct(">III")  # length, CRC of these bytes, CRC of offset, length and CRC
_PROVEN: Final = struct.Struct(">qII")
_CRC: Final = struct.Struct(">I")
_PAGES_BYTES: Final = (BLOCK_BYTES // PAGE_BYTES - 1) * _CRC.size  # followed by their CRC
PAGED_BYTES: Final = _PAGES_BYTES + _CRC.size
SUMS_BYTES: Final = ENTRY.size + PAGED_BYTES


def block_size(file_size: int, number: int) -> int:
    """Return the size of a block of a log file of this size, whose last block may be shorter."""
    return min(BLOCK_BYTES, file_size - number * BLOCK_BYTES)


def crc_of(data: Buffer, length: int) -> int:
    """Return the CRC-32 of the first bytes, without releasing the interpreter lock.

    See `encoded`: above 5 KiB, zlib releases the lock, and waits for it up to 5 ms.
    """
    crc = 0
    view = memoryview(data)
    for position in range(0, length, PAGE_BYTES):
        crc = crc32(view[position : min(position + PAGE_BYTES, length)], crc)
    return crc


def encoded(data: Buffer, start: int, parts: Sequence[Part]) -> Sums:
    """Return what `BlockSums` does, from the bytes of adjacent parts, without releasing the
    interpreter lock.

    zlib releases the lock for inputs above 5 KiB. While the loop is busy, the thread then waits up
    to 5 ms to get it back, which made checkpoints fall far behind under full load. Pages avoid
    this: the CRCs of a MiB take 0.3 ms without interruption.
    """
    first, view, found = parts[0][0], memoryview(data), bytearray()
    for begin, end, before, known in parts:
        number, at, crc = begin // BLOCK_BYTES, begin, before
        in_block = begin - number * BLOCK_BYTES
        pages = bytearray(known or b"")[: in_block // PAGE_BYTES * _CRC.size]
        while at < end:
            page_end = at - at % PAGE_BYTES + PAGE_BYTES
            crc = crc32(view[at - first : min(page_end, end) - first], crc)
            if page_end <= end:
                pages += _CRC.pack(crc)
            at = page_end
        length = end - number * BLOCK_BYTES
        own = proof(start, number, (length, crc))
        found += ENTRY.pack(length, crc, own)
        if known is None:
            found += bytes(PAGED_BYTES)
        else:
            paged = bytes(pages[:_PAGES_BYTES]).ljust(_PAGES_BYTES, b"\0")
            found += paged + _CRC.pack(crc32(paged, own))
    return bytes(found)


def proof(start: int, number: int, entry: Entry) -> int:
    """Return the CRC of the entry of a block of the log file that begins at `start`."""
    return crc32(_PROVEN.pack(start + number * BLOCK_BYTES, *entry), BLOCK_BYTES)


def pages_of(data: Buffer, entry_proof: int) -> bytes:
    """Return the CRCs of pages from their encoding; empty if they do not belong to the entry with
    this CRC.
    """
    pages, own = bytes(data[:_PAGES_BYTES]), bytes(data[_PAGES_BYTES:])
    return pages if own == _CRC.pack(crc32(pages, entry_proof)) else b""


def damaged_pages(data: Buffer, offset: int, entry: Entry, pages: bytes) -> list[DamagedRange]:
    """Return the ranges of the pages that differ, of a block that begins at an offset of the log;
    the whole block if the CRCs of its pages are unknown.
    """
    length, crc = entry
    if not pages:
        return [DamagedRange(offset, offset + length)]
    view, found, before = memoryview(data), [], 0
    running = [it for (it,) in _CRC.iter_unpack(pages)][: length // PAGE_BYTES]
    for at, after in zip(range(0, length, PAGE_BYTES), [*running, crc], strict=False):
        end = min(at + PAGE_BYTES, length)
        if crc32(view[at:end], before) != after:
            found.append(DamagedRange(offset + at, offset + end))
        before = after
    return found


def read_by_page(read: Callable[[int, int], Buffer | None], begin: int, size: int) -> bytes | None:
    """Return bytes that cannot be read at once, with zeros for the pages that cannot be read.

    `read` returns fewer bytes than it should if they cannot be read, and None if it would block.
    """
    found = bytearray(size)
    for at in range(0, size, PAGE_BYTES):
        page = read(begin + at, min(PAGE_BYTES, size - at))
        if page is None:
            return None
        found[at : at + len(page)] = page
    return bytes(found)


class ChecksumFile:
    """The checksums of one log file: an entry for each block, then the CRCs of pages.

    Files of older releases end after the entries. What cannot be read counts as unknown: the log
    itself may be intact.
    """

    __slots__ = ("_file", "_is_short", "_pages_at", "_start")

    def __init__(self, file: DiskFile, start: int, log_file_size: int) -> None:
        self._file = file
        self._start = start
        self._pages_at, whole = sizes(log_file_size)
        self._is_short = file.size() < whole

    def entries(self, first: int, stop: int, *, may_block: bool) -> list[Entry] | None:
        """Return the entries of adjacent blocks; None if reading them would block."""
        count = stop - first
        data = self._read(first * ENTRY.size, count * ENTRY.size, may_block=may_block)
        if data is None:
            return None
        if not data.strip(b"\0"):  # usual at a checkpoint; saves 0.1 ms per MiB
            return [UNKNOWN] * count
        rows = ENTRY.iter_unpack(data.ljust(count * ENTRY.size, b"\0"))
        return [
            (length, crc) if own == proof(self._start, number, (length, crc)) else UNKNOWN
            for number, (length, crc, own) in enumerate(rows, first)
        ]

    def pages(self, number: int, entry: Entry, *, may_block: bool = True) -> bytes | None:
        """Return the CRCs of the pages of a block with this entry, followed by zeros; empty if they
        are unknown, None if reading them would block.
        """
        data = self._read(self._pages_at + number * PAGED_BYTES, PAGED_BYTES, may_block=may_block)
        return None if data is None else pages_of(data, proof(self._start, number, entry))

    def part(self, number: int, entry: Entry, wanted: int) -> Part:
        """Return the part of a block between the end of its entry and the wanted end."""
        at, (length, crc) = number * BLOCK_BYTES, entry
        return at + length, at + wanted, crc, (self.pages(number, entry) or None) if length else b""

    def _read(self, at: int, count: int, *, may_block: bool) -> bytes | None:
        try:
            data: Buffer | None = (
                self._file.read(at, count) if may_block else self._file.read_cached(at, count)
            )
        except DiskError:
            return b""
        return None if data is None else bytes(data)

    def write(self, disk: Disk, sums: dict[int, Sums]) -> None:
        """Write the checksums of adjacent blocks with one write to each part of the file."""
        if self._is_short:
            count = self._pages_at // ENTRY.size
            disk.resize(self._file.path, self._pages_at + count * PAGED_BYTES)
            self._is_short = False
        for run in _runs(sums):
            first = run[0]
            entries = b"".join([sums[it][: ENTRY.size] for it in run])
            self._file.write(first * ENTRY.size, [entries])
            paged = b"".join([sums[it][ENTRY.size :] for it in run])
            self._file.write(self._pages_at + first * PAGED_BYTES, [paged])

    def sums(self, number: int) -> Sums:
        """Return the checksums of a block as they are."""
        paged = self._file.read(self._pages_at + number * PAGED_BYTES, PAGED_BYTES)
        return self._file.read(number * ENTRY.size, ENTRY.size) + paged.ljust(PAGED_BYTES, b"\0")

    def has_entries_from(self, number: int) -> bool:
        """Return whether any entry from this one on was written."""
        at = number * ENTRY.size
        return bool(self._file.read(at, self._pages_at - at).strip(b"\0"))

    def clear_from(self, number: int) -> None:
        """Overwrite the entries from this one on with zeros; the CRCs of pages are useless without
        them.
        """
        at = number * ENTRY.size
        self._file.write(at, [bytes(self._pages_at - at)])

    def sync(self) -> None:
        """Block until all written bytes are on the disk."""
        self._file.sync()

    def descriptor(self) -> Descriptor | None:
        """Return a descriptor of the file, which begins with the entries; None if there is none."""
        try:
            return self._file.descriptor()
        except DiskError:
            return None


def sizes(log_file_size: int) -> tuple[int, int]:
    """Return the size of all entries for a log file, and that of the whole file of checksums."""
    count = -(-log_file_size // BLOCK_BYTES)
    return count * ENTRY.size, count * (ENTRY.size + PAGED_BYTES)


def _runs(numbers: Iterable[int]) -> Iterator[list[int]]:
    """Yield the runs of adjacent numbers."""
    run: list[int] = []
    for number in sorted(numbers):
        if run and number != run[-1] + 1:
            yield run
            run = []
        run.append(number)
    if run:
        yield run
