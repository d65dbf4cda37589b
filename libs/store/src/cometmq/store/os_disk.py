# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PTH103, PTH104, PTH108, PTH112, PTH116, PTH120, PTH208
# Paths are plain strings, because thousands of queues keep one each.
"""The store's disk on the operating system.

OSError is translated to DiskError here and nowhere else.

Invariants: files are never memory-mapped, so no access can end in SIGBUS (docs/adr/0002). Files are
created with their full size under a temporary name and then renamed, because RocketMQ refuses to
load a folder that contains a file of a different size.
"""

import ctypes
import errno
import fcntl
import os
import re
import shutil
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple
from weakref import ref

from cometmq.remoting.types import Buffer
from cometmq.store.disk import (
    Descriptor,
    DiskFile,
    DiskLock,
    DiskUsage,
    Piece,
    sync_in_turn,
    write_in_turn,
)
from cometmq.store.errors import DiskError, LockHeld

_IOV_COUNT_MAX: Final = 1024  # the kernel's UIO_MAXIOV
_NO_WAIT_UNSUPPORTED: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
_READ_NO_WAIT: Final = getattr(os, "RWF_NOWAIT", 0)
_RANGE_WRITE: Final = 2  # SYNC_FILE_RANGE_WRITE: start, but do not wait
_FLOCK: Final = struct.Struct("hhqqi4x")  # Linux's struct flock with 64-bit offsets


_libc: Final = ctypes.CDLL(None, use_errno=True)
_sync_file_range: Final = _libc.sync_file_range  # Python's `os` lacks both
_sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_syncfs: Final = _libc.syncfs
_SYNCFS_REPORTS_SINCE: Final = (5, 8)
"""The first release of Linux whose syncfs reports failed writes."""
_release: Final = re.match(r"(\d+)\.(\d+)", os.uname().release)
_can_sync_all: Final = (
    _release is not None and tuple(map(int, _release.groups())) >= _SYNCFS_REPORTS_SINCE
)


class NativeWrites(NamedTuple):
    """Native functions that write and sync many files without the interpreter lock.

    If a thread takes the lock for each of thousands of writes, the loop has to wait for the lock as
    often. Both functions return None, or the index of the first file that failed and its errno.
    """

    write_files: Callable[[Sequence[tuple[int, int, bytes]]], tuple[int, int] | None]
    sync_files: Callable[[Sequence[int]], tuple[int, int] | None]


@contextmanager
def _translated(operation: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DiskError(operation, path, error.errno or errno.EIO) from error


class OsFile:
    """A file that is opened on first use and may be closed and reopened transparently."""

    __slots__ = ("__weakref__", "_descriptor", "_disk", "path")

    def __init__(self, disk: "OsDisk", path: str) -> None:
        self.path = path
        self._disk = disk
        self._descriptor: Descriptor | None = None

    def _open(self) -> Descriptor:
        descriptor = self._descriptor
        if descriptor is None:
            descriptor = self.open_now()
            self._disk.note_open(self)
        return descriptor

    def open_now(self) -> Descriptor:
        """Open the file and keep it open: it does not count as one of the open files of which the
        oldest are closed.
        """
        with _translated("open", self.path):
            descriptor = Descriptor(os.open(self.path, self._disk.open_flags))
        self._descriptor = descriptor
        return descriptor

    def opened(self) -> Descriptor:
        """Return a descriptor, which stays open as long as the caller keeps it."""
        return self._descriptor or self._open()

    def close(self) -> None:
        """Close the descriptor; the next use opens the file again."""
        self._descriptor = None

    def size(self) -> int:
        """Return the size in bytes."""
        with _translated("stat", self.path):
            return os.stat(self.path).st_size

    def read(self, offset: int, count: int) -> bytes:
        """Return up to `count` bytes, fewer at the end of the file; may block."""
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
        """Return exactly `count` bytes if the page cache has them, otherwise None; never block."""
        # If RWF_NOWAIT is missing (some file systems, old kernels), every read counts as cached:
        # the loop may then wait for the disk, but pulls work.
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

    def descriptor(self) -> Descriptor | None:
        """Return the open descriptor; None if the file system has only reads that may block."""
        if not self._disk.can_read_no_wait:
            return None
        return self._descriptor or self._open()

    def next_data(self, offset: int) -> int | None:
        """Return the offset of the first data at or after `offset`; None if there is none."""
        descriptor = self._open()
        try:
            return os.lseek(descriptor.number, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            raise DiskError("seek in", self.path, error.errno or errno.EIO) from error

    def data_end(self) -> int:
        """Return the end of the written data, which may lie before the end of the file."""
        descriptor = self._open()
        with _translated("seek in", self.path):
            if not os.fstat(descriptor.number).st_size:
                return 0
            return os.lseek(descriptor.number, 0, os.SEEK_HOLE)

    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write the buffers back to back, starting at `offset`; raise DiskError on failure."""
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

    def start_writeback(self, offset: int, count: int) -> None:
        """Start to write bytes to the disk; `sync` reports any error."""
        _sync_file_range(self._open().number, offset, count, _RANGE_WRITE)

    def sync(self) -> None:
        """Block until all written bytes are on the disk."""
        descriptor = self._open()
        # Sizes never change after creation, so fdatasync covers everything a reader needs.
        with _translated("sync", self.path):
            os.fdatasync(descriptor.number)


def opened(files: Sequence[DiskFile]) -> list[Descriptor]:
    """Return a descriptor of each file, which stays open as long as the caller keeps it."""
    descriptors = [file.opened() for file in files if isinstance(file, OsFile)]
    assert len(descriptors) == len(files), "files of another disk"
    return descriptors


def open_folder(path: str) -> Descriptor:
    """Open a folder in order to sync it."""
    with _translated("open", path):
        return Descriptor(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


def _write_rest(number: int, buffers: Sequence[Buffer], offset: int, written: int) -> None:
    """Finish a short write, which a signal or a nearly full disk can cause."""
    data = memoryview(b"".join(buffers))
    while written < len(data):
        written += os.pwrite(number, data[written:], offset + written)


_locked_paths: set[str] = set()


class _OsLock:
    """An fcntl record lock on byte 0, as taken by Java's FileLock on Linux."""

    def __init__(self, path: str, descriptor: Descriptor) -> None:
        self._path = path
        self._descriptor: Descriptor | None = descriptor

    def release(self) -> None:
        self._descriptor = None
        _locked_paths.discard(self._path)


def _held_text(path: str, process: int | None) -> str:
    user = f"process {process}" if process else "another process"  # 0: in a different container
    return f"{path} is locked: {user} uses this folder"


class OsDisk:
    """The file system of the operating system.

    At most `open_files_max` files are kept open; above that, the file that was opened first is
    closed. A file is also closed as soon as its last user drops it, because the space of a deleted
    file is free only then.
    """

    def __init__(
        self,
        *,
        open_files_max: int = 512,
        read_only: bool = False,
        native: NativeWrites | None = None,
    ) -> None:
        assert open_files_max > 0
        self._native = native
        self._open_files_max = open_files_max
        # Each operation on it is one call, because an entry may vanish on any thread.
        self._open_files: OrderedDict[ref[OsFile], None] = OrderedDict()
        self._open_files_lock = threading.Lock()
        self._roots: list[Descriptor] = []  # of locked folders
        self.can_read_no_wait = _READ_NO_WAIT != 0
        self.open_flags = (os.O_RDONLY if read_only else os.O_RDWR) | os.O_CLOEXEC

    def note_open(self, file: OsFile) -> None:
        """Register an opened file; close the oldest files beyond the limit."""
        open_files = self._open_files
        with self._open_files_lock:  # the loop and the worker threads all open files
            open_files[ref(file, self._note_dropped)] = None
            if len(open_files) > self._open_files_max:
                oldest = open_files.popitem(last=False)[0]()
                if oldest is not None:
                    oldest.close()

    def _note_dropped(self, file: "ref[OsFile]") -> None:
        self._open_files.pop(file, None)

    def open(self, path: str) -> OsFile:
        """Return the file at this path; it is opened on first use."""
        return OsFile(self, path)

    def open_apart(self, path: str) -> OsFile:
        """Open the file now, with a descriptor of its own that stays open."""
        file = self.open(path)
        file.open_now()
        return file

    def create(self, path: str, size: int, *, temporary: str) -> OsFile:
        """Create a sparse file of zeros under a temporary name and rename it when complete."""
        with _translated("create", path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            flags = os.O_CREAT | os.O_TRUNC | os.O_RDWR | os.O_CLOEXEC
            descriptor = Descriptor(os.open(temporary, flags, 0o644))
            os.ftruncate(descriptor.number, size)
            os.rename(temporary, path)
        return OsFile(self, path)

    def write_each(self, pieces: Sequence[Piece]) -> None:
        """Write pieces of many files; raise DiskError at the first failure."""
        native = self._native
        if native is None:
            write_in_turn(pieces)
            return

        def write(start: int, fds: list[int]) -> tuple[int, int] | None:
            part = pieces[start : start + len(fds)]
            rows = zip(fds, part, strict=True)
            return native.write_files([(fd, offset, data) for fd, (_, offset, data) in rows])

        self._in_parts("write", [file for file, _, _ in pieces], write)

    def sync_each(self, files: Sequence[DiskFile]) -> None:
        """Sync many files; raise DiskError at the first failure."""
        native = self._native
        if native is None:
            sync_in_turn(files)
            return
        self._in_parts("sync", files, lambda _start, fds: native.sync_files(fds))

    def _in_parts(
        self,
        operation: str,
        files: Sequence[DiskFile],
        call: Callable[[int, list[int]], tuple[int, int] | None],
    ) -> None:
        """Call a native function with the descriptors of the files, as many at a time as may be
        open; raise DiskError if it fails.

        Its arguments are the index of the first file and the descriptors, which stay open during
        the call.
        """
        for start in range(0, len(files), self._open_files_max):
            part = files[start : start + self._open_files_max]
            descriptors = opened(part)
            failure = call(start, [descriptor.number for descriptor in descriptors])
            if failure is not None:
                raise DiskError(operation, part[failure[0]].path, failure[1])

    def resize(self, path: str, size: int) -> None:
        """Truncate a file or extend it with zeros."""
        with _translated("resize", path):
            os.truncate(path, size)

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in a folder; an empty list if the folder does not exist."""
        try:
            return sorted(os.listdir(folder))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise DiskError("list", folder, error.errno or errno.EIO) from error

    def exists(self, path: str) -> bool:
        """Return whether a file or folder exists."""
        return os.path.lexists(path)

    def is_folder(self, path: str) -> bool:
        """Return whether a folder exists."""
        return os.path.isdir(path)

    def make_folder(self, path: str) -> None:
        """Create a folder and its parents."""
        with _translated("make folder", path):
            os.makedirs(path, exist_ok=True)

    def remove(self, path: str) -> None:
        """Delete a file if it exists."""
        with _translated("delete", path):
            try:
                os.unlink(path)
            except FileNotFoundError:
                return

    def remove_tree(self, path: str) -> None:
        """Delete a folder and its contents if it exists."""
        with _translated("delete", path):
            try:
                shutil.rmtree(path)
            except FileNotFoundError:
                return

    def rename(self, path: str, target: str) -> None:
        """Rename a file, replacing the target."""
        with _translated("rename", path):
            os.rename(path, target)

    def sync_folder(self, path: str) -> None:
        """Sync a folder; created, renamed and removed names then survive a power loss."""
        with _translated("sync", path):
            folder = open_folder(path)
            os.fsync(folder.number)

    def sync_all(self, folder: str) -> bool:
        """Sync the file system that holds a folder, if a folder on it is locked.

        The kernel reports the failed writes since the descriptor was opened, so it is opened when
        the folder is locked.
        """
        with _translated("sync", folder):
            device = os.stat(folder).st_dev
            for root in self._roots:
                if _can_sync_all and os.fstat(root.number).st_dev == device:
                    if _syncfs(root.number):
                        number = ctypes.get_errno()
                        raise OSError(number, os.strerror(number))
                    return True
        return False

    def usage(self, path: str) -> DiskUsage:
        """Return the usage of the file system as an unprivileged process sees it."""
        with _translated("stat", path):
            stat = os.statvfs(path)
        used = (stat.f_blocks - stat.f_bfree) * stat.f_frsize
        return DiskUsage(used, stat.f_bavail * stat.f_frsize)

    def lock(self, path: str) -> DiskLock:
        """Lock a folder through its lock file at `path`; raise LockHeld if it is already locked.

        An fcntl lock does not exclude its own process, so the process keeps a list of its locks.
        """
        path = os.path.realpath(path)
        if path in _locked_paths:
            raise LockHeld(f"{path} is locked by this process: the store is open already")
        with _translated("open", path):
            flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC
            descriptor = Descriptor(os.open(path, flags, 0o644))
        try:
            fcntl.lockf(descriptor.number, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            raise LockHeld(_held_text(path, self.locked_by(path))) from error
        with _translated("write", path):
            os.pwrite(descriptor.number, b"lock", 0)
        _locked_paths.add(path)
        with _translated("open", path):
            folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._roots.append(Descriptor(folder))
        return _OsLock(path, descriptor)

    def check_unlocked(self, path: str) -> None:
        """Raise LockHeld if the lock is held.

        The lock is not taken, its file is not created, and other errors are ignored.
        """
        path = os.path.realpath(path)
        if path in _locked_paths:
            raise LockHeld(f"{path} is locked by this process: the store is open already")
        try:
            process = self.locked_by(path)
        except DiskError:
            return
        if process is not None:
            raise LockHeld(_held_text(path, process))

    def locked_by(self, path: str) -> int | None:
        """Return the process id of the lock's holder; 0 if it is unknown, None if not locked.

        A file that this process has locked must not be opened here: closing it would release the
        lock.
        """
        path = os.path.realpath(path)
        if path in _locked_paths:
            return os.getpid()
        try:
            descriptor = Descriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DiskError("open", path, error.errno or errno.EIO) from error
        wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        found = fcntl.fcntl(descriptor.number, fcntl.F_GETLK, wanted)
        kind, _, _, _, process = _FLOCK.unpack(found)
        return None if kind == fcntl.F_UNLCK else int(process)
