# SPDX-License-Identifier: Apache-2.0
"""Coalesced table saves: for each file, at most one save runs and one more is pending.

A pending save serves every caller that arrives while another save of the same file is running, and
encodes the table only when it starts. A burst of changes therefore costs two or three writes and no
copies.

Invariants
    A caller's save starts after the call, so it contains every change made before the call.
    The content is encoded on the event loop; only the write runs on the worker.
    A failed save fails for all its callers; `retry` repeats it with the newest content.
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
"""Writes immutable content; runs on the worker."""

Begin: TypeAlias = Callable[[], Job | Steps[Job]]
"""Encodes the current table, on the event loop, and returns the job that writes it."""


class _File:
    __slots__ = ("begin", "has_failed", "pending", "running")

    def __init__(self, begin: Begin) -> None:
        self.begin = begin
        self.pending: asyncio.Future[None] | None = None
        self.running: asyncio.Future[None] | None = None
        self.has_failed = False


class Saver:
    """Saves files on one worker; callers of `save` wait, callers of `request` do not."""

    def __init__(
        self,
        worker: Worker,
        *,
        log: Log = NO_LOG,
        runner: IncrementalRunner | None = None,
        saved: Callable[[Path], None] = lambda _: None,
    ) -> None:
        """Save on `worker`; encode long tables as jobs of `runner`, which runs one at a time.

        `saved` is called on the loop after each save, before the next one of that file begins.
        """
        self._worker = worker
        self._saved = saved
        self._log = log
        self._runner = runner or IncrementalRunner()
        self._files: dict[Path, _File] = {}
        self._tasks: TaskSet | None = None
        self.failed_count = 0
        self.done_count = 0

    @property
    def is_healthy(self) -> bool:
        """Return whether the most recent save of every file succeeded."""
        return not any(file.has_failed for file in self._files.values())

    def request(self, path: Path, begin: Begin) -> None:
        """Schedule a save of the file; a failure is logged and left to `retry`."""
        self._next(path, begin)

    async def save(self, path: Path, begin: Begin) -> None:
        """Wait for a save that starts after this call; raise the error if it fails."""
        await asyncio.shield(self._next(path, begin))  # one cancelled caller must not cancel all

    def retry(self) -> None:
        """Schedule a new save of every file whose last save failed; called by a timer."""
        for path, file in list(self._files.items()):
            if file.has_failed:
                self.request(path, file.begin)

    async def drain(self) -> None:
        """Wait until every requested save has finished."""
        while True:
            saves = [save for file in self._files.values()
                     if (save := file.pending or file.running) is not None]  # fmt: skip
            if not saves:
                return
            await asyncio.wait(saves)

    def _next(self, path: Path, begin: Begin) -> asyncio.Future[None]:
        """Return the future of the file's pending save; schedule one if there is none."""
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
        while (save := file.pending) is not None:
            file.running, file.pending = save, None
            error: Exception | None = None
            try:
                await self._write(file.begin)
            except Exception as caught:  # noqa: BLE001  # passed on to the callers, whatever it is
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
            self._saved(path)
            return
        self.failed_count += 1
        self._log.error("config.save_failed", file=str(path), error=describe(error))


def _retrieve(save: asyncio.Future[None]) -> None:
    """Retrieve an error that is already logged; otherwise asyncio reports it as unhandled."""
    if not save.cancelled():
        save.exception()
