# SPDX-License-Identifier: Apache-2.0
"""Waiting for a condition with a deadline."""

import asyncio
from collections.abc import Callable

_INTERVAL_S = 0.005


async def eventually(condition: Callable[[], object], *, timeout_s: float = 10.0) -> None:
    """Return as soon as the condition holds; raise TimeoutError after `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  # polls, because an arbitrary condition has no event to wait for
            await asyncio.sleep(_INTERVAL_S)
