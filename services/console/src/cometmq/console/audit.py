# SPDX-License-Identifier: Apache-2.0
"""The audit log: who changed what, and the state before; JSON lines in files.

A change is written, durably, before it is made, and again with its outcome. If the first entry
cannot be written, the change is not made. Full files are renamed to `audit.log.1` to `audit.log.9`.

Several programs may write one log, such as two processes of `cometmq mcp`. Each holds the lock
`audit.lock` while it writes.
"""

import errno
import fcntl
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec

from cometmq.remoting.errors import UNREADABLE_JSON, CometError
from cometmq.remoting.log import Log
from cometmq.runtime.clock import Clock
from cometmq.runtime.files import sync_folder
from cometmq.runtime.worker import Worker

OLDER_FILES: Final = 9
VALUE_MAX: Final = 16_384
"""Longer values are cut; the length counts characters of JSON."""
LOCK_S: Final = 10.0
LOCK_PAUSE_S: Final = 0.01
SUBJECTS_MAX: Final = 10_000
_ENCODER: Final = msgspec.json.Encoder(enc_hook=str)


class Unaudited(CometError):
    """The audit log cannot be written; the text says whether the change was made."""


class Outcome:
    """The outcome of a change, which the caller sets once the change is made."""

    def __init__(self) -> None:
        self.text = ""
        """The outcome in one sentence; empty until the change is made."""


class AuditEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change: a line when it begins, and a line with its outcome."""

    at_ms: int
    id: str
    user: str
    how: str
    address: str
    action: str
    subject: str
    outcome: str
    """`begun`, `done`, `refused` or `failed`."""
    text: str = ""
    before: Any = None
    after: Any = None


class Change(msgspec.Struct, frozen=True):
    """One change: its first entry and, once it has ended, the entry with its outcome."""

    begun: AuditEntry
    outcome: str
    text: str


def changes_of(entries: list[AuditEntry]) -> list[Change]:
    """Join the two entries of each change; the newest is first."""
    ends = {it.id: it for it in entries if it.outcome != "begun"}
    return [
        Change(it, end.outcome if (end := ends.get(it.id)) else "begun", end.text if end else "")
        for it in entries
        if it.outcome == "begun"
    ]


class Audit:
    """Writes the audit log, and reads its newest entries."""

    def __init__(self, folder: Path, *, mib_max: int, clock: Clock, log: Log) -> None:
        self._path = folder / "audit.log"
        self._bytes_max = mib_max << 20
        self._clock = clock
        self._log = log
        self._worker = Worker("audit", pending_count_max=1_000)
        self._versions: dict[str, str] = {}

    async def write(self, entry: AuditEntry) -> None:
        """Append an entry durably; raise OSError if it cannot be written.

        The version of the subject changes before the write, so that no change planned before this
        one can begin meanwhile.
        """
        self._versions.pop(entry.subject, None)
        self._versions[entry.subject] = entry.id
        if len(self._versions) > SUBJECTS_MAX:
            del self._versions[next(iter(self._versions))]
        kept = msgspec.structs.replace(entry, before=_cut(entry.before), after=_cut(entry.after))
        line = _ENCODER.encode(kept) + b"\n"
        await self._worker.submit(lambda: self._append(line))
        if entry.outcome != "begun":
            self._log.info(
                "change.audited",
                user=entry.user,
                action=entry.action,
                subject=entry.subject,
                outcome=entry.outcome,
            )

    @asynccontextmanager
    async def noted(self, entry: AuditEntry) -> AsyncIterator[Outcome]:
        """Write an entry before the block makes the change, and the outcome afterwards.

        Raise Unaudited if the entry cannot be written (the block is then not run), or if the
        outcome cannot be written.
        """
        try:
            await self.write(entry)
        except OSError as error:
            text = f"nothing was changed: the audit log cannot be written ({error.strerror})"
            raise Unaudited(text) from error
        outcome, failure = Outcome(), "the program was stopped, or has a fault"
        try:
            yield outcome
        except CometError as error:
            failure = str(error) or type(error).__name__
            raise
        finally:
            ended = msgspec.structs.replace(
                entry,
                at_ms=self.now_ms(),
                outcome="done" if outcome.text else "failed",
                text=outcome.text or failure,
                before=None,
                after=None,
            )
            try:
                await self.write(ended)
            except OSError as error:
                text = f"{ended.outcome}: {ended.text}; the audit log cannot be written"
                raise Unaudited(f"{text} ({error.strerror})") from error

    def version(self, subject: str) -> str:
        """Return the id of the newest change of a subject since this process began; empty if there
        is none.

        Only the SUBJECTS_MAX subjects with the newest changes are known.
        """
        return self._versions.get(subject, "")

    async def newest(self, count: int) -> list[AuditEntry]:
        """Return up to `count` entries, the newest first."""
        return await self._worker.submit(lambda: self._read(count))

    def now_ms(self) -> int:
        """Return the time for an entry."""
        return self._clock.now_ms()

    def close(self) -> None:
        """Wait for pending writes; blocks."""
        self._worker.close()

    def _append(self, line: bytes) -> None:
        with self._locked():
            self._append_alone(line)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock against other programs; raise OSError if another one does not
        release it.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path.with_name("audit.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        deadline_s = time.monotonic() + LOCK_S
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline_s:
                        text = "another program holds its lock"
                        raise TimeoutError(errno.ETIMEDOUT, text) from None
                    time.sleep(LOCK_PAUSE_S)
            yield
        finally:
            os.close(descriptor)

    def _append_alone(self, line: bytes) -> None:
        if self._path.exists() and self._path.stat().st_size + len(line) > self._bytes_max:
            self._rotate()
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            sync_folder(self._path.parent)
            _append(descriptor, line)
        finally:
            os.close(descriptor)

    def _rotate(self) -> None:
        for number in range(OLDER_FILES, 0, -1):
            older = self._file(number - 1)
            if older.exists():
                older.replace(self._file(number))

    def _file(self, number: int) -> Path:
        return self._path.with_name(f"audit.log.{number}") if number else self._path

    def _read(self, count: int) -> list[AuditEntry]:
        return list(islice(self._entries(), count))

    def _entries(self) -> Iterator[AuditEntry]:
        read: set[int] = set()  # a file that is renamed meanwhile appears under its next name, too
        for number in range(OLDER_FILES + 1):
            try:
                with self._file(number).open("rb") as file:
                    inode = os.fstat(file.fileno()).st_ino
                    lines = [] if inode in read else file.read().splitlines()
            except FileNotFoundError:
                continue
            read.add(inode)
            for line in reversed(lines):
                try:
                    yield msgspec.json.decode(line, type=AuditEntry)
                except UNREADABLE_JSON:
                    continue  # a line that a crash has torn


def _append(descriptor: int, line: bytes) -> None:
    """Append a whole line durably; on failure, remove the part that was written."""
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        line = b"\n" + line  # a crash has torn the line before
    rest = memoryview(line)
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    except OSError:
        with suppress(OSError):
            os.ftruncate(descriptor, size)
        raise


def _cut(value: Any) -> Any:
    if value is None:
        return None
    text = _ENCODER.encode(value)
    if len(text) <= VALUE_MAX:
        return msgspec.Raw(text)
    return text[:VALUE_MAX].decode("utf-8", "ignore") + "... (cut)"
