# SPDX-License-Identifier: Apache-2.0
"""The files of one consume queue: which entries they have, and where."""

import struct
from collections.abc import Callable
from math import inf
from typing import Final

from cometmq.remoting.message.record_layout import RECORD_BYTES_MIN
from cometmq.store.disk import Disk, DiskFile, Piece
from cometmq.store.log.file_sequence import FileSequence
from cometmq.store.settings import CQ_ENTRY_BYTES

ENTRY: Final = struct.Struct(">qiq")
FILLER_SIZE: Final = 0x7FFFFFFF
FILLER: Final = ENTRY.pack(0, FILLER_SIZE, 0)
_BLOCK_COUNT: Final = 200  # below this, reading all is cheaper than further bisection


class QueueFiles(FileSequence):
    """Reads and locates entries by their queue offset."""

    __slots__ = ("has_gap",)

    def __init__(
        self, disk: Disk, folder: str, file_size: int, temporary: Callable[[str], str]
    ) -> None:
        super().__init__(disk, folder, file_size, temporary)
        self.has_gap = False
        """Whether a file between others is missing; recovery rebuilds the queue from the log."""

    def _found_gap(self, start: int) -> None:
        if (start - self.first) % self.file_size:
            super()._found_gap(start)
        self.has_gap = True

    def entry(self, queue_offset: int) -> tuple[int, int, int]:
        """Read an entry; blocks."""
        position = queue_offset * CQ_ENTRY_BYTES
        file = self.file_at(position)
        data = file.read((position - self.first) % self.file_size, CQ_ENTRY_BYTES)
        return ENTRY.unpack(data.ljust(CQ_ENTRY_BYTES, b"\0"))  # a short last file ends in zeros

    def place_from(self, queue_offset: int, stop: int) -> tuple[int, float]:
        """Find the first entry before `stop` that may be intact; return its offset and its place in
        the log: -1 if it is a filler, infinity if there is none. Blocks.
        """
        for at in range(queue_offset, stop):
            place, size, _ = self.entry(at)
            if size == FILLER_SIZE:
                return at, -1
            if place >= 0 and size >= RECORD_BYTES_MIN:
                return at, place
        return stop, inf

    def count(self, log_end: int) -> int:
        """Return the queue offset after the last entry that points before `log_end`.

        Valid entries come first, in log order; all entries after them are zero or point past the
        log's end. Bisection therefore finds the last valid entry in every state that a crash can
        leave.
        """
        per_file = self.file_size // CQ_ENTRY_BYTES
        first = end = self.first // CQ_ENTRY_BYTES
        low, high = 0, len(self.files)  # number of files whose first entry is valid
        while low < high:
            middle = (low + high) // 2
            if _counts(self.entry(first + middle * per_file), log_end):
                low = middle + 1
            else:
                high = middle
        if low:
            end = first + (low - 1) * per_file + _count_in(self.files[low - 1], per_file, log_end)
        return end

    def pieces(self, start: int, end: int) -> tuple[tuple[DiskFile, int, int], ...]:
        """Return the file, position and size of each part of a range of entries."""
        files, file_size = self.files, self.file_size
        position = max(start * CQ_ENTRY_BYTES, self.first) - self.first
        stop = end * CQ_ENTRY_BYTES - self.first
        index, in_file = divmod(position, file_size)
        if index < len(files) and position < stop <= position - in_file + file_size:
            return ((files[index], in_file, stop - position),)  # the usual case
        stop = min(stop, len(files) * file_size)
        pieces = []
        while position < stop:
            index, in_file = divmod(position, file_size)
            count = min(stop - position, file_size - in_file)
            pieces.append((files[index], in_file, count))
            position += count
        return tuple(pieces)

    def place(self, queue_offset: int) -> tuple[DiskFile, int]:
        """Return the file of an entry, and the entry's position in it."""
        ((file, position, _),) = self.pieces(queue_offset, queue_offset + 1)
        return file, position

    def pieces_to_write(self, queue_offset: int, entries: bytes) -> list[Piece]:
        """Return where to write entries, creating the files they need; may run on a worker
        thread.
        """
        position, file_size = queue_offset * CQ_ENTRY_BYTES, self.file_size
        self._make_first(position)
        in_file = (position - self.first) % file_size
        if position < self.end and in_file + len(entries) <= file_size:
            return [(self.file_at(position), in_file, entries)]  # the usual case
        found, start = [], 0
        while start < len(entries):
            if position >= self.end:
                self.create_next()
            in_file = (position - self.first) % file_size
            part = entries[start : start + file_size - in_file]
            found.append((self.file_at(position), in_file, part))
            position += len(part)
            start += len(part)
        return found

    def _make_first(self, position: int) -> None:
        """Create the first file when the first entry arrives, with fillers before that entry.

        Compatibility: RocketMQ fills the start of such a file with the same fillers.
        """
        if self.files:
            return
        self.begin_at(position - position % self.file_size)
        file = self.create_next()
        missing = (position - self.first) // CQ_ENTRY_BYTES
        if missing:
            file.write(0, [FILLER * missing])


def _counts(entry: tuple[int, int, int], log_end: int) -> bool:
    return entry[1] > 0 and 0 <= entry[0] < log_end


def _count_in(file: DiskFile, per_file: int, log_end: int) -> int:
    low, high = 0, min(per_file, -(-file.data_end() // CQ_ENTRY_BYTES))
    while high - low > _BLOCK_COUNT:
        middle = (low + high) // 2
        data = file.read(middle * CQ_ENTRY_BYTES, CQ_ENTRY_BYTES).ljust(CQ_ENTRY_BYTES, b"\0")
        if _counts(ENTRY.unpack(data), log_end):
            low = middle + 1
        else:
            high = middle
    data = file.read(low * CQ_ENTRY_BYTES, (high - low) * CQ_ENTRY_BYTES)
    for entry in ENTRY.iter_unpack(data[: len(data) - len(data) % CQ_ENTRY_BYTES]):
        if not _counts(entry, log_end):
            break
        low += 1
    return low
