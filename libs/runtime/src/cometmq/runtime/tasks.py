# SPDX-License-Identifier: Apache-2.0
"""Background loops that never fail silently.

`Log` has only four methods, so errors are logged with `exc_info` (hence TRY400 is off here).
"""

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable

from cometmq.remoting.log import NO_LOG, Log
from cometmq.remoting.transport.tasks import due_on_grid, sleep_on_grid

Step = Callable[[], Awaitable[object] | object]
Sleep = Callable[[float], Awaitable[object]]


class Alarm:
    """The pauses of a loop that must also run at given times."""

    def __init__(self, clock_ms: Callable[[], int], *, least_ms: int) -> None:
        """`ring_at` takes times of `clock_ms`, and ends a pause at least `least_ms` after its
        call.
        """
        self._clock_ms = clock_ms
        self._least_ms = least_ms
        self._loop: asyncio.AbstractEventLoop | None = None  # None: no pause has begun
        self._end_s = math.inf  # of this pause, or the latest end of the next one
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def ring_at(self, time_ms: int) -> None:
        """End the present or next pause at this time, unless it ends earlier."""
        if self._loop is None:
            return
        left_ms = max(time_ms - self._clock_ms(), self._least_ms)
        end_s = self._loop.time() + left_ms / 1000
        if end_s < self._end_s:
            self._end_s = end_s
            if self._timer is not None:
                self._timer.cancel()
                self._timer = self._loop.call_at(end_s, self._ring)

    async def sleep(self, seconds: float) -> None:
        """Sleep as `sleep_on_grid` does, or until the alarm rings."""
        self._loop = loop = asyncio.get_running_loop()
        self._end_s = min(self._end_s, due_on_grid(loop.time(), seconds))
        self._waiter = loop.create_future()
        self._timer = loop.call_at(self._end_s, self._ring)
        try:
            await self._waiter
        finally:
            self._timer.cancel()
            self._timer, self._end_s = None, math.inf

    def _ring(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def every(  # all but two arguments by keyword
    interval_ms: int | Callable[[], int],
    step: Step,
    *,
    name: str,
    log: Log = NO_LOG,
    first_ms: int | None = None,
    is_fatal: bool = False,
    sleep: Sleep = sleep_on_grid,
) -> None:
    """Run `step` forever, pausing about `interval_ms` after each run; failures are logged.

    - `interval_ms` may be a function, which is called after each run, so that a step with nothing
      to do may run less often
    - `step` is a plain function or a coroutine function of a domain object, so that tests can call
      it directly
    - with `is_fatal`, the first error ends the loop and the task group that runs it
    """

    def pause_s() -> float:
        return (interval_ms() if callable(interval_ms) else interval_ms) / 1000

    await sleep(pause_s() if first_ms is None else first_ms / 1000)
    while True:
        try:
            result = step()
            if inspect.isawaitable(result):
                await result
        except Exception as error:  # the supervisor: one failed round must not end the loop
            log.error("task.failed", task=name, fatal=is_fatal, exc_info=error)  # noqa: TRY400
            if is_fatal:
                raise
        await sleep(pause_s())
