# SPDX-License-Identifier: Apache-2.0
"""Groups of background tasks: none outlives its owner, and none fails silently."""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final

from cometmq.remoting.command import Response
from cometmq.remoting.errors import CometError
from cometmq.remoting.log import NO_LOG, Log

CANCELLED_PER_TURN: Final = 128
RESTART_MS: Final = 1_000

GRID_S: Final = 1.0
"""Periodic work is due at multiples of this time, or of its interval if that is shorter."""

CANCELLED_ADVICE: Final = (
    "code that this task called has cancelled it: let the code raise an exception, or cancel tasks "
    "of its own only"
)

_LEFT: Final[set[asyncio.Task[None]]] = set()
"""Cancelled tasks that are still running; an event loop keeps only weak references to tasks."""


def due_on_grid(now_s: float, pause_s: float) -> float:
    """Return when periodic work is due again: after `pause_s`, moved by at most half a step to a
    multiple of the grid.

    All times are those of the loop's clock. Different kinds of work thus fall due in the same turn
    of the loop, because waking up an idle process takes longer than most of this work.
    """
    step_s = min(pause_s, GRID_S)
    return round((now_s + pause_s) / step_s) * step_s if step_s else now_s


async def sleep_on_grid(seconds: float) -> None:
    """Sleep for about `seconds`, and wake up together with other loops (`due_on_grid`)."""
    now_s = asyncio.get_running_loop().time()
    await asyncio.sleep(due_on_grid(now_s, seconds) - now_s)


class TaskSet:
    """Tasks that are cancelled together when their owner closes.

    An `asyncio.TaskGroup` must be entered and exited by the same task. Servers and clients are
    often started by one task and closed by another, so a `TaskGroup` does not fit.
    """

    __slots__ = ("_keepers", "_log", "_tasks")

    def __init__(self, log: Log = NO_LOG) -> None:
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()
        self._keepers: dict[asyncio.Task[Any] | None, asyncio.Task[None]] = {}
        """The tasks of `keep`, keyed by the task that is running their work now."""

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(
        self, work: Coroutine[Any, Any, None], *, name: str, is_endless: bool = False
    ) -> asyncio.Task[None]:
        """Run `work` until it ends or is cancelled; an error is logged under `name`.

        If `is_endless`, a normal end is logged too, because such work should run until it is
        cancelled.
        """
        task = asyncio.create_task(work, name=name)  # noqa: TID251  # the place for it
        self._tasks.add(task)
        task.add_done_callback(self._endless_ended if is_endless else self._ended)
        return task

    def keep(
        self, work: Callable[[], Coroutine[Any, Any, None]], *, name: str
    ) -> asyncio.Task[None]:
        """Run `work` until it ends normally; restart it `RESTART_MS` after each failure.

        Neither a bug in one round nor application code that cancels the task it runs in may stop a
        loop permanently, so each round of `work` runs in a task of its own.
        """
        return self.spawn(self._keep(work, name), name=name)

    async def drain(self, timeout_s: float) -> None:
        """Wait for all tasks, and cancel those still running after `timeout_s`."""
        if tasks := self._others():
            _, late = await asyncio.wait(tasks, timeout=timeout_s)
            await self._cancel(late)

    async def close(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        await self._cancel(self._others())

    async def close_within(self, timeout_s: float) -> int:
        """Cancel all tasks; return how many are still running after `timeout_s`.

        Use this for tasks that call application code, which may suppress the cancellation.
        """
        left = await self._cancel(self._others(), timeout_s)
        _LEFT.update(left)
        for task in left:
            task.add_done_callback(_LEFT.discard)
        return len(left)

    def _others(self) -> set[asyncio.Task[None]]:
        # A task may close its own set; it must not wait for itself.
        current = asyncio.current_task()
        return self._tasks - {self._keepers.get(current, current)}

    async def _cancel(
        self, tasks: set[asyncio.Task[None]], timeout_s: float | None = None
    ) -> set[asyncio.Task[None]]:
        """Cancel tasks; return those that are still running after `timeout_s`."""
        self._tasks -= tasks  # only other cancellations are logged
        await cancel_in_turns(tasks)
        if not tasks:
            return set()
        _, left = await asyncio.wait(tasks, timeout=timeout_s)
        return left

    async def _keep(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        keeper = asyncio.current_task()
        assert keeper is not None
        while True:
            round_ = asyncio.create_task(work(), name=name)  # noqa: TID251  # as in `spawn`
            self._keepers[round_] = keeper
            try:
                await asyncio.wait([round_])
            except asyncio.CancelledError:
                round_.cancel()
                await asyncio.wait([round_])
                self._is_done(round_)
                raise
            finally:
                del self._keepers[round_]
            if round_.cancelled():
                self._log.error("task.cancelled", task=name, advice=CANCELLED_ADVICE)
            elif self._is_done(round_):
                return
            await asyncio.sleep(RESTART_MS / 1000)

    def _is_done(self, round_: asyncio.Task[None]) -> bool:
        """Return whether a round of `_keep` ended without an error; otherwise, log the error."""
        if round_.cancelled() or (error := round_.exception()) is None:
            return True
        name = round_.get_name()
        self._log.error("task.failed", task=name, error=describe(error), exc_info=error)
        return False

    def _endless_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is None:
            self._log.warning("task.ended", task=task.get_name())
        self._ended(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        is_expected = task not in self._tasks
        self._tasks.discard(task)
        if task.cancelled():
            if not is_expected:
                self._log.debug("task.cancelled", task=task.get_name())
        elif (error := task.exception()) is not None:
            self._log.error(
                "task.failed",
                task=task.get_name(),
                error=describe(error),
                fatal=True,
                exc_info=error,
            )


async def cancel_in_turns(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks, a few in each turn of the loop: a consumer may have one for each of 16,384
    queues, and all of them would end in the same turn.
    """
    waiting = iter(tasks)
    try:
        for number, task in enumerate(waiting, 1):
            task.cancel()
            if not number % CANCELLED_PER_TURN:
                await asyncio.sleep(0)
    finally:
        for task in waiting:  # the caller is cancelled
            task.cancel()


def describe(error: BaseException) -> str:
    """Return `TypeName: text`, the form of all `error` facts in logs."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def settle(future: "asyncio.Future[Response]", result: Response | CometError) -> None:
    """Pass an answer or error on to the task that waits for it, unless it was cancelled."""
    if isinstance(result, Response) and not future.done():
        future.set_result(result)
    elif isinstance(result, CometError) and not future.done():
        future.set_exception(result)
