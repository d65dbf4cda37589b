# SPDX-License-Identifier: Apache-2.0
"""Small files that are replaced as a whole and survive a power failure."""

import os
from pathlib import Path
from typing import Protocol


class Files(Protocol):
    """Storage for small files; a simulator passes its own disk. Errors are OSError."""

    def read(self, path: Path) -> bytes | None:
        """Return the content of a file, or None if it does not exist."""

    def replace(self, path: Path, data: bytes) -> None:
        """Replace the content of a file; the new content is on the disk when the call returns.

        After a crash the file has either the old or the new content, never a part of it.
        """


class OsFiles:
    """Files of the operating system: write a temporary file, fsync, rename, fsync the folder."""

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
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
