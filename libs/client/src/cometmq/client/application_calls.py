# SPDX-License-Identifier: Apache-2.0
"""Calling what applications write, so that whatever it raises is an `Exception` for the caller.

Two things are not by themselves. A future takes no StopIteration: who waits for a thread that
raised it would wait for ever. And SystemExit or CancelledError would end a task of the client.
"""

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cometmq.remoting.transport.tasks import describe


class ForeignError(Exception):
    """Foreign code raised something that must not reach the event loop as it is."""


def contained(function: Callable[..., Any], *arguments: object) -> Any:
    """Call a plain function on this thread."""
    try:
        return function(*arguments)
    except (StopIteration, SystemExit) as error:
        raise ForeignError(f"raised {describe(error)}") from error


async def on_thread(
    pool: ThreadPoolExecutor | None, function: Callable[..., Any], *arguments: object
) -> Any:
    """Call a plain function on a thread of a pool, with the context variables of this task.

    A coroutine that it returns, as `lambda messages: handle(messages)` does, is awaited here.
    """
    loop = asyncio.get_running_loop()
    context = contextvars.copy_context()
    result = await loop.run_in_executor(pool, context.run, contained, function, *arguments)
    return await result if inspect.isawaitable(result) else result


def is_cancelled() -> bool:
    """Whether somebody cancels this task, after a CancelledError; else it came from inside."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
