# SPDX-License-Identifier: Apache-2.0
"""Calls into application code: any exception reaches the caller as an `Exception`.

Two kinds need translation. A future refuses StopIteration, so a task awaiting a thread that raised
it would hang. SystemExit and CancelledError would end a task of the client.
"""

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cometmq.remoting.transport.tasks import describe


class ForeignError(Exception):
    """Application code raised an exception that must not reach the event loop unchanged."""


def contained(function: Callable[..., Any], *arguments: object) -> Any:
    """Call a plain function on this thread, translating its exceptions."""
    try:
        return function(*arguments)
    except (StopIteration, SystemExit) as error:
        raise ForeignError(f"raised {describe(error)}") from error


async def on_thread(
    pool: ThreadPoolExecutor | None, function: Callable[..., Any], *arguments: object
) -> Any:
    """Call a plain function on a pool thread, with the context variables of this task.

    A coroutine that it returns, as `lambda messages: handle(messages)` does, is awaited here.
    """
    loop = asyncio.get_running_loop()
    context = contextvars.copy_context()
    result = await loop.run_in_executor(pool, context.run, contained, function, *arguments)
    return await result if inspect.isawaitable(result) else result


def is_cancelled() -> bool:
    """Distinguish a cancellation of this task from a CancelledError raised by the called code."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
