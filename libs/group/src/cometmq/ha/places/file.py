# SPDX-License-Identifier: Apache-2.0
"""A record in files, for the processes of one host (demos, tests, single machines).

`FILE` names a folder in `FILE.d` that holds the versions of the record.
Removing `FILE` deletes the record atomically. The next record gets a new folder, so a late write to
a deleted record never reaches its successor (R10). The folder must be on a local file system with
hard links: network file systems may answer link(2) from caches, or perform it more than once.

Each version is a file named by its number; the file with the highest number is the record. A writer
creates a proposal, syncs it, and links it to the number after the version on which its write is
based; link(2) fails if another writer came first. No process waits for another, so a writer that is
stopped (SIGSTOP) or killed at any point blocks no other.

Old versions are removed, so a writer that was stopped for a long time may link a number whose file
was already removed. Such a file is below the highest number, and readers ignore it. The writer
detects this case: versions are removed in ascending order, and no version string is used twice. If
the version on which the write is based still exists after the link, the next number was never
removed, so no other writer had linked it before. Otherwise the outcome is unknown.
"""

import asyncio
import os
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from cometmq.ha.durable import OsFiles, SharedFiles
from cometmq.ha.port import CONFLICT, Outcome, RecordUnreachable, Sleep, applied, poll, unknown
from cometmq.ha.record import (
    Record,
    RecordDamaged,
    Versioned,
    decode_record,
    encode_record,
    may_replace,
)
from cometmq.remoting.errors import UNREADABLE_JSON
from cometmq.remoting.transport.tasks import sleep_on_grid

KEPT: Final = 32
"""Versions to keep. A writer that is stopped for as many writes cannot judge its own."""
READ_ATTEMPTS: Final = 20
"""Attempts of a read, each overtaken by `KEPT` writes."""

Nonce = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]


class Versions:
    """The versions of a record in one folder. All calls block."""

    def __init__(self, folder: Path, files: SharedFiles, new_nonce: Callable[[], str]) -> None:
        self.folder = folder
        self._files = files
        self._new_nonce = new_nonce
        self._synced = 0

    def current(self) -> Versioned:
        """Make the highest version durable and return it; raise RecordDamaged."""
        for _ in range(READ_ATTEMPTS):
            number = max(self._numbers(), default=0)
            if not number:
                raise RecordDamaged(
                    f"the record in {self.folder} cannot be read: it has no version"
                )
            data = self._files.read(self.folder / str(number))
            if data is None:  # removed meanwhile, so newer versions exist
                continue
            found = _decoded_version(data, number, self.folder / str(number))
            if number != self._synced:  # the writer may not have synced it yet
                self._files.sync(self.folder)
                self._synced = number
            return found
        raise RecordUnreachable(f"the record in {self.folder} changes faster than it can be read")

    def begin(self, record: Record) -> Versioned:
        """Write the first version into an empty folder that no other process knows about yet."""
        first = Versioned(record, f"1-{self._new_nonce()}")
        self._files.create(self.folder / "1", _encoded_version(first))
        self._files.sync(self.folder)
        return first

    def append(self, base: Versioned, record: Record) -> Outcome:
        """Write the version after `base` if `base` is current; raise OSError if that is unknown."""
        if not may_replace(self.current(), base, record):
            return CONFLICT
        number, nonce = _number(base.version) + 1, self._new_nonce()
        written = Versioned(record, f"{number}-{nonce}")
        proposal = self.folder / f".{number}-{nonce}"
        try:
            self._files.create(proposal, _encoded_version(written))
            self._files.link(proposal, self.folder / str(number))
        except (FileExistsError, FileNotFoundError):  # the next writer removed the proposal
            return CONFLICT
        finally:
            self._files.remove(proposal)
        before = self._files.read(self.folder / str(number - 1))
        if before is None or _first_words(before)[0] != base.version:
            return unknown(f"version {number} in {self.folder} was written too late to be judged")
        self._files.sync(self.folder)
        self._clean(number)
        return applied(record, written.version)

    def _numbers(self) -> list[int]:
        return [int(name) for name in self._files.names(self.folder) if name.isdigit()]

    def _clean(self, current: int) -> None:
        """Remove old versions in ascending order, and proposals that can no longer be linked."""
        try:
            for number in sorted(self._numbers()):
                if number <= current - KEPT:
                    self._files.remove(self.folder / str(number))
            for name in self._files.names(self.folder):
                if name.startswith(".") and _number(name[1:]) <= current:
                    self._files.remove(self.folder / name)
        except OSError:
            pass  # the record is written; the next write removes the same files


def _number(version: str) -> int:
    """Return the number of a version; 0 if it has a different backend's format."""
    number = version.partition("-")[0]
    return int(number) if number.isdigit() else 0


def _encoded_version(versioned: Versioned) -> bytes:
    content = encode_record(versioned.record)
    return f"{versioned.version} {zlib.crc32(content):08x}\n".encode() + content


def _first_words(data: bytes) -> tuple[str, str]:
    version, _, checksum = data.partition(b"\n")[0].decode(errors="replace").partition(" ")
    return version, checksum


def _decoded_version(data: bytes, number: int, path: Path) -> Versioned:
    version, checksum = _first_words(data)
    content = data.partition(b"\n")[2]
    if _number(version) != number or checksum != f"{zlib.crc32(content):08x}":
        raise RecordDamaged(f"the record in {path} cannot be read: its checksum is wrong")
    return Versioned(decode_record(content, place=str(path)), version)


class _Head(msgspec.Struct, frozen=True):
    """The content of `FILE`."""

    format: Literal[2]
    versions: Nonce
    """The name of the folder in `FILE.d`."""


class FileRecord:
    """A group's record in files. All disk access runs on a thread."""

    def __init__(
        self,
        path: Path,
        *,
        files: SharedFiles | None = None,
        sleep: Sleep = sleep_on_grid,
        poll_interval_ms: int = 100,
        new_nonce: Callable[[], str] = lambda: os.urandom(8).hex(),
    ) -> None:
        self._path = path
        self._root = path.with_name(f"{path.name}.d")
        self._files = files or OsFiles()
        self._sleep = sleep
        self._poll_interval_ms = poll_interval_ms
        self._new_nonce = new_nonce
        self._last: Versions | None = None
        self._looked: tuple[bytes | None, list[str]] | None = None
        self._newest: Versioned | None = None  # as it was after `_looked`

    async def read(self) -> Versioned | None:
        """Return the record; raise RecordUnreachable or RecordDamaged, which name the file."""
        try:
            return await asyncio.to_thread(self.read_blocking)
        except OSError as error:
            raise RecordUnreachable(f"cannot read the record {self._path}: {error}") from error

    async def replace(self, base: Versioned, record: Record) -> Outcome:
        """Link the next version if the current version and uid still match `base`."""
        return await self._written(lambda: self.replace_blocking(base, record))

    async def create(self, record: Record) -> Outcome:
        """Write the first version, then link the file that names its folder."""
        return await self._written(lambda: self.create_blocking(record))

    def watch(self) -> AsyncIterator[Versioned | None]:
        """Yield the record and its changes, looking for new files every `poll_interval_ms`."""
        return poll(self._read_new, sleep=self._sleep, interval_ms=self._poll_interval_ms)

    async def _read_new(self) -> Versioned | None:
        """Return the record; read it only if the names of its files have changed.

        Versions are never changed, and numbers never used twice. Ten reads a second on a thread
        take 0.6 % of a core, ten looks 0.1 %.
        """
        looked = self._look()
        if looked is None or looked != self._looked:
            self._newest = await self.read()
            self._looked = looked
        return self._newest

    def _look(self) -> tuple[bytes | None, list[str]] | None:
        """Return the content of `FILE` and the names of its versions; None if a read must tell."""
        try:
            data = self._files.read(self._path)
            if data is None:
                return None, []
            return data, sorted(self._files.names(self._root / self._head(data).versions))
        except (OSError, RecordDamaged):
            return None

    async def close(self) -> None:
        """Do nothing; files are open only during a call."""

    async def _written(self, write: Callable[[], Outcome]) -> Outcome:
        try:
            return await asyncio.to_thread(write)
        except (OSError, RecordUnreachable) as error:  # the link may have succeeded
            return unknown(f"cannot write the record {self._path}: {error}")

    def read_blocking(self) -> Versioned | None:
        """Return the record; raise OSError, RecordUnreachable or RecordDamaged."""
        data = self._files.read(self._path)
        while data is not None:
            head = self._head(data)
            try:
                return self._versions(head).current()
            except FileNotFoundError:
                seen, data = data, self._files.read(self._path)
                if data == seen:
                    raise RecordDamaged(
                        f"the record in {self._path} cannot be read:"
                        f" the folder {self._versions(head).folder} is missing"
                    ) from None
        return None

    def replace_blocking(self, base: Versioned, record: Record) -> Outcome:
        """Replace the record; raise OSError if the outcome is unknown."""
        data = self._files.read(self._path)
        if data is None:
            return CONFLICT
        head = self._head(data)
        outcome = self._versions(head).append(base, record)
        if outcome.written and self._files.read(self._path) != _encoded_head(head):
            return unknown(f"the record {self._path} was deleted during a write")
        return outcome

    def create_blocking(self, record: Record) -> Outcome:
        """Create the record; raise OSError if the outcome is unknown."""
        if self._files.read(self._path) is not None:
            return CONFLICT
        head, first = self._begun(record)
        proposal = self._root / f".{head.versions}"
        try:
            self._files.create(proposal, _encoded_head(head))
            self._files.link(proposal, self._path)
        except FileExistsError:
            self._drop(head)
            return CONFLICT
        finally:
            self._files.remove(proposal)
        self._files.sync(self._path.parent)
        return applied(record, first.version)

    def _begun(self, record: Record) -> tuple[_Head, Versioned]:
        """Create and sync a folder that holds a first version; no other process knows of it yet."""
        head = _Head(2, self._new_nonce())
        versions = Versions(self._root / head.versions, self._files, self._new_nonce)
        self._files.make_folder(self._root)
        self._files.make_folder(versions.folder)
        first = versions.begin(record)
        self._files.sync(self._root)
        return head, first

    def _drop(self, head: _Head) -> None:
        """Remove a folder whose name was never written to `FILE`, and never will be."""
        folder = self._root / head.versions
        for name in self._files.names(folder):
            self._files.remove(folder / name)
        self._files.remove_folder(folder)

    def _versions(self, head: _Head) -> Versions:
        last, folder = self._last, self._root / head.versions
        if last is None or last.folder != folder:
            self._files.sync(self._path.parent)  # its creator may have stopped before its own sync
            self._last = last = Versions(folder, self._files, self._new_nonce)
        return last

    def _head(self, data: bytes) -> _Head:
        """Parse the content of `FILE`; raise RecordDamaged."""
        try:
            return msgspec.json.decode(data, type=_Head)
        except UNREADABLE_JSON as error:
            raise RecordDamaged(f"the record in {self._path} cannot be read: {error}") from error


def _encoded_head(head: _Head) -> bytes:
    return msgspec.json.encode(head) + b"\n"
