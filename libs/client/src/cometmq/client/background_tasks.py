# SPDX-License-Identifier: Apache-2.0
"""The tasks of one client: they end before it does, and none fails unseen."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from cometmq.remoting.log import Log

RESTART_MS: Final = 1_000


class Background:
    """Tasks that are cancelled together."""

    def __init__(self, log: Log) -> None:
        """Start without tasks, on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Run work until it ends or is cancelled; an error ends it and is logged by name."""
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def keep(
        self, work: Callable[[], Coroutine[Any, Any, None]], *, name: str
    ) -> asyncio.Task[None]:
        """Run work, and again after a pause whenever it fails, until it ends or is cancelled.

        What one consumer does must not stop for good because one round met a bug.
        """
        return self.spawn(self._kept(work, name), name=name)

    async def _kept(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        while True:
            try:
                return await work()
            except Exception as error:  # noqa: BLE001  # the supervisor of all loops of a client
                self._log.error(  # a Log has these four methods
                    "task.failed", task=name, error=described(error), exc_info=error
                )
            await asyncio.sleep(RESTART_MS / 1000)

    async def sleep(self, delay_ms: int) -> None:
        """Let time pass."""
        await asyncio.sleep(delay_ms / 1000)

    async def close(self) -> None:
        """Cancel what runs and wait until it has ended."""
        tasks = self._tasks - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("task.failed", task=task.get_name(), error=described(error))


class Signal:
    """Wakes one waiting task; signals that come meanwhile count once."""

    def __init__(self) -> None:
        """Start unset."""
        self._event = asyncio.Event()

    def set(self) -> None:
        """Wake the waiting task, or the next that waits."""
        self._event.set()

    async def wait(self, timeout_ms: int) -> bool:
        """Return True when signalled, False when the time is over."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True


def described(error: BaseException) -> str:
    """Return `TypeName: text`, the form of all `error` facts in logs."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
