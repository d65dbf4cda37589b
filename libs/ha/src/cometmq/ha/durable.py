# SPDX-License-Identifier: Apache-2.0
"""Small files that survive a power failure: replaced as a whole, or never changed once created."""

import errno
import os
from pathlib import Path
from typing import Final, Protocol

DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The errors after which a write may succeed once there is space."""


class Files(Protocol):
    """Storage for small files; a simulator passes its own disk. Errors are OSError."""

    def read(self, path: Path) -> bytes | None:
        """Return the content of a file, or None if it does not exist."""

    def replace(self, path: Path, data: bytes) -> None:
        """Replace the content of a file; the new content is on the disk when the call returns.

        After a crash the file has either the old or the new content, never a mixture.
        """


class SharedFiles(Files, Protocol):
    """Files that several processes create and remove. Names are durable only after `sync`."""

    def names(self, folder: Path) -> list[str]:
        """Return the names in a folder; a short list is a snapshot of one moment."""

    def create(self, path: Path, data: bytes) -> None:
        """Create a file that does not exist yet; its content is on the disk when the call returns.

        After a crash, the file may be incomplete.
        """

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
        """Replace the content durably. A crash may leave the temporary file `NAME.new`."""
        beside = path.with_name(f"{path.name}.new")
        with beside.open("wb") as file:
            _write_through(file.fileno(), data)
        beside.replace(path)
        self.sync(path.parent)

    def names(self, folder: Path) -> list[str]:
        """Return the names in a folder.

        Linux locks the folder during each getdents call, and the first call returns up to 32 KB of
        names, so the names of a small folder are a snapshot.
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


def _write_through(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    os.fsync(descriptor)
