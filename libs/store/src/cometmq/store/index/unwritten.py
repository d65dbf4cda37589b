# SPDX-License-Identifier: Apache-2.0
"""Entries of an index file that exist only in memory.

They are kept in pieces, and a full piece never changes again. A job can therefore write pieces on
its thread without copying them first; copying 64 MiB would hold the loop for 30 to 140 ms.
"""

from bisect import bisect_right
from typing import Final

from cometmq.remoting.types import Buffer
from cometmq.store.index.index_format import ENTRY, Entry

PIECE_BYTES: Final = 3_200 * ENTRY.size
"""Maximum size of a piece. The allocator reuses memory of this size; from 128 KiB on, it would
return each piece to the kernel.
"""


class UnwrittenEntries:
    """The newest entries of a file, in order of their numbers; the oldest are released first."""

    __slots__ = ("_added", "_ends", "_full", "_newest", "_released")

    def __init__(self) -> None:
        self._full: list[Buffer] = []
        self._ends: list[int] = []  # for each full piece, the bytes added up to its end
        self._newest = bytearray()
        self._added = 0  # bytes since the file began to grow
        self._released = 0

    @property
    def size_bytes(self) -> int:
        """The size of all entries."""
        return self._added - self._released

    @property
    def count(self) -> int:
        """The number of entries."""
        return self.size_bytes // ENTRY.size

    def add(self, entries: bytes) -> None:
        """Append encoded entries, which are newer than all others."""
        for start in range(0, len(entries), PIECE_BYTES):
            part = entries[start : start + PIECE_BYTES]
            if len(self._newest) + len(part) > PIECE_BYTES:
                self._fill()
            self._newest += part
            self._added += len(part)

    def _fill(self) -> None:
        """Close the newest piece; later entries begin another one."""
        if self._newest:
            self._full.append(self._newest)
            self._ends.append(self._added)
            self._newest = bytearray()

    def entry(self, index: int) -> Entry:
        """Return the entry that has `index` older ones before it."""
        position = self._released + index * ENTRY.size
        at = bisect_right(self._ends, position)
        begin = self._ends[at - 1] if at else self._released
        piece = self._full[at] if at < len(self._full) else self._newest
        return ENTRY.unpack_from(piece, position - begin)

    def pieces(self, size_bytes: int | None = None) -> tuple[Buffer, ...]:
        """Return the oldest pieces with at least this many bytes, or all; they never change."""
        if size_bytes is None:
            self._fill()
            return tuple(self._full)
        last = bisect_right(self._ends, self._released + size_bytes - 1)
        if last >= len(self._full):
            self._fill()
        return tuple(self._full[: last + 1])

    def release(self, size_bytes: int) -> None:
        """Forget the oldest pieces, which have this many bytes in all."""
        if size_bytes <= 0:
            return
        self._released += size_bytes
        count = bisect_right(self._ends, self._released)
        assert self._ends[count - 1] == self._released, "pieces leave whole"
        del self._full[:count], self._ends[:count]
