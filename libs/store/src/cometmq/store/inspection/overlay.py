# SPDX-License-Identifier: Apache-2.0
"""A disk that keeps changes apart, to rehearse a recovery on files that must not change.

Reads return the bytes written to the overlay, and fall through to the underlying disk elsewhere.
Written pages are in memory, and beyond MEMORY_BYTES_MAX in a temporary file: a recovery that builds
a lost index again writes 40 bytes for each message.
"""

import errno
from collections.abc import Sequence
from tempfile import SpooledTemporaryFile
from typing import Final
from weakref import finalize

from cometmq.remoting.types import Buffer
from cometmq.store.disk import (
    Descriptor,
    Disk,
    DiskFile,
    DiskUsage,
    Piece,
    sync_in_turn,
    write_in_turn,
)
from cometmq.store.errors import DiskError

MEMORY_BYTES_MAX: Final = 32 << 20
_PAGE_BYTES: Final = 1 << 16


class _Pages:
    """The written pages of all files of an overlay."""

    def __init__(self) -> None:
        self._file = SpooledTemporaryFile(max_size=MEMORY_BYTES_MAX)  # noqa: SIM115
        finalize(self, self._file.close)  # this deletes it
        self._count = 0

    def add(self, content: bytes) -> int:
        """Return the number of a new page."""
        self._count += 1
        self.write(self._count - 1, 0, content.ljust(_PAGE_BYTES, b"\0"))
        return self._count - 1

    def read(self, number: int, begin: int, end: int) -> bytes:
        """Return a part of a page."""
        self._file.seek(number * _PAGE_BYTES + begin)
        return self._file.read(end - begin)

    def write(self, number: int, begin: int, content: Buffer) -> None:
        """Overwrite a part of a page."""
        self._file.seek(number * _PAGE_BYTES + begin)
        self._file.write(content)


class OverlayFile:
    """One file: the underlying bytes up to `_base_end`, and the pages written to the overlay."""

    __slots__ = ("_base", "_base_end", "_pages", "_pool", "_size", "path")

    def __init__(self, path: str, base: DiskFile | None, size: int, pool: _Pages) -> None:
        """Overlay a file of the underlying disk, or zeros if there is none."""
        self.path = path
        self._base = base
        self._base_end = size if base is not None else 0
        self._size = size
        self._pages: dict[int, int] = {}  # number in the file -> number in the pool
        self._pool = pool

    def close(self) -> None:
        """Close the underlying file; keep the pages."""
        if self._base is not None:
            self._base.close()

    def size(self) -> int:
        """Return the length in bytes."""
        return self._size

    def read(self, offset: int, count: int) -> bytes:
        """Return up to `count` bytes, fewer at the end of the file; may block."""
        end = min(offset + count, self._size)
        if self._base is not None and not self._pages and end <= self._base_end:
            return self._base.read(offset, max(0, end - offset))
        data = bytearray(max(0, end - offset))
        below = min(end, self._base_end) - offset
        if self._base is not None and below > 0:
            data[:below] = self._base.read(offset, below).ljust(below, b"\0")
        for number in range(offset // _PAGE_BYTES, -(-end // _PAGE_BYTES)):
            page = self._pages.get(number)
            if page is not None:
                start = number * _PAGE_BYTES
                low, high = max(start, offset), min(start + _PAGE_BYTES, end)
                data[low - offset : high - offset] = self._pool.read(
                    page, low - start, high - start
                )
        return bytes(data)

    def read_cached(self, offset: int, count: int) -> Buffer | None:
        """Return exactly `count` bytes; may block, because overlays are not used on event loops."""
        data = self.read(offset, count)
        return data if len(data) == count else None

    def descriptor(self) -> Descriptor | None:
        """Return None: no descriptor shows the overlay."""
        return None

    def next_data(self, offset: int) -> int | None:
        """Return the offset of the first data at or after `offset`; None if there is none."""
        starts = [number * _PAGE_BYTES for number in self._pages]
        found = [max(offset, start) for start in starts if start + _PAGE_BYTES > offset]
        below = self._base.next_data(offset) if self._base is not None else None
        if below is not None and below < self._base_end:
            found.append(below)
        place = min(found, default=self._size)
        return place if place < self._size else None

    def data_end(self) -> int:
        """Return the end of the written data, which may lie before the end of the file."""
        if self._pages or self._base is None:
            return self._size
        return min(self._base.data_end(), self._base_end)

    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write the buffers back to back, into pages."""
        view = memoryview(b"".join(buffers))
        while view:
            number, in_page = divmod(offset, _PAGE_BYTES)
            page = self._pages.get(number)
            if page is None:
                below = self.read(number * _PAGE_BYTES, _PAGE_BYTES)
                page = self._pages[number] = self._pool.add(below)
            part = view[: _PAGE_BYTES - in_page]
            self._pool.write(page, in_page, part)
            offset += len(part)
            view = view[len(part) :]
            self._size = max(self._size, offset)

    def start_writeback(self, offset: int, count: int) -> None:
        """Do nothing: overlays are never written to the disk."""

    def sync(self) -> None:
        """Do nothing: the changes are discarded anyway."""

    def resize(self, size: int) -> None:
        """Truncate the file or extend it with zeros."""
        self._base_end = min(self._base_end, size)
        self._size = size
        border, in_page = divmod(size, _PAGE_BYTES)
        for number in [number for number in self._pages if number >= border]:
            if number > border:
                del self._pages[number]
            else:
                self._pool.write(self._pages[number], in_page, bytes(_PAGE_BYTES - in_page))


class _NoLock:
    def release(self) -> None:
        """Do nothing: the underlying folder was never locked."""


class OverlayDisk:
    """A `Disk` on top of another disk, which it never changes."""

    def __init__(self, base: Disk) -> None:
        self._base = base
        self._pool = _Pages()
        self._files: dict[str, OverlayFile] = {}
        self._created: set[str] = set()
        self._gone: set[str] = set()

    def _is_gone(self, path: str) -> bool:
        return any(path == gone or path.startswith(f"{gone}/") for gone in self._gone)

    def open(self, path: str) -> OverlayFile:
        """Return the file at this path."""
        file = self._files.get(path)
        if file is None:
            if self._is_gone(path):
                raise DiskError("open", path, errno.ENOENT)
            base = self._base.open(path)
            file = self._files[path] = OverlayFile(path, base, base.size(), self._pool)
        return file

    def open_apart(self, path: str) -> OverlayFile:
        """Return the file at this path."""
        return self.open(path)

    def create(self, path: str, size: int, *, temporary: str) -> OverlayFile:
        """Create a file of zeros."""
        file = self._files[path] = OverlayFile(path, None, size, self._pool)
        self._created.add(path)
        return file

    def write_each(self, pieces: Sequence[Piece]) -> None:
        """Write pieces of many files; raise DiskError at the first failure."""
        write_in_turn(pieces)

    def sync_each(self, files: Sequence[DiskFile]) -> None:
        """Sync many files; raise DiskError at the first failure."""
        sync_in_turn(files)

    def resize(self, path: str, size: int) -> None:
        """Truncate a file or extend it with zeros."""
        self.open(path).resize(size)

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in a folder; an empty list if the folder does not exist."""
        names = {name for name in self._base.names(folder) if not self._is_gone(f"{folder}/{name}")}
        prefix = f"{folder}/"
        inside = (path for path in self._created if path.startswith(prefix))
        return sorted(names | {path.removeprefix(prefix).split("/")[0] for path in inside})

    def exists(self, path: str) -> bool:
        """Return whether a file or folder exists."""
        if path in self._created or self.is_folder(path):
            return True
        return not self._is_gone(path) and self._base.exists(path)

    def is_folder(self, path: str) -> bool:
        """Return whether a folder exists."""
        if any(created.startswith(f"{path}/") for created in self._created):
            return True
        return not self._is_gone(path) and self._base.is_folder(path)

    def make_folder(self, path: str) -> None:
        """Do nothing: a folder exists as soon as it contains a file."""

    def remove(self, path: str) -> None:
        """Hide a file if it exists."""
        self._files.pop(path, None)
        self._created.discard(path)
        self._gone.add(path)

    def remove_tree(self, path: str) -> None:
        """Hide a folder and its contents if it exists."""
        prefix = f"{path}/"
        for inside in [name for name in self._files if name.startswith(prefix)]:
            del self._files[inside]
        self._created = {name for name in self._created if not name.startswith(prefix)}
        self._gone.add(path)

    def rename(self, path: str, target: str) -> None:
        """Rename a file, replacing the target."""
        file = self.open(path)
        self.remove(path)
        self._files[target] = file
        self._created.add(target)

    def sync_folder(self, path: str) -> None:
        """Do nothing: the changes are discarded anyway."""

    def sync_all(self, folder: str) -> bool:
        """Do nothing: the changes are discarded anyway."""
        return True

    def usage(self, path: str) -> DiskUsage:
        """Return the usage of the underlying file system."""
        return self._base.usage(path)

    def lock(self, path: str) -> _NoLock:
        """Return a lock that excludes no process, because the overlay keeps changes apart."""
        return _NoLock()

    def locked_by(self, path: str) -> int | None:
        """Return None, because no other process can use this disk."""
        return None
