# SPDX-License-Identifier: Apache-2.0
"""Waiting for what happens elsewhere, without guessing how long it takes."""

import asyncio
from collections.abc import Callable

_INTERVAL_S = 0.005


async def eventually(condition: Callable[[], object], *, timeout_s: float = 10.0) -> None:
    """Return as soon as the condition holds; TimeoutError if it does not in time."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  # any condition, of which nobody tells us
            await asyncio.sleep(_INTERVAL_S)
