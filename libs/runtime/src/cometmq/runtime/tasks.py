# SPDX-License-Identifier: Apache-2.0
"""Background loops that never die silently.

The four methods of `Log` are all there is, so errors carry `exc_info` (hence TRY400 is off here).
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable

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
