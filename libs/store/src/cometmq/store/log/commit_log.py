# SPDX-License-Identifier: Apache-2.0
"""The append-only log of all messages: its files, its end, writing and reading.

The log's bytes are interpreted elsewhere (`writing/append.py`, `recovery/recovery.py`). Readers on
other threads use an immutable `LogView`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from cometmq.remoting.types import Buffer
from cometmq.store.disk import Disk, DiskFile
from cometmq.store.layout import Layout
from cometmq.store.log.damage import DamagedRange, overlaps
from cometmq.store.log.file_sequence import FileSequence
from cometmq.store.log.verified import VerifiedReads


class LogView(NamedTuple):
    """An immutable snapshot of the log, for readers; `end` is the confirm offset."""

    files: Sequence[DiskFile]
    file_size: int
    first: int
    end: int
    damage: Sequence[DamagedRange] = ()
    verified: VerifiedReads | None = None

    def read(self, offset: int, count: int, *, may_block: bool) -> Buffer | None:
        """Return bytes from one file; None if reading them would block and `may_block` is false.

        If any of them are damaged, return fewer bytes; `is_damaged` is then true for the range.
        """
        if self.damage and overlaps(self.damage, offset, count):
            return b""
        file, position = self.locate(offset)
        verified = self.verified
        if verified is not None and offset < verified.end:
            start = offset - position
            return verified.read(file, start, position, count, may_block=may_block)
        return file.read(position, count) if may_block else file.read_cached(position, count)

    def locate(self, offset: int) -> tuple[DiskFile, int]:
        """Return the file that holds the byte at this offset, and its position there."""
        index, position = divmod(offset - self.first, self.file_size)
        return self.files[index], position

    @property
    def has_damage(self) -> bool:
        """Whether any range is known to be damaged."""
        return bool(self.damage or (self.verified is not None and self.verified.suspects))

    def is_damaged(self, offset: int, size: int) -> bool:
        """Return whether a record at this offset overlaps a range that is known to be damaged."""
        if self.damage and overlaps(self.damage, offset, size):
            return True
        return self.verified is not None and self.verified.is_suspect(offset, size)


class LogRead(NamedTuple):
    """A range of the log that lies within one file."""

    log: LogView
    offset: int
    size: int

    def cached(self) -> Buffer | None:
        """Return the bytes if they are in memory, otherwise None; never block."""
        return self.log.read(self.offset, self.size, may_block=False)

    def load(self) -> Buffer:
        """Return the bytes, or fewer if they are damaged or the file ends; may block."""
        return self.log.read(self.offset, self.size, may_block=True) or b""


class CommitLog:
    """The files of the log, its end, and the confirm offset up to which readers may see it.

    The confirm offset never exceeds `end`. Unless `Publisher.confirm` sets a bound, every commit
    advances the confirm offset.
    """

    __slots__ = ("_view", "confirm_offset", "damage", "end", "files", "verified")

    def __init__(self, disk: Disk, layout: Layout, file_size: int, verified: VerifiedReads) -> None:
        self.files = FileSequence(disk, layout.commit_log, file_size, layout.temporary)
        self.end = 0
        self.confirm_offset = 0
        self.damage: Sequence[DamagedRange] = ()
        self.verified = verified
        self._view: LogView | None = None

    @property
    def min_offset(self) -> int:
        """The physical offset of the oldest byte in the log."""
        return self.files.first

    def view(self) -> LogView:
        """Return a snapshot of the files up to the confirm offset."""
        # Every pull takes a view, so it is cached. Code that changes the file list calls
        # `forget_view`.
        view = self._view
        if view is None or view.end != self.confirm_offset:
            view = self._view = self._view_to(self.confirm_offset)
        return view

    def view_to_end(self) -> LogView:
        """Return a snapshot of the files up to the end; replicas also get unconfirmed bytes."""
        return self._view_to(self.end)

    def raw_view(self) -> LogView:
        """Return a snapshot up to the end whose reads are not compared with the checksums."""
        return self._view_to(self.end)._replace(damage=(), verified=None)

    def _view_to(self, end: int) -> LogView:
        files = self.files
        return LogView(
            tuple(files.files), files.file_size, files.first, end, self.damage, self.verified
        )

    def forget_view(self) -> None:
        """Discard the cached snapshot after the file list has changed."""
        self._view = None

    def set_damage(self, damage: Sequence[DamagedRange]) -> None:
        """Replace the damaged ranges; readers skip the records in them."""
        self.damage = damage
        self.forget_view()

    def write(self, offset: int, records: Sequence[Buffer]) -> None:
        """Write whole records to the file that holds `offset`, creating it if necessary."""
        files = self.files
        number, position = divmod(offset - files.first, files.file_size)
        if number >= len(files.files):
            assert offset == files.end
            files.create_next()
        files.files[number].write(position, records)

    def advance(self, end: int) -> None:
        """Make the bytes up to `end` part of the log."""
        assert end >= self.end
        self.end = end

    def confirm(self, offset: int) -> None:
        """Advance the confirm offset to `offset`, the end of a whole record."""
        assert self.confirm_offset <= offset <= self.end
        self.confirm_offset = offset

    def set_end(self, offset: int) -> None:
        """Set both the end and the confirm offset to the end that a scan of the files found."""
        self.end = self.confirm_offset = offset

    def read(self, offset: int, count: int) -> bytes:
        """Return up to `count` bytes, fewer at the end of the log; may block."""
        return self.files.read(offset, min(count, self.end - offset))

    def forget_first(self, count: int) -> list[str]:
        """Drop the first `count` files; return their paths for deletion."""
        paths = self.files.forget_first(count)
        self.forget_view()
        return paths

    def truncate(self, offset: int) -> None:
        """Truncate the log: zero the rest of this file on the disk and delete later files.

        Zeros are required: a later write may end exactly at an old record boundary, and recovery
        would then accept the old bytes after it as part of the log
        (docs/protocol/store.md#torn-tails).
        """
        assert self.files.first <= offset
        self.files.clear_from(offset)
        if offset < self.files.end:
            self.files.file_at(offset).sync()
        self.forget_view()
        self.set_end(offset)
