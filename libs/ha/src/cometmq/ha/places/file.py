# SPDX-License-Identifier: Apache-2.0
"""A record in a locked file, for the processes of one host (demos, tests, single machines).

A separate lock file serializes all writers. The folder must be on a local file system, because the
locks of network file systems are not reliable.

A process that is stopped (SIGSTOP) while it writes keeps the lock: nobody can write until it
continues or ends. etcd and Kubernetes have no such lock.
"""

import asyncio
import fcntl
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cometmq.ha.durable import Files, OsFiles
from cometmq.ha.places.polling import Sleep, poll
from cometmq.ha.port import CONFLICT, UNKNOWN, Outcome, RecordUnreachable, applied
from cometmq.ha.record import (
    Record,
    RecordDamaged,
    Versioned,
    decode_record,
    encode_record,
    may_replace,
)

LOCK_ATTEMPTS: Final = 200
LOCK_PAUSE_MS: Final = 10
"""Pause between two attempts to lock the file, which end after two seconds in total: a write takes
two fsyncs. Then the outcome is unknown, and the caller tries again later."""

Condition = Callable[[Versioned | None], bool]


class FileRecord:
    """A group's record in a file. All disk access runs on a thread."""

    def __init__(
        self,
        path: Path,
        *,
        files: Files | None = None,
        sleep: Sleep = asyncio.sleep,
        poll_interval_ms: int = 100,
    ) -> None:
        self._path = path
        self._files = files or OsFiles()
        self._sleep = sleep
        self._poll_interval_ms = poll_interval_ms

    async def read(self) -> Versioned | None:
        """Return the record; raise RecordUnreachable or RecordDamaged, which name the file."""
        try:
            return await asyncio.to_thread(self._load)
        except OSError as error:
            raise RecordUnreachable(f"cannot read the record {self._path}: {error}") from error

    async def replace(self, base: Versioned, record: Record) -> Outcome:
        """Replace the record under the lock if its version and uid still match `base`."""
        return await self._write(lambda current: may_replace(current, base, record), record)

    async def create(self, record: Record) -> Outcome:
        """Create the file under the lock."""
        return await self._write(lambda current: current is None, record)

    def watch(self) -> AsyncIterator[Versioned | None]:
        """Yield the record and its changes, polling the file every `poll_interval_ms`."""
        return poll(self.read, sleep=self._sleep, interval_ms=self._poll_interval_ms)

    async def _write(self, condition: Condition, record: Record) -> Outcome:
        for _ in range(LOCK_ATTEMPTS):
            try:
                return await asyncio.to_thread(self._write_locked, condition, record)
            except BlockingIOError:
                await self._sleep(LOCK_PAUSE_MS / 1000)
            except OSError:  # possibly after the rename
                return UNKNOWN
        return UNKNOWN

    def _write_locked(self, condition: Condition, record: Record) -> Outcome:
        with write_lock(self._path):
            current = self._load()
            if not condition(current):
                return CONFLICT
            version = str(int(current.version) + 1 if current else 1)
            self._files.replace(self._path, f"{version}\n".encode() + encode_record(record))
        return applied(record, version)

    def _load(self) -> Versioned | None:
        data = self._files.read(self._path)
        if data is None:
            return None
        version, _, content = data.partition(b"\n")
        if not version.isdigit():
            raise RecordDamaged(
                f"the record in {self._path} cannot be read: its first line is not a version"
            )
        return Versioned(decode_record(content, place=str(self._path)), version.decode())


@contextmanager
def write_lock(path: Path, *, is_waiting: bool = False) -> Iterator[None]:
    """Hold the lock of the writers of a record.

    Raises BlockingIOError if another writer holds it, unless `is_waiting`.
    """
    descriptor = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if is_waiting else fcntl.LOCK_NB))
        yield
    finally:
        os.close(descriptor)  # releases the lock


def stop_outside_writes(pid: int, path: Path) -> None:
    """Stop a child process (SIGSTOP) while it does not hold the lock of the record; return then."""
    with write_lock(path, is_waiting=True):
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
