# SPDX-License-Identifier: Apache-2.0
"""A disk in memory that can crash: what was not synced may be gone, or half there.

Files and names live as a crash of the process leaves them (`contents`) and as a power loss does
(`durable`). Syncing a file copies the first to the second.
"""

import errno
from collections.abc import Callable, Sequence
from posixpath import dirname

from cometmq.remoting.types import Buffer
from cometmq.store.disk import DiskUsage
from cometmq.store.errors import DiskError, LockHeld

Fault = Callable[[str, str], int]
"""Given operation and path, the errno to fail with, or 0."""


class MemoryFile:
    """One file; all its users share the bytes."""

    def __init__(self, disk: "MemoryDisk", path: str) -> None:
        """Name a file of the disk."""
        self._disk = disk
        self.path = path

    def close(self) -> None:
        """Nothing is held."""

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
        """Return the bytes, fewer at the end of the file."""
        return bytes(self._data("read")[offset : offset + count])

    def read_cached(self, offset: int, count: int) -> Buffer | None:
        """Return the bytes unless the disk is told to be cold."""
        return None if self._disk.is_cold else self.read(offset, count)

    def next_data(self, offset: int) -> int | None:
        """Return where the next byte that is not zero lies."""
        rest = self._data("seek")[offset:]
        stripped = rest.lstrip(b"\0")
        return offset + len(rest) - len(stripped) if stripped else None

    def data_end(self) -> int:
        """Return where nothing but zeros follows."""
        return len(self._data("seek").rstrip(b"\0"))

    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write all buffers."""
        data = self._data("write")
        joined = b"".join(buffers)
        assert offset + len(joined) <= len(data), "a write beyond the end of a fixed file"
        data[offset : offset + len(joined)] = joined
        self._disk.last_write = (self.path, offset, len(joined))

    def sync(self) -> None:
        """Make the bytes survive a power loss."""
        self._disk.durable[self.path] = bytes(self._data("sync"))
        self._disk.sync_count += 1


class _MemoryLock:
    def __init__(self, locks: set[str], path: str) -> None:
        self._locks = locks
        self._path = path

    def release(self) -> None:
        self._locks.discard(self._path)


class MemoryDisk:
    """Files in memory; the tests' replacement for OsDisk."""

    def __init__(self) -> None:
        """Begin empty, whole and warm."""
        self.contents: dict[str, bytearray] = {}
        self.durable: dict[str, bytes] = {}
        self.folders: set[str] = {"/"}
        self.last_write: tuple[str, int, int] = ("", 0, 0)
        self.is_cold = False
        self.sync_count = 0
        self.used_percent = 10
        self.fault: Fault | None = None
        self._locks: set[str] = set()

    def check(self, operation: str, path: str) -> None:
        """Fail if a fault is set for this."""
        number = self.fault(operation, path) if self.fault is not None else 0
        if number:
            raise DiskError(operation, path, number)

    def crash(self, *, lost_bytes: int = 0) -> None:
        """Kill the process: locks go, and the end of the last write if it was under way."""
        self._locks.clear()
        path, offset, size = self.last_write
        if lost_bytes:
            assert lost_bytes <= size
            self.contents[path][offset + size - lost_bytes : offset + size] = bytes(lost_bytes)

    def lose_power(self) -> None:
        """Keep only what was synced; unsynced files keep their length, as zeros."""
        self._locks.clear()
        for path, data in self.contents.items():
            durable = self.durable.get(path, b"")
            data[:] = durable[: len(data)].ljust(len(data), b"\0")

    def open(self, path: str) -> MemoryFile:
        """Return the file at this path."""
        return MemoryFile(self, path)

    def create(self, path: str, size: int, *, temporary: str) -> MemoryFile:
        """Make a file of zeros."""
        self.check("create", path)
        assert temporary != path
        self.make_folder(dirname(path))
        self.contents[path] = bytearray(size)
        return MemoryFile(self, path)

    def resize(self, path: str, size: int) -> None:
        """Pad a file with zeros, or cut it."""
        self.check("resize", path)
        data = self.contents[path]
        del data[size:]
        data.extend(bytes(size - len(data)))

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in a folder."""
        prefix = folder.rstrip("/") + "/"
        paths = [*self.contents, *self.folders]
        inside = (path[len(prefix) :] for path in paths if path.startswith(prefix))
        return sorted({name.split("/")[0] for name in inside if name})

    def exists(self, path: str) -> bool:
        """Return whether there is a file or folder."""
        return path in self.contents or path in self.folders

    def is_folder(self, path: str) -> bool:
        """Return whether there is a folder."""
        return path in self.folders

    def make_folder(self, path: str) -> None:
        """Make a folder and those above it."""
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
        """Delete a folder with all in it."""
        self.check("delete", path)
        for name in [name for name in self.contents if name.startswith(path + "/")]:
            self.remove(name)
        self.folders -= {
            name for name in self.folders if name == path or name.startswith(path + "/")
        }

    def rename(self, path: str, target: str) -> None:
        """Move a file."""
        self.contents[target] = self.contents.pop(path)

    def sync_folder(self, path: str) -> None:
        """Names are always safe here."""
        self.check("sync", path)

    def usage(self, path: str) -> DiskUsage:
        """Return the use that the test has set."""
        self.check("usage", path)
        return DiskUsage(self.used_percent * 1000, (100 - self.used_percent) * 1000)

    def lock(self, path: str) -> _MemoryLock:
        """Lock, or raise LockHeld."""
        if path in self._locks:
            raise LockHeld(path)
        self._locks.add(path)
        return _MemoryLock(self._locks, path)

    def locked_by(self, path: str) -> int | None:
        """Return an unknown process if the path is locked."""
        return 0 if path in self._locks else None
