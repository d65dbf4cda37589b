# SPDX-License-Identifier: Apache-2.0
"""The append-only log of all messages: where it begins and ends, writing, reading.

What the bytes mean is the business of `append.py` (records in) and `recovery.py`. A reader on
another thread works on a `LogView`, which never changes.
"""

from collections.abc import Sequence
from typing import NamedTuple

from cometmq.remoting.types import Buffer
from cometmq.store.disk import Disk, DiskFile
from cometmq.store.file_sequence import FileSequence
from cometmq.store.layout import Layout


class LogView(NamedTuple):
    """The files of the log at one moment, for reading."""

    files: Sequence[DiskFile]
    file_size: int
    first: int
    end: int

    def read(self, offset: int, count: int, *, may_block: bool) -> Buffer | None:
        """Return bytes of one file; None if they are not in memory and must not be waited for."""
        index, position = divmod(offset - self.first, self.file_size)
        if may_block:
            return self.files[index].read(position, count)
        return self.files[index].read_cached(position, count)


class CommitLog:
    """The files of the log, its end, and the confirm offset up to which readers may see it.

    Without replication the confirm offset follows every commit. It never exceeds `end`.
    """

    __slots__ = ("_view", "confirm_offset", "end", "files")

    def __init__(self, disk: Disk, layout: Layout, file_size: int) -> None:
        """Know the folder; `load` finds the files."""
        self.files = FileSequence(disk, layout.commit_log, file_size, layout.temporary)
        self.end = 0
        self.confirm_offset = 0
        self._view: LogView | None = None

    @property
    def min_offset(self) -> int:
        """The physical offset of the oldest byte."""
        return self.files.first

    def view(self) -> LogView:
        """Return the log as it is now."""
        view = self._view
        if view is None or view.end != self.confirm_offset:
            files = self.files
            view = LogView(tuple(files.files), files.file_size, files.first, self.confirm_offset)
            self._view = view
        return view

    def forget_view(self) -> None:
        """Make the next view see that files came or went."""
        self._view = None

    def write(self, offset: int, records: Sequence[Buffer]) -> None:
        """Write whole records into the one file that holds the offset, made if it is missing."""
        files = self.files
        if offset >= files.end:
            assert offset == files.end
            files.create_next()
        files.file_at(offset).write((offset - files.first) % files.file_size, records)

    def advance(self, end: int) -> None:
        """Make everything up to `end` part of the log."""
        assert end >= self.end
        self.end = end

    def confirm(self, offset: int) -> None:
        """Let readers see the log up to `offset`, the end of a whole record."""
        assert self.confirm_offset <= offset <= self.end
        self.confirm_offset = offset

    def set_end(self, offset: int) -> None:
        """Set both offsets to the end that a scan of the files has found."""
        self.end = self.confirm_offset = offset

    def read(self, offset: int, count: int) -> bytes:
        """Return the bytes, fewer at the end of the log; may block."""
        return self.files.read(offset, min(count, self.end - offset))

    def forget_first(self, count: int) -> list[str]:
        """Let the log begin that many files later; return the paths to delete."""
        paths = self.files.forget_first(count)
        self.forget_view()
        return paths

    def truncate(self, offset: int) -> None:
        """Let the log end here: later bytes become zeros on the disk, later files go.

        Zeros, because a later end may meet an old record border, and recovery would take
        what follows for the log (docs/protocol/store.md#torn-tails).
        """
        assert self.files.first <= offset
        self.files.clear_from(offset)
        if offset < self.files.end:
            self.files.file_at(offset).sync()
        self.forget_view()
        self.set_end(offset)
