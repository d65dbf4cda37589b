# SPDX-License-Identifier: Apache-2.0
"""Saving of config tables off the loop: one write at a time, the newest content wins."""

import asyncio
from typing import Any, NamedTuple, Protocol, TypeVar

from cometmq.broker.tables.offsets import OffsetFile, Offsets
from cometmq.remoting.log import Log
from cometmq.runtime.incremental import Turns
from cometmq.runtime.tasks import describe
from cometmq.runtime.worker import Worker
from cometmq.store.json_config import JsonTable

T = TypeVar("T")
SavedT = TypeVar("SavedT")


class Saved(Protocol[SavedT]):
    """A table that is saved when it has changed."""

    @property
    def file(self) -> JsonTable[SavedT] | None:
        """Its file."""

    @property
    def is_dirty(self) -> bool:
        """Whether it differs from what was saved last."""

    def snapshot(self) -> SavedT:
        """Return what to save and note that it is being saved."""


class _Pending(NamedTuple):
    data: bytes
    saved: asyncio.Future[None]


class ConfigSaver:
    """Writes tables on a worker thread; what fails is tried again by `retry`."""

    def __init__(self, worker: Worker, *, log: Log) -> None:
        self._worker = worker
        self._log = log
        self._waiting: dict[JsonTable[Any], _Pending] = {}
        self._writing: dict[JsonTable[Any], asyncio.Future[None]] = {}
        self._failed: dict[JsonTable[Any], bytes] = {}
        self.failed_count = 0

    @property
    def is_healthy(self) -> bool:
        """False while a table's newest content is not on disk because a write failed."""
        return not self._failed

    def save(self, table: JsonTable[T], value: T) -> asyncio.Future[None]:
        """Write the value as it is now; awaiting the future waits until it is durable.

        A content that waits behind a running write is replaced by a newer one, and both
        callers wait for the newer.
        """
        return self.write(table, table.encode(value))

    def retry(self) -> None:
        """Write again what failed; called by a timer."""
        failed, self._failed = self._failed, {}
        for table, data in failed.items():
            self.write(table, data)

    async def drain(self) -> None:
        """Wait until everything handed over is written or has failed."""
        while self._writing:
            await asyncio.wait(self._writing.values())

    def write(self, table: JsonTable[Any], data: bytes) -> asyncio.Future[None]:
        """Do as `save` with a value that is encoded already."""
        self._failed.pop(table, None)
        waiting = self._waiting.get(table)
        if waiting is not None:
            self._waiting[table] = waiting._replace(data=data)
            return waiting.saved
        saved = asyncio.get_running_loop().create_future()
        saved.add_done_callback(_retrieve)
        self._waiting[table] = _Pending(data, saved)
        self._start(table)
        return saved

    def _start(self, table: JsonTable[Any]) -> None:
        if table in self._writing or table not in self._waiting:
            return
        data, saved = self._waiting.pop(table)
        self._writing[table] = saved

        def ended(done: asyncio.Future[None]) -> None:
            del self._writing[table]
            error = done.exception()
            if error is not None:
                self.failed_count += 1
                if table not in self._waiting:
                    self._failed[table] = data
                self._log.error("config.save_failed", file=str(table.path), error=describe(error))
            if not saved.done():
                saved.set_exception(error) if error else saved.set_result(None)
            self._start(table)

        self._worker.submit(lambda: table.write(data)).add_done_callback(ended)


async def write_offsets(
    offsets: Offsets, file: JsonTable[OffsetFile], saver: ConfigSaver, turns: Turns
) -> asyncio.Future[None]:
    """Hand the offsets over to the thread, encoded without holding the loop up.

    Who wants to know whether they are on the disk awaits the result. All but the end of a broker
    must save them by this, or a content that was begun earlier could replace a later one.
    """
    return saver.write(file, await turns.run(offsets.encode_for_file()))


def _retrieve(saved: asyncio.Future[None]) -> None:
    """Mark the error as seen: it was logged, and a caller need not wait for it."""
    if not saved.cancelled():
        saved.exception()
