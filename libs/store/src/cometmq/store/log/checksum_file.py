# SPDX-License-Identifier: Apache-2.0
"""The file with the checksums of one log file: an entry for each block, then the CRCs of pages
(docs/protocol/store.md#checksums).

Files of older releases end after the entries. What cannot be read counts as unknown: the log itself
may be intact.
"""

from collections.abc import Iterable, Iterator

from cometmq.remoting.types import Buffer
from cometmq.store.disk import Descriptor, Disk, DiskFile
from cometmq.store.errors import DiskError
from cometmq.store.log.block_sums import (
    BLOCK_BYTES,
    ENTRY,
    PAGED_BYTES,
    UNKNOWN,
    Entry,
    Part,
    Sums,
    pages_of,
    proof,
)


class ChecksumFile:
    """Reads and writes the checksums of the log file that begins at `start`."""

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
