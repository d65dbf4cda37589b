# SPDX-License-Identifier: Apache-2.0
"""The broker's tables and their files, as `runtime.saves` saves them."""

from functools import partial
from pathlib import Path
from typing import Any, Protocol

from cometmq.remoting.log import Log
from cometmq.runtime.incremental import IncrementalRunner, Steps
from cometmq.runtime.saves import Job, Saver
from cometmq.runtime.worker import Worker


class TableFile(Protocol):
    @property
    def path(self) -> Path: ...

    def write(self, data: bytes) -> None:
        """Replace the file durably; blocks."""


class Saved(Protocol):
    """A table that is saved when it has changed."""

    @property
    def file(self) -> Any:
        """Its `TableFile`; None for a table in memory only."""

    @property
    def is_dirty(self) -> bool:
        """Whether it differs from the last save."""

    def encode_for_file(self) -> bytes | Steps[bytes]:
        """Return the content of the file and clear `is_dirty`."""


class TableSaver:
    """Saves tables that have files; requests for tables without one are ignored."""

    def __init__(
        self, worker: Worker, *, log: Log, runner: IncrementalRunner | None = None
    ) -> None:
        self._saver = Saver(worker, log=log, runner=runner)
        self.retry = self._saver.retry
        self.drain = self._saver.drain

    @property
    def is_healthy(self) -> bool:
        """False while a table's newest content is not on disk because a write failed."""
        return self._saver.is_healthy

    @property
    def failed_count(self) -> int:
        return self._saver.failed_count

    def request(self, table: Saved) -> None:
        """Schedule a save of a table, with its content at the time of the write."""
        if table.file is not None:
            self._saver.request(table.file.path, partial(_begin, table))

    def request_if_dirty(self, table: Saved) -> None:
        if table.is_dirty:
            self.request(table)

    async def save(self, table: Saved) -> None:
        """Return when the current content of the table is on disk; raise OSError if that fails."""
        if table.file is not None:
            await self._saver.save(table.file.path, partial(_begin, table))


def _begin(table: Saved) -> Job | Steps[Job]:
    content = table.encode_for_file()
    if isinstance(content, bytes):
        return partial(table.file.write, content)
    return _job_in_steps(table.file, content)


def _job_in_steps(file: TableFile, steps: Steps[bytes]) -> Steps[Job]:
    data = yield from steps
    return partial(file.write, data)
