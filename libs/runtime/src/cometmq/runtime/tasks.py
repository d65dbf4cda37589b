# SPDX-License-Identifier: Apache-2.0
"""Background loops that never fail silently.

`Log` has only four methods, so errors are logged with `exc_info` (hence TRY400 is off here).
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable

from cometmq.remoting.log import NO_LOG, Log

Step = Callable[[], Awaitable[object] | object]
Sleep = Callable[[float], Awaitable[object]]


async def every(  # all but two arguments by keyword
    interval_ms: int,
    step: Step,
    *,
    name: str,
    log: Log = NO_LOG,
    first_ms: int | None = None,
    is_fatal: bool = False,
    sleep: Sleep = asyncio.sleep,
) -> None:
    """Run `step` forever, pausing `interval_ms` after each run; failures are logged.

    `step` is a plain function or a coroutine function of a domain object, so that tests can call it
    directly. If `is_fatal`, the first error ends the loop and the task group that runs it.
    """
    assert interval_ms > 0
    await sleep((interval_ms if first_ms is None else first_ms) / 1000)
    while True:
        try:
            result = step()
            if inspect.isawaitable(result):
                await result
        except Exception as error:  # the supervisor: one failed round must not end the loop
            log.error("task.failed", task=name, fatal=is_fatal, exc_info=error)  # noqa: TRY400
            if is_fatal:
                raise
        await sleep(interval_ms / 1000)
