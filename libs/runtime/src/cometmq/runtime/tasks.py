# SPDX-License-Identifier: Apache-2.0
"""Background loops that never die silently.

The four methods of `Log` are all there is, so errors carry `exc_info` (hence TRY400 is off here).
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from cometmq.remoting.log import NO_LOG, Log

Step = Callable[[], Awaitable[object] | object]
Sleep = Callable[[float], Awaitable[object]]


class LoopStats:
    """How often a background loop ran and failed."""

    __slots__ = ("failed_count", "run_count")

    def __init__(self) -> None:
        """Start at zero."""
        self.run_count = 0
        self.failed_count = 0


async def every(  # noqa: PLR0913  # all but two by keyword
    interval_ms: int,
    step: Step,
    *,
    name: str,
    log: Log = NO_LOG,
    first_ms: int | None = None,
    is_fatal: bool = False,
    stats: LoopStats | None = None,
    sleep: Sleep = asyncio.sleep,
) -> None:
    """Run `step` again and again, `interval_ms` after it ended; a failed step is logged.

    `step` is a plain or a coroutine function of the domain object, so tests call it directly.
    `is_fatal` ends the loop (and with it the task group) by the first error instead.
    """
    assert interval_ms > 0
    counts = stats or LoopStats()
    await sleep((interval_ms if first_ms is None else first_ms) / 1000)
    while True:
        counts.run_count += 1
        try:
            result = step()
            if inspect.isawaitable(result):
                await result
        except Exception as error:  # the supervisor: one bad round is not the end
            counts.failed_count += 1
            log.error("task.failed", task=name, fatal=is_fatal, exc_info=error)  # noqa: TRY400
            if is_fatal:
                raise
        await sleep(interval_ms / 1000)


async def supervise(work: Coroutine[Any, Any, object], *, name: str, log: Log) -> None:
    """Await work that should run until it is cancelled, and say by name how it ended."""
    try:
        await work
    except asyncio.CancelledError:
        log.debug("task.cancelled", task=name)
        raise
    except Exception as error:
        log.error("task.failed", task=name, fatal=True, exc_info=error)  # noqa: TRY400
        raise
    log.warning("task.ended", task=name)


class Background:
    """The loops of a part that is started and stopped: spawned together, cancelled together."""

    def __init__(self, log: Log = NO_LOG) -> None:
        """Start without tasks."""
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, object], *, name: str) -> None:
        """Run work until it ends or `close` cancels it; its error is logged by name."""
        supervised = supervise(work, name=name, log=self._log)
        task = asyncio.create_task(supervised, name=name)  # noqa: TID251  # the place for it
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        task.add_done_callback(lambda _: work.close())  # it may be cancelled before it began

    async def close(self) -> None:
        """Cancel everything and wait until it has ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # supervise logged it; looking at it keeps asyncio quiet


def describe(error: BaseException) -> str:
    """Return `TypeName: text`, the form of all `error` facts in logs."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
