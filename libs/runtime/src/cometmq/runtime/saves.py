# SPDX-License-Identifier: Apache-2.0
"""Coalesced saves of tables: one save of a file runs, at most one more is pending.

A pending save serves all callers that arrive while another save of the same file runs, and it
encodes the table when it starts. So a burst of changes costs two or three writes and no copies.

Invariants
    A caller's save starts after the call, so it contains every change made before the call.
    The content is encoded on the event loop; only the writing runs on the worker.
    A failed save fails all its callers and is repeated by `retry`, with the newest content.
"""

import asyncio
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TypeAlias

from cometmq.remoting.log import NO_LOG, Log
from cometmq.remoting.transport.tasks import TaskSet, describe
from cometmq.runtime.incremental import IncrementalRunner, Steps
from cometmq.runtime.worker import Worker

Job: TypeAlias = Callable[[], object]
"""Writes a content that no longer changes; runs on the worker."""

Begin: TypeAlias = Callable[[], Job | Steps[Job]]
"""Encodes the table as it is now, on the event loop, and returns the job that writes it."""


class _File:
    """The saves of one file."""

    __slots__ = ("begin", "has_failed", "pending", "running")

    def __init__(self, begin: Begin) -> None:
        self.begin = begin
        self.pending: asyncio.Future[None] | None = None
        self.running: asyncio.Future[None] | None = None
        self.has_failed = False


class Saver:
    """Saves files on one worker; the caller of `save` waits, the caller of `request` does not."""

    def __init__(
        self, worker: Worker, *, log: Log = NO_LOG, runner: IncrementalRunner | None = None
    ) -> None:
        """Encode long tables with `runner`, one after the other with its other work."""
        self._worker = worker
        self._log = log
        self._runner = runner or IncrementalRunner()
        self._files: dict[Path, _File] = {}
        self._tasks: TaskSet | None = None
        self.failed_count = 0
        self.done_count = 0

    @property
    def is_healthy(self) -> bool:
        """False while the last save of a file has failed."""
        return not any(file.has_failed for file in self._files.values())

    def request(self, path: Path, begin: Begin) -> None:
        """Have the file saved soon; a failure is logged and repeated by `retry`."""
        self._next(path, begin)

    async def save(self, path: Path, begin: Begin) -> None:
        """Return when a save that started after this call is durable; raise its error."""
        await asyncio.shield(self._next(path, begin))  # one cancelled caller must not cancel all

    def retry(self) -> None:
        """Save the files again whose last save failed; called by a timer."""
        for path, file in list(self._files.items()):
            if file.has_failed:
                self.request(path, file.begin)

    async def drain(self) -> None:
        """Wait until every save that was asked for has ended."""
        while True:
            saves = [save for file in self._files.values()
                     if (save := file.pending or file.running) is not None]  # fmt: skip
            if not saves:
                return
            await asyncio.wait(saves)

    def _next(self, path: Path, begin: Begin) -> asyncio.Future[None]:
        """Return the end of the next save to start."""
        loop = asyncio.get_running_loop()
        file = self._files.setdefault(path, _File(begin))
        file.begin = begin
        if file.pending is None:
            file.pending = loop.create_future()
            file.pending.add_done_callback(_retrieve)
            if file.running is None:
                self._tasks = self._tasks or TaskSet(self._log)
                file.running = file.pending
                self._tasks.spawn(self._run(path, file), name=f"save-{path.name}")
        return file.pending

    async def _run(self, path: Path, file: _File) -> None:
        """Save until nobody has asked for more."""
        while (save := file.pending) is not None:
            file.running, file.pending = save, None
            error: Exception | None = None
            try:
                await self._write(file.begin)
            except Exception as caught:  # noqa: BLE001  # the callers get it, whatever it is
                error = caught
            except asyncio.CancelledError:
                save.cancel()
                raise
            self._note(path, file, error)
            if error is None:
                save.set_result(None)
            else:
                save.set_exception(error)
        file.running = None
        if not file.has_failed:
            del self._files[path]

    async def _write(self, begin: Begin) -> None:
        work = begin()
        job = await self._runner.run(work) if isinstance(work, Generator) else work
        await self._worker.submit(job)

    def _note(self, path: Path, file: _File, error: Exception | None) -> None:
        file.has_failed = error is not None
        if error is None:
            self.done_count += 1
            return
        self.failed_count += 1
        self._log.error("config.save_failed", file=str(path), error=describe(error))


def _retrieve(save: asyncio.Future[None]) -> None:
    """Mark the error as seen: it is logged, and perhaps no caller waits for it."""
    if not save.cancelled():
        save.exception()
