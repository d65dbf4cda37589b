# SPDX-License-Identifier: Apache-2.0
"""An in-memory disk that can crash: unsynced data may be lost or half written.

`contents` is the state after a process crash, `durable` the state after a power loss. Syncing a
file copies the first to the second.
"""

import errno
import mmap
from collections.abc import Callable, Sequence
from posixpath import dirname
from typing import Final, cast

from cometmq.remoting.types import Buffer
from cometmq.store.disk import Descriptor, DiskFile, DiskUsage, Piece, sync_in_turn, write_in_turn
from cometmq.store.errors import DiskError, LockHeld

Fault = Callable[[str, str], int]
"""Maps operation and path to the errno to fail with, or 0."""

SPARSE_BYTES_MIN: Final = 64 << 10
"""Minimum size of a file that is sparse on a sparse disk."""


class MemoryFile:
    """One file; all handles to it share the same bytes."""

    def __init__(self, disk: "MemoryDisk", path: str) -> None:
        self._disk = disk
        self.path = path
        count, is_reported = disk.lost_writebacks.get(path, (0, True))
        self._reported_count = count if is_reported else count - 1

    def close(self) -> None:
        """Do nothing."""

    def _data(self, operation: str) -> bytearray:
        self._disk.check(operation, self.path)
        data = self._disk.contents.get(self.path)
        if data is None:
            raise DiskError(operation, self.path, errno.ENOENT)
        return data

    def size(self) -> int:
        """Return the length in bytes."""
        return len(self._data("stat"))

    def read(self, offset: int, count: int) -> bytes:
        """Return up to `count` bytes, fewer at the end of the file."""
        return bytes(memoryview(self._data("read"))[offset : offset + count])

    def read_cached(self, offset: int, count: int) -> Buffer | None:
        """Return the bytes, or None if the test has made the disk cold."""
        return None if self._disk.is_cold else self.read(offset, count)

    def descriptor(self) -> Descriptor | None:
        """Return None: the file is in memory."""
        return None

    def next_data(self, offset: int) -> int | None:
        """Return the offset of the next byte that is not zero."""
        rest = bytes(memoryview(self._data("seek"))[offset:])
        stripped = rest.lstrip(b"\0")
        return offset + len(rest) - len(stripped) if stripped else None

    def data_end(self) -> int:
        """Return the offset after which all bytes are zero."""
        return len(bytes(self._data("seek")).rstrip(b"\0"))

    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write all buffers."""
        data = self._data("write")
        joined = b"".join(buffers)
        assert offset + len(joined) <= len(data), "a write beyond the end of a fixed file"
        data[offset : offset + len(joined)] = joined
        self._disk.last_write = (self.path, offset, len(joined))

    def start_writeback(self, offset: int, count: int) -> None:
        """Record the range; only a sync makes bytes survive a power loss."""
        self._disk.writebacks.append((self.path, offset, count))

    def sync(self) -> None:
        """Make the bytes survive a power loss; fail if a writeback has failed since the last sync
        through this file object.
        """
        data = self._data("sync")
        count, _ = self._disk.lost_writebacks.get(self.path, (0, True))
        if count != self._reported_count:
            self._disk.lost_writebacks[self.path] = count, True
            self._reported_count = count
            raise DiskError("sync", self.path, errno.EIO)
        self._disk.durable[self.path] = bytes(data)
        self._disk.sync_count += 1


class _MemoryLock:
    def __init__(self, locks: set[str], path: str) -> None:
        self._locks = locks
        self._path = path

    def release(self) -> None:
        self._locks.discard(self._path)


class MemoryDisk:
    """Files in memory; replaces `OsDisk` in tests."""

    def __init__(self, *, is_sparse: bool = False) -> None:
        """With `is_sparse`, a page of a new file takes neither time nor memory until it is used, as
        on a real disk. A `bytearray` of 32 MB takes 20 to 90 ms, which a test that measures the
        caller would count. The contents of such a file are a map: a test can read and write slices
        of it, and nothing else.
        """
        self._is_sparse = is_sparse
        self.contents: dict[str, bytearray] = {}
        self.durable: dict[str, bytes] = {}
        self.folders: set[str] = {"/"}
        self.last_write: tuple[str, int, int] = ("", 0, 0)
        self.is_cold = False
        self.sync_count = 0
        self.writebacks: list[tuple[str, int, int]] = []
        self.lost_writebacks: dict[str, tuple[int, bool]] = {}
        """For each file, how often a writeback has failed, and whether a sync has reported that."""
        self.used_percent = 10
        self.fault: Fault | None = None
        self._locks: set[str] = set()

    def check(self, operation: str, path: str) -> None:
        """Fail if the test has set a fault for this operation."""
        number = self.fault(operation, path) if self.fault is not None else 0
        if number:
            raise DiskError(operation, path, number)

    def crash(self, *, lost_bytes: int = 0) -> None:
        """Crash the process: release its locks, and drop `lost_bytes` of its last write."""
        self._locks.clear()
        path, offset, size = self.last_write
        if lost_bytes:
            assert lost_bytes <= size
            self.contents[path][offset + size - lost_bytes : offset + size] = bytes(lost_bytes)

    def lose_power(self) -> None:
        """Keep only synced data; unsynced files keep their length, filled with zeros."""
        self._locks.clear()
        for path, data in self.contents.items():
            durable = self.durable.get(path, b"")
            data[:] = durable[: len(data)].ljust(len(data), b"\0")

    def lose_writeback(self, path: str) -> None:
        """Let a writeback fail as on Linux: the next sync through each file object that is open now
        fails.
        """
        count, _ = self.lost_writebacks.get(path, (0, True))
        self.lost_writebacks[path] = count + 1, False

    def open(self, path: str) -> MemoryFile:
        """Return the file at this path."""
        return MemoryFile(self, path)

    def open_apart(self, path: str) -> MemoryFile:
        """Return the file at this path."""
        self.check("open", path)
        return self.open(path)

    def create(self, path: str, size: int, *, temporary: str) -> MemoryFile:
        """Create a file of zeros."""
        self.check("create", path)
        assert temporary != path
        self.make_folder(dirname(path))
        self.contents[path] = self._zeros(size)
        return MemoryFile(self, path)

    def _zeros(self, size: int) -> bytearray:
        if not self._is_sparse or size < SPARSE_BYTES_MIN:
            return bytearray(size)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        return cast("bytearray", mmap.mmap(-1, size, flags=flags))

    def write_each(self, pieces: Sequence[Piece]) -> None:
        """Write pieces of many files; raise DiskError at the first failure."""
        write_in_turn(pieces)

    def sync_each(self, files: Sequence[DiskFile]) -> None:
        """Sync many files; raise DiskError at the first failure."""
        sync_in_turn(files)

    def resize(self, path: str, size: int) -> None:
        """Truncate a file or extend it with zeros."""
        self.check("resize", path)
        kept = self.contents[path][:size]
        data = self.contents[path] = self._zeros(size)
        data[: len(kept)] = kept

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in a folder."""
        prefix = folder.rstrip("/") + "/"
        paths = [*self.contents, *self.folders]
        inside = (path[len(prefix) :] for path in paths if path.startswith(prefix))
        return sorted({name.split("/")[0] for name in inside if name})

    def exists(self, path: str) -> bool:
        """Return whether a file or folder exists."""
        return path in self.contents or path in self.folders

    def is_folder(self, path: str) -> bool:
        """Return whether a folder exists."""
        return path in self.folders

    def make_folder(self, path: str) -> None:
        """Create a folder and its parents."""
        self.check("make folder", path)
        while path not in self.folders:
            self.folders.add(path)
            path = dirname(path)

    def remove(self, path: str) -> None:
        """Delete a file."""
        self.check("delete", path)
        self.contents.pop(path, None)
        self.durable.pop(path, None)

    def remove_tree(self, path: str) -> None:
        """Delete a folder and its contents."""
        self.check("delete", path)
        for name in [name for name in self.contents if name.startswith(path + "/")]:
            self.remove(name)
        self.folders -= {
            name for name in self.folders if name == path or name.startswith(path + "/")
        }

    def rename(self, path: str, target: str) -> None:
        """Rename a file."""
        self.contents[target] = self.contents.pop(path)
        if path in self.durable:
            self.durable[target] = self.durable.pop(path)

    def sync_folder(self, path: str) -> None:
        """Check for a fault; names are always durable here."""
        self.check("sync", path)

    def sync_all(self, folder: str) -> bool:
        """Make all bytes survive a power loss."""
        self.check("sync", folder)
        self.durable.update((path, bytes(data)) for path, data in list(self.contents.items()))
        self.sync_count += 1
        return True

    def usage(self, path: str) -> DiskUsage:
        """Return the usage set by the test."""
        self.check("usage", path)
        return DiskUsage(self.used_percent * 1000, (100 - self.used_percent) * 1000)

    def lock(self, path: str) -> _MemoryLock:
        """Lock the folder; raise LockHeld."""
        if path in self._locks:
            raise LockHeld(path)
        self._locks.add(path)
        return _MemoryLock(self._locks, path)

    def locked_by(self, path: str) -> int | None:
        """Return 0 (an unknown process) if the path is locked, otherwise None."""
        return 0 if path in self._locks else None
