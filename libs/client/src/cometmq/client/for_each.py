# SPDX-License-Identifier: Apache-2.0
"""Calls a coroutine function for many items, with limited concurrency."""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

BEGUN_PER_TURN: Final = 64
"""How many calls begin in one turn of the loop; each may encode a request."""


async def for_each(
    items: Collection[T], action: Callable[[T], Coroutine[Any, Any, None]], *, running_max: int
) -> None:
    """Call `action` for every item, in order; at most `running_max` calls run at the same time.

    If a call raises, the others are cancelled, and its error is raised.
    """
    waiting = iter(items)

    async def work() -> None:
        for item in waiting:
            await action(item)

    try:
        async with asyncio.TaskGroup() as group:
            for number in range(1, min(running_max, len(items)) + 1):
                group.create_task(work())
                if not number % BEGUN_PER_TURN:
                    await asyncio.sleep(0)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors
