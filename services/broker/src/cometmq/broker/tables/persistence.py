# SPDX-License-Identifier: Apache-2.0
"""The broker's tables and their files, as saved by `runtime.saves`.

If there is a journal, each save is marked in it before the file is replaced (`tables/journal.py`).
"""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from cometmq.remoting.log import Log
from cometmq.runtime.incremental import IncrementalRunner, Steps
from cometmq.runtime.saves import Job, Saver
from cometmq.runtime.worker import Worker
from cometmq.store.json_config import new_digest

if TYPE_CHECKING:
    from cometmq.broker.tables.journal import Journal

_DIGEST_STEP_BYTES: Final = 256 << 10


class Saved(Protocol):
    """A table that is saved after it has changed."""

    @property
    def file(self) -> Any:
        """The table's file (a `JsonTable`); None if the table is kept only in memory."""

    @property
    def is_dirty(self) -> bool:
        """Whether the table has changed since its last save."""

    def encode_for_file(self) -> bytes | Steps[bytes]:
        """Return the content of the file and clear `is_dirty`."""


class TableSaver:
    """Saves tables to their files; requests for tables without a file are ignored."""

    def __init__(
        self,
        worker: Worker,
        *,
        log: Log,
        runner: IncrementalRunner | None = None,
        journal: "Journal | None" = None,
    ) -> None:
        self._journal = journal
        self._saver = Saver(worker, log=log, runner=runner, saved=self._saved)
        self.retry = self._saver.retry
        self.drain = self._saver.drain

    @property
    def is_healthy(self) -> bool:
        """False while the newest content of some table cannot be saved."""
        return self._saver.is_healthy

    @property
    def failed_count(self) -> int:
        return self._saver.failed_count

    def request(self, table: Saved) -> None:
        """Schedule a save of a table, with its content at the time of the write."""
        if table.file is not None:
            self._saver.request(table.file.path, partial(self._begin, table))

    def request_if_dirty(self, table: Saved) -> None:
        if table.is_dirty:
            self.request(table)

    async def save(self, table: Saved) -> None:
        """Wait until the current content of the table is on disk; raise OSError if that fails."""
        if table.file is not None:
            await self._saver.save(table.file.path, partial(self._begin, table))

    def _begin(self, table: Saved) -> Steps[Job]:
        journal, file = self._journal, table.file
        number = 0 if journal is None else journal.number
        content = table.encode_for_file()
        data = content if isinstance(content, bytes) else (yield from content)
        if journal is not None:
            digest = yield from _digest(data)
            journal.mark(file.path.name, digest, number)
        return partial(file.write, data)

    def _saved(self, path: Path) -> None:
        if self._journal is not None:
            self._journal.saved(path.name)


def _digest(data: bytes) -> Steps[str]:
    digest = new_digest()
    for start in range(0, len(data), _DIGEST_STEP_BYTES):
        digest.update(data[start : start + _DIGEST_STEP_BYTES])
        yield
    return digest.hexdigest()


def clean_after(table: Any, encoding: Steps[bytes]) -> Steps[bytes]:
    """Clear `is_dirty`, then run the encoding; set `is_dirty` again if it does not complete."""
    table.is_dirty = False
    is_whole = False
    try:
        data = yield from encoding
        is_whole = True
        return data
    finally:
        if not is_whole:
            table.is_dirty = True
