# SPDX-License-Identifier: Apache-2.0
"""Consecutive files of equal size, named after the offset of their first byte.

Invariants: `files` has no gaps; the file that holds an offset is found by arithmetic, never by a
search.
"""

from collections.abc import Callable
from typing import Final

from cometmq.store.disk import Disk, DiskFile
from cometmq.store.errors import CorruptStore
from cometmq.store.layout import file_name, is_file_name

_PIECE_BYTES_MIN: Final = 4 << 10
_PIECE_BYTES_MAX: Final = 1 << 20


class FileSequence:
    """Finds, creates, reads and deletes the files of a commit log or of one consume queue."""

    __slots__ = ("_disk", "_temporary", "file_size", "files", "first", "folder")

    def __init__(
        self, disk: Disk, folder: str, file_size: int, temporary: Callable[[str], str]
    ) -> None:
        self._disk = disk
        self._temporary = temporary
        self.folder = folder
        self.file_size = file_size
        self.files: list[DiskFile] = []
        self.first = 0

    @property
    def end(self) -> int:
        """The offset just past the last file."""
        return self.first + len(self.files) * self.file_size

    def load(self) -> list[str]:
        """Find the files in the folder; raise CorruptStore for a gap or a wrong size. Return the
        paths that were ignored.

        A crash or a copy may leave a short last file; `pad_last` repairs it.
        """
        names = self._disk.names(self.folder)
        starts = [int(name) for name in names if is_file_name(name)]
        ignored = [f"{self.folder}/{name}" for name in names if not is_file_name(name)]
        if not starts:
            return ignored
        self.first = starts[0]
        count = next(
            (at for at, it in enumerate(starts) if it != self.first + at * self.file_size),
            len(starts),
        )
        if count < len(starts):
            self._found_gap(starts[count])
        files = [self._disk.open(self.path(start)) for start in starts]
        for file in files:
            self._check_size(file, is_last=file is files[-1])
        self.files = files[:count]
        return ignored

    def _found_gap(self, start: int) -> None:
        """Raise CorruptStore, because the file that begins at `start` does not follow another."""
        raise CorruptStore(
            f"{self.folder}: {file_name(start)} does not follow the file before it"
            f" (configured file size: {self.file_size} bytes)"
        )

    def _check_size(self, file: DiskFile, *, is_last: bool) -> None:
        size = file.size()
        if size == self.file_size or (is_last and size < self.file_size):
            return
        raise CorruptStore(f"{file.path} has {size} bytes; the configured size is {self.file_size}")

    def pad_last(self) -> bool:
        """Extend a short last file to its full size; return whether it was short."""
        if not self.files or self.files[-1].size() == self.file_size:
            return False
        self._disk.resize(self.files[-1].path, self.file_size)
        return True

    def path(self, start: int) -> str:
        """Return the path of the file that begins at `start`."""
        return f"{self.folder}/{file_name(start)}"

    def file_at(self, offset: int) -> DiskFile:
        """Return the file that holds this offset; it must exist."""
        assert self.first <= offset < self.end
        return self.files[(offset - self.first) // self.file_size]

    def files_from(self, offset: int) -> list[DiskFile]:
        """Return the files that hold data at or after this offset."""
        return self.files[max(0, offset - self.first) // self.file_size :]

    def begin_at(self, start: int) -> None:
        """Set the start offset of the first file, which does not exist yet."""
        assert not self.files
        assert start % self.file_size == 0
        self.first = start

    def create_next(self) -> DiskFile:
        """Create the file that follows the last one."""
        path = self.path(self.end)
        file = self._disk.create(path, self.file_size, temporary=self._temporary(path))
        self.files.append(file)
        return file

    def adopt_next(self, file: DiskFile) -> None:
        """Append a file that was created elsewhere."""
        assert file.path == self.path(self.end)
        self.files.append(file)

    def forget_first(self, count: int) -> list[str]:
        """Drop up to `count` leading files but never the last one; return their paths."""
        doomed = self.files[: max(0, min(count, len(self.files) - 1))]
        self.files = self.files[len(doomed) :]
        self.first += len(doomed) * self.file_size
        for file in doomed:
            file.close()
        return [file.path for file in doomed]

    def remove_from(self, offset: int) -> None:
        """Delete the files that begin at or after this offset."""
        keep = max(0, -(-(offset - self.first) // self.file_size))
        for file in self.files[keep:]:
            file.close()
            self._disk.remove(file.path)
        self.files = self.files[:keep]

    def read(self, offset: int, count: int) -> bytes:
        """Return up to `count` bytes, fewer at the end of the last file; may block."""
        parts: list[bytes] = []
        while count > 0 and self.first <= offset < self.end:
            position = (offset - self.first) % self.file_size
            wanted = min(count, self.file_size - position)
            part = self.file_at(offset).read(position, wanted)
            parts.append(part)
            if len(part) < wanted:
                break
            offset += wanted
            count -= wanted
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def has_data_from(self, offset: int) -> bool:
        """Return whether any byte at or after this offset is not zero; may block."""
        if not self.first <= offset < self.end:
            return False
        position = (offset - self.first) % self.file_size
        file, *later = self.files_from(offset)
        return _has_data(file, position, self.file_size) or any(
            _has_data(one, 0, self.file_size) for one in later
        )

    def clear_from(self, offset: int) -> None:
        """Zero everything at and after this offset and delete later files. The caller syncs.

        Truncating and extending the file frees its blocks instead of writing zeros. A crash in
        between leaves a short last file, which `pad_last` repairs.
        """
        self.remove_from(offset)
        if not self.first <= offset < self.end:
            return
        file = self.file_at(offset)
        self._disk.resize(file.path, (offset - self.first) % self.file_size)
        self._disk.resize(file.path, self.file_size)


def _has_data(file: DiskFile, position: int, end: int) -> bool:
    """Return whether a file has a byte other than zero; blocks of zeros may have been written.

    The pieces grow: the last entry of a queue is usually in the last block that is not a hole, and
    reading 1 MiB of each of 6,000 queues took 10 s.
    """
    piece = _PIECE_BYTES_MIN
    while position < end:
        rest = min(-position % piece or piece, end - position)
        piece = min(2 * piece, _PIECE_BYTES_MAX)
        found = file.next_data(position)
        if found is None:
            return False
        if found >= position + rest:
            position = found
            continue
        data = file.read(position, rest)
        if data.count(0) != len(data):
            return True
        position += rest
    return False
