# SPDX-License-Identifier: Apache-2.0
"""A record in files, for the processes of one host (demos, tests, single machines).

`FILE` names a folder in `FILE.d` that holds the versions of the record (`places.versions`).
Removing `FILE` deletes the record atomically. The next record gets a new folder, so a late write to
a deleted record never reaches its successor (R10). The folder must be on a local file system with
hard links: network file systems may answer link(2) from caches, or perform it more than once.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from cometmq.ha.durable import OsFiles, SharedFiles, Stamp
from cometmq.ha.places.versions import Versions
from cometmq.ha.port import CONFLICT, Outcome, RecordUnreachable, Sleep, applied, poll, unknown
from cometmq.ha.record import Record, RecordDamaged, Versioned
from cometmq.remoting.errors import UNREADABLE_JSON
from cometmq.remoting.transport.tasks import sleep_on_grid

SETTLE_MS: Final = 100
"""A watch reads changed files again for this time: later changes within the same tick of the file
system's clock leave the stamps as they are, and a tick lasts up to 10 ms.
"""
LOOKS_MAX: Final = 10
"""Maximum number of looks at unchanged stamps before a watch reads the files all the same: 1 s."""

Nonce = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]


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
        """Yield the record and its changes. Every `poll_interval_ms`, the stamps of the files are
        compared; the files are read if they have changed.
        """
        looks = _Looks(self, -(-SETTLE_MS // self._poll_interval_ms))
        return poll(looks.read, sleep=self._sleep, interval_ms=self._poll_interval_ms)

    async def close(self) -> None:
        """Do nothing; files are open only during a call."""

    async def _written(self, write: Callable[[], Outcome]) -> Outcome:
        try:
            return await asyncio.to_thread(write)
        except (OSError, RecordUnreachable) as error:  # the link may have succeeded
            return unknown(f"cannot write the record {self._path}: {error}")

    def stamps(self) -> tuple[Stamp | None, ...]:
        """Return the stamps of `FILE` and of the last known folder of versions.

        This does not block: both inodes stay in memory, because they are looked at again and again.
        """
        last = self._last
        paths = (self._path,) if last is None else (self._path, last.folder)
        return tuple(map(self._files.stamp, paths))

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
        if outcome.written and self._files.read(self._path) != _encoded(head):
            return unknown(f"the record {self._path} was deleted during a write")
        return outcome

    def create_blocking(self, record: Record) -> Outcome:
        """Create the record; raise OSError if the outcome is unknown."""
        if self._files.read(self._path) is not None:
            return CONFLICT
        head, first = self._begun(record)
        proposal = self._root / f".{head.versions}"
        try:
            self._files.create(proposal, _encoded(head))
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


class _Looks:
    """The reads of one watch.

    Ten reads a second on a thread take 0.6 % of a core, ten looks at the stamps 0.1 %.

    A client of NFS may show old stamps for seconds, but a read opens the file, which asks the
    server. Therefore LOOKS_MAX bounds the looks without a read.
    """

    def __init__(self, record: FileRecord, again_count: int) -> None:
        """`again_count` is how often a record is read again after the first read that found it."""
        self._record = record
        self._again_count = again_count
        self._stamps: tuple[Stamp | None, ...] | None = None
        self._again_left = 0
        self._look_count = 0  # since the last read
        self._found: Versioned | None = None

    async def read(self) -> Versioned | None:
        """Return the record, without a read if its files have not changed since the last one.

        Raise RecordUnreachable or RecordDamaged as a read does; the next call then reads again.
        """
        try:
            stamps = self._record.stamps()
        except OSError:
            stamps = None  # the read reports it
        if stamps is None or stamps != self._stamps:
            self._again_left = self._again_count + 1
        self._look_count += 1
        if self._again_left or self._look_count >= LOOKS_MAX:
            self._look_count = 0
            self._stamps = None  # unless the read succeeds
            self._found = await self._record.read()
            self._stamps = stamps
            self._again_left = max(0, self._again_left - 1)
        return self._found


def _encoded(head: _Head) -> bytes:
    return msgspec.json.encode(head) + b"\n"
