# SPDX-License-Identifier: Apache-2.0
"""Tables kept as JSON files beside the messages: topics, groups, offsets.

Invariants: a reader finds either the old or the new content, never a mixture (temporary file,
fsync, rename, fsync of the folder). `.bak` has the same content as the file, apart from a crash
between the two writes: if the bytes of one change on the disk, the other has all of it.

Compatibility: the file names, including `.bak`, are RocketMQ's, whose `.bak` is one save older
(docs/protocol/store.md#config-files). The codec defines the format: it writes strict JSON and also
reads Java's dialect.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from cometmq.remoting.errors import CometError
from cometmq.store.errors import CorruptStore

T = TypeVar("T")

BACKUP_SUFFIX: Final = ".bak"
TEMPORARY_SUFFIX: Final = ".tmp"


class OsFiles:
    """The operations on files that a table needs; tests substitute failing disks."""

    __slots__ = ()

    def read(self, path: Path) -> bytes | None:
        """Return the content, or None if there is no file; raise OSError if it cannot be read."""
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None

    def write(self, path: Path, data: bytes) -> None:
        """Write and sync the content."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file atomically and durably."""
        source.replace(target)
        directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


class JsonTable(Generic[T]):
    """One file, its backup, and the codec of its content."""

    def __init__(
        self,
        path: str | Path,
        *,
        decode: Callable[[bytes], T],
        encode: Callable[[T], bytes],
        files: OsFiles | None = None,
    ) -> None:
        """Set the paths; nothing is read or written yet.

        `decode` raises ValueError or CometError for content that it cannot parse.
        """
        self.path = Path(path)
        self.backup_path = Path(f"{path}{BACKUP_SUFFIX}")
        self._decode = decode
        self._encode = encode
        self._files = files or OsFiles()
        self.loaded_digest = ""
        """The `content_digest` of the file that `load` used; empty if there was no file."""
        self.is_restored = False
        """Whether `load` used the backup, because the file was damaged or missing."""

    def load(self) -> T | None:
        """Return the content of the file, or of its backup; None if neither exists.

        Raise CorruptStore if neither can be parsed: starting with an empty table would look like
        the loss of all topics or offsets.
        """
        found = False
        for path in (self.path, self.backup_path):
            data = self._files.read(path)
            if not data or not data.strip():
                continue
            found = True
            value = self._readable(data)
            if value is not None:
                self.loaded_digest = content_digest(data)
                self.is_restored = path is self.backup_path
                return value
        if found:
            raise CorruptStore(
                f"{self.path} and its {BACKUP_SUFFIX} cannot be read: repair or remove them"
            )
        return None

    def encode(self, value: T) -> bytes:
        """Return the content for `write`; fast enough for the event loop."""
        return self._encode(value)

    def write(self, data: bytes) -> None:
        """Replace the file and its backup durably; blocks for several fsyncs, so call it on a
        worker.
        """
        for path in (self.path, self.backup_path):
            if self._files.read(path) != data:
                temporary = Path(f"{path}{TEMPORARY_SUFFIX}")
                self._files.write(temporary, data)
                self._files.replace(temporary, path)

    def save(self, value: T) -> None:
        """Encode and write at once; for startup, shutdown and tests, which may block."""
        self.write(self._encode(value))

    def _readable(self, data: bytes) -> T | None:
        try:
            return self._decode(data)
        except (ValueError, CometError):  # a damaged file: the backup may be intact
            return None


def content_digest(data: bytes) -> str:
    """Return a digest that identifies the content of a file."""
    digest = new_digest()
    digest.update(data)
    return digest.hexdigest()


def new_digest() -> "hashlib.blake2b":
    """Return an empty hash object for computing a `content_digest` in parts."""
    return hashlib.blake2b(digest_size=16)
