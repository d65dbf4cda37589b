# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PTH103, PTH104, PTH108, PTH112, PTH116, PTH120, PTH208
# Plain path texts: thousands of queues keep one each.
"""The disk as the store sees it: a port, and the operating system behind it.

Everything that touches files goes through `Disk` and `DiskFile`, so that tests can crash, fill
and break a disk in memory. An OSError becomes a DiskError here and nowhere else.

Invariants: nothing is mapped, so no access can end in SIGBUS (docs/adr/0002); files are created
under a temporary name with their full size and renamed in, because RocketMQ refuses a folder that
holds a file of another size.
"""

import errno
import fcntl
import os
import shutil
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol

from cometmq.remoting.types import Buffer
from cometmq.store.errors import DiskError, LockHeld

_IOV_COUNT_MAX: Final = 1024  # the kernel's UIO_MAXIOV
_NO_WAIT_UNSUPPORTED: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
_READ_NO_WAIT: Final = getattr(os, "RWF_NOWAIT", 0)
_FLOCK: Final = struct.Struct("hhqqi4x")  # Linux's struct flock with 64-bit offsets


class DiskUsage(NamedTuple):
    """Bytes of the file system that holds a path."""

    used: int
    available: int

    @property
    def percent(self) -> int:
        """Used share in percent, rounded up as RocketMQ does."""
        total = self.used + self.available
        return -(-100 * self.used // total) if total else 0


class DiskFile(Protocol):
    """One file of a fixed size. Reads and syncs may come from any thread."""

    @property
    def path(self) -> str:
        """Where the file is."""

    def close(self) -> None:
        """Let go of what the system holds for the file; the next use opens it again."""

    def size(self) -> int:
        """Return the length in bytes."""

    def read(self, offset: int, count: int) -> bytes:
        """Return the bytes, fewer at the end of the file; may block."""

    def read_cached(self, offset: int, count: int) -> Buffer | None:
        """Return exactly the bytes if they are in memory, else None; never blocks."""

    def next_data(self, offset: int) -> int | None:
        """Return where the next bytes lie that were ever written, at or behind this offset."""

    def data_end(self) -> int:
        """Return where the first part begins that was never written; the size without one."""

    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write all buffers one after the other, or raise DiskError."""

    def sync(self) -> None:
        """Return when all that was written is on the disk."""


class DiskLock(Protocol):
    """A lock on a store's folder, held until it is released."""

    def release(self) -> None:
        """Let others lock."""


class Disk(Protocol):
    """What a store needs of a file system."""

    def open(self, path: str) -> DiskFile:
        """Return the file at this path; it is opened when it is first used."""

    def create(self, path: str, size: int, *, temporary: str) -> DiskFile:
        """Make a file of zeros without allocating its blocks; rename it in when it is complete."""

    def resize(self, path: str, size: int) -> None:
        """Pad a file with zeros, or cut it."""

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in a folder; none if there is no such folder."""

    def exists(self, path: str) -> bool:
        """Return whether there is a file or folder."""

    def is_folder(self, path: str) -> bool:
        """Return whether there is a folder."""

    def make_folder(self, path: str) -> None:
        """Make a folder and those above it."""

    def remove(self, path: str) -> None:
        """Delete a file; one that is gone is fine."""

    def remove_tree(self, path: str) -> None:
        """Delete a folder with all in it; one that is gone is fine."""

    def rename(self, path: str, target: str) -> None:
        """Move a file, replacing another."""

    def sync_folder(self, path: str) -> None:
        """Return when the names in a folder are on the disk."""

    def usage(self, path: str) -> DiskUsage:
        """Return how full the file system is."""

    def lock(self, path: str) -> DiskLock:
        """Lock the folder by this file, or raise LockHeld."""

    def locked_by(self, path: str) -> int | None:
        """Return the process that holds the lock (0 if its id is unknown), None if none does."""


@contextmanager
def _translated(operation: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DiskError(operation, path, error.errno or errno.EIO) from error


class _Descriptor:
    """An open file descriptor; closed when the last user lets go of it.

    Other threads may still read or sync while the loop evicts or deletes the file: a
    descriptor that is closed by reference count can never be another file's.
    """

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class OsFile:
    """A file that is opened on first use and may be closed and opened again behind the scenes."""

    __slots__ = ("_descriptor", "_disk", "path")

    def __init__(self, disk: "OsDisk", path: str) -> None:
        """Remember the path; nothing is opened yet."""
        self.path = path
        self._disk = disk
        self._descriptor: _Descriptor | None = None

    def _open(self) -> _Descriptor:
        descriptor = self._descriptor
        if descriptor is None:
            with _translated("open", self.path):
                descriptor = _Descriptor(os.open(self.path, self._disk.open_flags))
            self._descriptor = descriptor
            self._disk.note_open(self)
        return descriptor

    def close(self) -> None:
        """Let go of the descriptor; the next use opens the file again."""
        self._descriptor = None

    def size(self) -> int:
        """Return the length in bytes."""
        with _translated("stat", self.path):
            return os.stat(self.path).st_size

    def read(self, offset: int, count: int) -> bytes:
        """Return the bytes, fewer at the end of the file; may block."""
        descriptor = self._open()
        with _translated("read", self.path):
            data = os.pread(descriptor.number, count, offset)
            while len(data) < count:
                more = os.pread(descriptor.number, count - len(data), offset + len(data))
                if not more:
                    break
                data += more
        return data

    def read_cached(self, offset: int, count: int) -> Buffer | None:
        """Return exactly the bytes if they are in the page cache, else None; never blocks."""
        if not self._disk.can_read_no_wait:
            return self.read(offset, count)
        descriptor = self._descriptor or self._open()
        buffer = bytearray(count)
        try:
            got = os.preadv(descriptor.number, [buffer], offset, _READ_NO_WAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in _NO_WAIT_UNSUPPORTED:
                raise DiskError("read", self.path, error.errno or errno.EIO) from error
            self._disk.can_read_no_wait = False
            return self.read(offset, count)
        return buffer if got == count else None

    def next_data(self, offset: int) -> int | None:
        """Return where the next bytes lie that were ever written, at or behind this offset."""
        descriptor = self._open()
        try:
            return os.lseek(descriptor.number, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            raise DiskError("seek in", self.path, error.errno or errno.EIO) from error

    def data_end(self) -> int:
        """Return where the first part begins that was never written; the size without one."""
        descriptor = self._open()
        with _translated("seek in", self.path):
            if not os.fstat(descriptor.number).st_size:
                return 0
            return os.lseek(descriptor.number, 0, os.SEEK_HOLE)

    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write all buffers one after the other, or raise DiskError."""
        descriptor = self._descriptor or self._open()
        for start in range(0, len(buffers), _IOV_COUNT_MAX):
            part = buffers[start : start + _IOV_COUNT_MAX]
            total = sum(map(len, part))
            try:
                written = os.pwritev(descriptor.number, part, offset)
                if written != total:
                    _write_rest(descriptor.number, part, offset, written)
            except OSError as error:
                raise DiskError("write", self.path, error.errno or errno.EIO) from error
            offset += total

    def sync(self) -> None:
        """Return when all that was written is on the disk."""
        descriptor = self._open()
        with _translated("sync", self.path):
            os.fdatasync(descriptor.number)


def _write_rest(number: int, buffers: Sequence[Buffer], offset: int, written: int) -> None:
    """Go on after a short write, as a signal or a nearly full disk causes it."""
    data = memoryview(b"".join(buffers))
    while written < len(data):
        written += os.pwrite(number, data[written:], offset + written)


_locked_paths: set[str] = set()


class _OsLock:
    """An fcntl record lock on byte 0: what Java's FileLock takes on Linux."""

    def __init__(self, path: str, descriptor: _Descriptor) -> None:
        self._path = path
        self._descriptor: _Descriptor | None = descriptor

    def release(self) -> None:
        """Unlock by closing the file."""
        self._descriptor = None
        _locked_paths.discard(self._path)


class OsDisk:
    """The file system of the operating system.

    At most `open_files_max` files stay open; the one opened longest ago is closed first.
    """

    def __init__(self, *, open_files_max: int = 512, read_only: bool = False) -> None:
        """Open nothing yet."""
        assert open_files_max > 0
        self._open_files_max = open_files_max
        self._open_files: dict[OsFile, None] = {}
        self._open_files_lock = threading.Lock()
        self.can_read_no_wait = _READ_NO_WAIT != 0
        self.open_flags = (os.O_RDONLY if read_only else os.O_RDWR) | os.O_CLOEXEC

    def note_open(self, file: OsFile) -> None:
        """Count one more open file and close the oldest one above the bound."""
        open_files = self._open_files
        with self._open_files_lock:  # the loop and all workers open files
            open_files[file] = None
            if len(open_files) > self._open_files_max:
                oldest = next(iter(open_files))
                del open_files[oldest]
                oldest.close()

    def open(self, path: str) -> OsFile:
        """Return the file at this path; it is opened when it is first used."""
        return OsFile(self, path)

    def create(self, path: str, size: int, *, temporary: str) -> OsFile:
        """Make a sparse file of zeros and rename it in when it has its size."""
        with _translated("create", path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            flags = os.O_CREAT | os.O_TRUNC | os.O_RDWR | os.O_CLOEXEC
            descriptor = _Descriptor(os.open(temporary, flags, 0o644))
            os.ftruncate(descriptor.number, size)
            os.rename(temporary, path)
        return OsFile(self, path)

    def resize(self, path: str, size: int) -> None:
        """Pad a file with zeros, or cut it."""
        with _translated("resize", path):
            os.truncate(path, size)

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in a folder; none if there is no such folder."""
        try:
            return sorted(os.listdir(folder))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise DiskError("list", folder, error.errno or errno.EIO) from error

    def exists(self, path: str) -> bool:
        """Return whether there is a file or folder."""
        return os.path.lexists(path)

    def is_folder(self, path: str) -> bool:
        """Return whether there is a folder."""
        return os.path.isdir(path)

    def make_folder(self, path: str) -> None:
        """Make a folder and those above it."""
        with _translated("make folder", path):
            os.makedirs(path, exist_ok=True)

    def remove(self, path: str) -> None:
        """Delete a file; one that is gone is fine."""
        with _translated("delete", path):
            try:
                os.unlink(path)
            except FileNotFoundError:
                return

    def remove_tree(self, path: str) -> None:
        """Delete a folder with all in it; one that is gone is fine."""
        with _translated("delete", path):
            try:
                shutil.rmtree(path)
            except FileNotFoundError:
                return

    def rename(self, path: str, target: str) -> None:
        """Move a file, replacing another."""
        with _translated("rename", path):
            os.rename(path, target)

    def sync_folder(self, path: str) -> None:
        """Return when the names in a folder are on the disk."""
        with _translated("sync", path):
            descriptor = _Descriptor(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            os.fsync(descriptor.number)

    def usage(self, path: str) -> DiskUsage:
        """Return how full the file system is, as an unprivileged process sees it."""
        with _translated("stat", path):
            stat = os.statvfs(path)
        used = (stat.f_blocks - stat.f_bfree) * stat.f_frsize
        return DiskUsage(used, stat.f_bavail * stat.f_frsize)

    def lock(self, path: str) -> DiskLock:
        """Lock the folder by this file, or raise LockHeld.

        fcntl locks do not exclude the own process, so its locks are remembered.
        """
        path = os.path.realpath(path)
        if path in _locked_paths:
            raise LockHeld(f"{path} is locked by this process: the store is open already")
        with _translated("open", path):
            flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC
            descriptor = _Descriptor(os.open(path, flags, 0o644))
        try:
            fcntl.lockf(descriptor.number, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            raise LockHeld(f"{path} is locked: another process uses this folder") from error
        with _translated("write", path):
            os.pwrite(descriptor.number, b"lock", 0)
        _locked_paths.add(path)
        return _OsLock(path, descriptor)

    def locked_by(self, path: str) -> int | None:
        """Return the process that holds the lock (0 if its id is unknown), None if none does.

        A file that this process has locked must not be opened here: closing it would unlock it.
        """
        path = os.path.realpath(path)
        if path in _locked_paths:
            return os.getpid()
        try:
            descriptor = _Descriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DiskError("open", path, error.errno or errno.EIO) from error
        wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        found = fcntl.fcntl(descriptor.number, fcntl.F_GETLK, wanted)
        kind, _, _, _, process = _FLOCK.unpack(found)
        return None if kind == fcntl.F_UNLCK else int(process)
