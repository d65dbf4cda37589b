# SPDX-License-Identifier: Apache-2.0
"""Waits for a condition, with a deadline."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

from cometmq.client.arguments import check_seconds
from cometmq.client.errors import InvalidArgument, shown

T = TypeVar("T")

_INTERVAL_S = 0.005


@overload
async def eventually(
    condition: Callable[[], Awaitable[T]], timeout_s: float = ..., *, what: str = ...
) -> T: ...


@overload
async def eventually(
    condition: Callable[[], T], timeout_s: float = ..., *, what: str = ...
) -> T: ...


async def eventually(
    condition: Callable[[], T | Awaitable[T]], timeout_s: float = 60.0, *, what: str = ""
) -> T:
    """Call a function or coroutine function repeatedly; return its first true value.

    Raise TimeoutError after `timeout_s`; its text contains the last value, and `what` if given.
    Example: `await eventually(lambda: seen == [b"x"], what="one message")`.
    """
    if not callable(condition):
        raise InvalidArgument(
            f"condition must be a function, not {shown(condition)}: write "
            "`await eventually(lambda: ...)`"
        )
    check_seconds(timeout_s, "timeout_s")
    value: object = None
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                found = condition()
                value = await found if inspect.isawaitable(found) else found
                if value:
                    return value
                await asyncio.sleep(_INTERVAL_S)
    except TimeoutError as error:
        raise TimeoutError(
            f"{what or 'the condition'} did not come true within {timeout_s:g} s; its last value "
            f"was {shown(value)}"
        ) from error
