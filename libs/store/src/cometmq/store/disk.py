# SPDX-License-Identifier: Apache-2.0
"""The store's interface to the disk: files (`DiskFile`), the file system (`Disk`), and locks.

All file access goes through it, so tests can simulate crashes, full disks and I/O errors in memory.
`os_disk.py` is the implementation on the operating system.
"""

import os
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

from cometmq.remoting.types import Buffer


class DiskUsage(NamedTuple):
    """Used and available bytes of a file system."""

    used: int
    available: int

    @property
    def percent(self) -> int:
        """The percentage of space used, rounded up as in RocketMQ."""
        total = self.used + self.available
        return -(-100 * self.used // total) if total else 0


class Descriptor:
    """An open file descriptor that is closed when its last reference is dropped.

    Other threads may still read or sync while the loop evicts or deletes the file. They hold a
    reference, so the kernel cannot assign the descriptor's number to a different file.
    """

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class DiskFile(Protocol):
    """A file of fixed size; any thread may read and sync it."""

    @property
    def path(self) -> str:
        """The path of the file."""

    def close(self) -> None:
        """Close the descriptor; the next use opens the file again."""

    def size(self) -> int:
        """Return the size in bytes."""

    def read(self, offset: int, count: int) -> bytes:
        """Return up to `count` bytes, fewer at the end of the file; may block."""

    def read_cached(self, offset: int, count: int) -> Buffer | None:
        """Return exactly `count` bytes if they are in memory, otherwise None; never block."""

    def descriptor(self) -> Descriptor | None:
        """Return a descriptor for reads that do not block; None if only `read_cached` may read."""

    def next_data(self, offset: int) -> int | None:
        """Return the offset of the first data at or after `offset`; None if there is none."""

    def data_end(self) -> int:
        """Return the end of the written data, which may lie before the end of the file."""

    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write the buffers back to back, starting at `offset`; raise DiskError on failure."""

    def start_writeback(self, offset: int, count: int) -> None:
        """Start to write bytes to the disk, so that the next sync has less to wait for; `sync`
        reports any error.
        """

    def sync(self) -> None:
        """Block until all written bytes are on the disk."""


Piece: TypeAlias = tuple[DiskFile, int, bytes]
"""A file, the offset of a write, and its bytes."""


class DiskLock(Protocol):
    """A lock on a store's folder, held until it is released."""

    def release(self) -> None:
        """Release the lock."""


class Disk(Protocol):
    """The file system operations that a store needs."""

    def open(self, path: str) -> DiskFile:
        """Return the file at this path; it is opened on first use."""

    def open_apart(self, path: str) -> DiskFile:
        """Open the file now, with a descriptor of its own that is not closed before the file object
        is dropped.
        """

    def create(self, path: str, size: int, *, temporary: str) -> DiskFile:
        """Create a sparse file of zeros under a temporary name and rename it when complete."""

    def write_each(self, pieces: Sequence[Piece]) -> None:
        """Write pieces of many files; raise DiskError at the first failure."""

    def sync_each(self, files: Sequence[DiskFile]) -> None:
        """Sync many files; raise DiskError at the first failure."""

    def resize(self, path: str, size: int) -> None:
        """Truncate a file or extend it with zeros."""

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in a folder; an empty list if the folder does not exist."""

    def exists(self, path: str) -> bool:
        """Return whether a file or folder exists."""

    def is_folder(self, path: str) -> bool:
        """Return whether a folder exists."""

    def make_folder(self, path: str) -> None:
        """Create a folder and its parents."""

    def remove(self, path: str) -> None:
        """Delete a file if it exists."""

    def remove_tree(self, path: str) -> None:
        """Delete a folder and its contents if it exists."""

    def rename(self, path: str, target: str) -> None:
        """Rename a file, replacing the target."""

    def sync_folder(self, path: str) -> None:
        """Sync a folder; created, renamed and removed names then survive a power loss."""

    def sync_all(self, folder: str) -> bool:
        """Sync all files and folders of the file system that holds a folder, in one step.

        Return False if the system cannot do that and report failed writes; nothing is synced then.
        """

    def usage(self, path: str) -> DiskUsage:
        """Return the usage of the file system that holds this path."""

    def lock(self, path: str) -> DiskLock:
        """Lock a folder through its lock file at `path`; raise LockHeld if it is already locked."""

    def locked_by(self, path: str) -> int | None:
        """Return the process id of the lock's holder; 0 if it is unknown, None if not locked."""


def read_whole(disk: Disk, path: str) -> bytes | None:
    """Return the content of a file; None if it does not exist. Blocks."""
    if not disk.exists(path):
        return None
    file = disk.open(path)
    data = file.read(0, file.size())
    file.close()
    return data


def replace(disk: Disk, path: str, data: bytes, *, temporary: str) -> None:
    """Replace the content of a file durably; a reader finds the old content or the new. Blocks."""
    file = disk.create(temporary, len(data), temporary=f"{temporary}.empty.new")
    file.write(0, [data])
    file.sync()
    file.close()
    disk.rename(temporary, path)
    disk.sync_folder(path.rpartition("/")[0])


def write_in_turn(pieces: Sequence[Piece]) -> None:
    """Write pieces one after the other; raise DiskError at the first failure."""
    for file, offset, data in pieces:
        file.write(offset, [data])


def sync_in_turn(files: Sequence[DiskFile]) -> None:
    """Sync files one after the other; raise DiskError at the first failure."""
    for file in files:
        file.sync()
