# SPDX-License-Identifier: Apache-2.0
"""Small files that survive a power failure: replaced as a whole, or never changed once created."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The errors after which a write may succeed once there is space."""

RESERVE_BYTES: Final = 4096
"""Bytes by which a replaced file may grow on a full disk: the block size of most file systems."""

_MODE: Final = 0o666  # less the umask, as for `Path.open`


class Files(Protocol):
    """Storage for small files; a simulator passes its own disk. Errors are OSError."""

    def read(self, path: Path) -> bytes | None:
        """Return the content of a file, or None if it does not exist."""

    def replace(self, path: Path, data: bytes) -> None:
        """Replace the content of a file durably; after a crash it is the old or the new one."""


class SharedFiles(Files, Protocol):
    """A folder of files shared by processes; call `sync` to make creations and removals durable."""

    def names(self, folder: Path) -> list[str]:
        """Return the names in a folder; a short list is an atomic snapshot."""

    def create(self, path: Path, data: bytes) -> None:
        """Create a file durably; after a crash, it may be incomplete."""

    def link(self, path: Path, name: Path) -> None:
        """Give a file a second name; raise FileExistsError if this name is taken."""

    def remove(self, path: Path) -> None:
        """Remove a name, if it exists."""

    def make_folder(self, path: Path) -> None:
        """Create a folder, unless it exists."""

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""

    def sync(self, folder: Path) -> None:
        """Block until all changes to the names in a folder are on the disk."""


class OsFiles:
    """Files of the operating system."""

    def read(self, path: Path) -> bytes | None:
        """Return the content of a file, or None if it does not exist."""
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None

    def replace(self, path: Path, data: bytes) -> None:
        """Replace the content durably, even on a full disk.

        The spare file `NAME.new` is written and swaps names with the file, so both keep their
        blocks. A full disk can still refuse the first call, a growth above `RESERVE_BYTES`, and any
        call on Btrfs and ZFS. A crash may leave a second name for the old content, `NAME.old`.
        """
        spare = path.with_name(f"{path.name}.new")
        previous = path.with_name(f"{path.name}.old")
        previous.unlink(missing_ok=True)
        _overwrite(spare, data)
        with suppress(OSError):  # there is no file yet, or the file system has no hard links
            os.link(path, previous)
        spare.replace(path)
        with suppress(FileNotFoundError):
            previous.replace(spare)
        self.sync(path.parent)
        with suppress(OSError):  # the disk is full; the spare has the blocks of the old content
            _reserve(spare, len(data) + RESERVE_BYTES)

    def names(self, folder: Path) -> list[str]:
        """Return the names in a folder, for a small one a snapshot: getdents returns 32 KB under a
        lock.
        """
        return os.listdir(folder)  # noqa: PTH208  # one buffer of names, not an iterator

    def create(self, path: Path, data: bytes) -> None:
        """Create a file that does not exist yet, and sync its content."""
        with path.open("xb") as file:
            _write_through(file.fileno(), data)

    def link(self, path: Path, name: Path) -> None:
        """Give a file a second name by link(2), which is atomic and fails if the name is taken."""
        os.link(path, name)

    def remove(self, path: Path) -> None:
        """Remove a name, if it exists."""
        path.unlink(missing_ok=True)

    def make_folder(self, path: Path) -> None:
        """Create a folder, unless it exists."""
        path.mkdir(exist_ok=True)

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        path.rmdir()

    def sync(self, folder: Path) -> None:
        """Sync a folder, so that its names survive a power failure."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _overwrite(spare: Path, data: bytes) -> None:
    """Write the content of a spare file in place, and sync it."""
    with _opened(spare) as descriptor:
        os.ftruncate(descriptor, len(data))
        _write_through(descriptor, data)


def _reserve(spare: Path, size: int) -> None:
    with _opened(spare) as descriptor:
        os.posix_fallocate(descriptor, 0, size)


@contextmanager
def _opened(spare: Path) -> Iterator[int]:
    """Open a spare file for writing without truncating it; create it if there is none."""
    with suppress(FileNotFoundError):
        if spare.stat().st_nlink > 1:  # a crash or a backup has given the content a second name
            spare.unlink()
    descriptor = os.open(spare, os.O_WRONLY | os.O_CREAT, _MODE)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _write_through(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    os.fsync(descriptor)
