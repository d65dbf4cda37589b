# SPDX-License-Identifier: Apache-2.0
"""Compare blocks of the sealed log with their checksums when they are read from the files.

The checksums (`checksums.py`) cover the log up to the last checkpoint. A block below that offset is
read as a whole, compared once, and kept for the next readers; later reads use the kept bytes. Of a
block that differs, the intact pages are served; it is compared at each read. A block without a
checksum is served as it is. Bytes after the last checkpoint were written by this
process, or were read record by record by recovery.

Invariants: kept bytes have passed the comparison, and no file is read for them again. A mismatch
adds the damaged pages to `suspects` before the read returns, so the reader can tell damage from a
short file. Any thread may read; only the thread that owns the store calls the other methods.
"""

import errno
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, TypeAlias

from cometmq.remoting.types import Buffer
from cometmq.store.disk import Descriptor, DiskFile
from cometmq.store.errors import DiskError
from cometmq.store.log.block_sums import BLOCK_BYTES, Entry, block_size, crc_of, read_by_page
from cometmq.store.log.checksums import Checksums
from cometmq.store.log.damage import DamagedRange, covers, merged, overlaps

ChecksumPlace: TypeAlias = tuple[Descriptor, int, int, int, int]
"""Where the checksums of some blocks are: the descriptor of the open checksum file, its number, the
log offset of the first block, the number of its entry, and the number after that of the last entry.
"""

KEPT_COUNT_MAX: Final = 64
"""Maximum number of kept blocks: 4 MiB. Readers of the Python path that are close to each other use
the same blocks.
"""

_NO_BYTES: Final = b""


class VerifiedReads:
    """Reads and compares blocks of one log; keeps verified blocks, and the damage that it has
    found.
    """

    __slots__ = ("_blocks", "_checksums", "_known", "_lock", "_tail", "end", "suspects")

    def __init__(self, checksums: Checksums) -> None:
        self._checksums = checksums
        self._blocks: OrderedDict[int, Buffer] = OrderedDict()
        self._lock = threading.Lock()
        self._tail = (-1, -1)
        self._known: Sequence[DamagedRange] = ()
        self.end = 0
        """Reads at or after this offset are not compared: they have no checksums yet."""
        self.suspects: tuple[DamagedRange, ...] = ()
        """Ranges that failed the comparison, until the store has recorded them as damage."""

    def extend(self, end: int) -> None:
        """Compare reads up to this offset, which checksums cover now."""
        self.end = max(self.end, end)

    def note_truncated(self, end: int) -> None:
        """Forget everything about the bytes of a truncated log."""
        self.end = min(self.end, end)
        self.suspects = ()
        self.forget()

    def forget(self) -> None:
        """Drop the kept blocks, because their bytes may have changed."""
        with self._lock:
            self._blocks.clear()
            self._tail = (-1, -1)

    def note_known(self, damage: Sequence[DamagedRange]) -> None:
        """Take over the damage that the store has recorded; its ranges are no suspects."""
        self._known = damage
        self.settle(damage)

    def settle(self, ranges: Sequence[DamagedRange]) -> None:
        """Forget the suspects that the store has recorded as damage, or found to be intact."""
        with self._lock:
            rest = (it for it in self.suspects if not overlaps(ranges, *_place(it)))
            self.suspects = tuple(rest)

    def is_suspect(self, offset: int, size: int) -> bool:
        """Return whether a range overlaps a block that failed the comparison."""
        return bool(self.suspects) and overlaps(self.suspects, offset, size)

    def read(
        self, file: DiskFile, start: int, position: int, count: int, *, may_block: bool
    ) -> Buffer | None:
        """Return bytes of the log file that begins at `start`; empty if one of their blocks is
        damaged.

        Return None if reading would block and `may_block` is false.
        """
        in_block = position % BLOCK_BYTES
        kept = self._blocks.get(start + position - in_block)
        if kept is not None and in_block + count <= len(kept):
            return memoryview(kept)[in_block : in_block + count]  # the usual case: no copy
        stop, whole = position + count, self.end - start
        if whole < self._checksums.file_size:
            whole -= whole % BLOCK_BYTES
        number = position // BLOCK_BYTES
        parts: list[Buffer] = []
        while position < stop and position < whole:
            begin = number * BLOCK_BYTES
            block = self._blocks.get(start + begin)
            if block is None:
                part = range(position - begin, min(stop - begin, BLOCK_BYTES))
                found = self._load(file, start, number, part, may_block=may_block)
                if not found:
                    return found
                block = found
            if stop <= begin + BLOCK_BYTES and not parts:
                return memoryview(block)[position - begin : stop - begin]
            parts.append(memoryview(block)[position - begin : stop - begin])
            position = begin + BLOCK_BYTES
            number += 1
        if position < stop:  # the rest is in the last block with a checksum, or after it
            rest = self._read_tail(file, start, position, stop - position, may_block=may_block)
            if not rest or not parts:
                return rest
            parts.append(rest)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _load(
        self, file: DiskFile, start: int, number: int, part: range, *, may_block: bool
    ) -> Buffer | None:
        """Return a whole block, which checksums cover completely; b"" if the wanted part of it is
        damaged.
        """
        begin = number * BLOCK_BYTES
        size = block_size(self._checksums.file_size, number)
        entry = self._checksums.entry(start, number, may_block=may_block)
        if entry is None:
            return None
        length, crc = entry
        data = _whole(file, begin, size, may_block=may_block)
        if data is None:
            return None
        if len(data) == size and (not length or crc_of(data, length) == crc):
            with self._lock:
                blocks = self._blocks
                blocks[start + begin] = data
                if len(blocks) > KEPT_COUNT_MAX:
                    blocks.popitem(last=False)
            return data
        if not length:
            entry = (size, 0)  # nothing proves a part of what cannot be read
        return self._salvage(file, start, number, entry, data, part, may_block=may_block)

    def _read_tail(
        self, file: DiskFile, start: int, position: int, count: int, *, may_block: bool
    ) -> Buffer | None:
        """Read bytes after the last whole block; compare the part of their block that has a
        checksum.
        """
        number = position // BLOCK_BYTES
        begin = number * BLOCK_BYTES
        end = self.end
        if start + begin < end and self._tail != (start + begin, end):
            entry = self._checksums.entry(start, number, may_block=may_block)
            if entry is None:
                return None
            length, crc = entry
            data = _whole(file, begin, length, may_block=may_block) if length else _NO_BYTES
            if data is None:
                return None
            if len(data) == length and (not length or crc_of(data, length) == crc):
                self._tail = (start + begin, end)
            else:
                part = range(position - begin, position - begin + count)
                found = self._salvage(file, start, number, entry, data, part, may_block=may_block)
                if not found:
                    return found
        if may_block:
            return file.read(position, count)
        return file.read_cached(position, count)

    def _salvage(  # the state of a comparison that failed
        self,
        file: DiskFile,
        start: int,
        number: int,
        entry: Entry,
        data: Buffer,
        part: range,
        *,
        may_block: bool,
    ) -> Buffer | None:
        """Return the bytes of a damaged block, with anything in its damaged pages; b"" if these
        overlap the wanted part.
        """
        length, begin = entry[0], start + number * BLOCK_BYTES
        if len(data) < length:
            read = partial(_whole, file, may_block=may_block)
            pages = read_by_page(read, begin - start, length)
            if pages is None:
                return None
            data = pages
        found = self._checksums.damage_in(start, number, entry, data, may_block=may_block)
        if found is None:
            return None
        self._suspect(found)
        return _NO_BYTES if overlaps(merged(found), begin + part.start, len(part)) else data

    def _suspect(self, found: Iterable[DamagedRange]) -> None:
        with self._lock:
            new = [it for it in found if not covers(self._known, it)]
            self.suspects = merged([*self.suspects, *new])

    def place(self, offset: int, position: int, count: int) -> ChecksumPlace | None:
        """Return where the checksums of bytes at this offset are, for native code.

        The bytes are at `position` of a log file, where a block begins.
        """
        if offset >= self.end:
            return None
        descriptor = self._checksums.descriptor(offset - position)
        if descriptor is None:
            return None
        covered = min(position + count, position + self.end - offset)
        first, stop = position // BLOCK_BYTES, -(-covered // BLOCK_BYTES)
        return descriptor, descriptor.number, offset, first, stop


def _whole(file: DiskFile, begin: int, size: int, *, may_block: bool) -> Buffer | None:
    """Return bytes of a file, or fewer if the disk cannot read them."""
    try:
        data = file.read(begin, size) if may_block else file.read_cached(begin, size)
    except DiskError as error:
        if error.errno != errno.EIO:
            raise
        return _NO_BYTES
    return data


def _place(damage: DamagedRange) -> tuple[int, int]:
    return damage.start, damage.end - damage.start
