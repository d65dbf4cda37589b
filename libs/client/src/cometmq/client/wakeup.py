# SPDX-License-Identifier: Apache-2.0
"""An event with a timeout, which ends the pause of a background loop early."""

import asyncio
from typing import Final

from cometmq.client.clock import monotonic_ms

APART_MS: Final = 200
"""Least time between two rounds that servers may cause: rebalancing, locks, reconnections."""


class Wakeup:
    """Wakes one waiting task; several calls to `set` before it waits again count as one."""

    def __init__(self, *, apart_ms: int = 0) -> None:
        """There are at least `apart_ms` between the ends of two waits, because a server may wake a
        client thousands of times a second.
        """
        self._event = asyncio.Event()
        self._apart_ms = apart_ms
        self._ended_ms = monotonic_ms() - apart_ms

    def set(self) -> None:
        """Wake the waiting task or, if there is none, the next one to wait."""
        self._event.set()

    async def wait(self, timeout_ms: int) -> bool:
        """Return True when woken, False after `timeout_ms`."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._event.wait()
        except TimeoutError:
            self._ended_ms = monotonic_ms()
            return False
        left_ms = self._ended_ms + self._apart_ms - monotonic_ms()
        if left_ms > 0:
            await asyncio.sleep(left_ms / 1000)
        self._event.clear()
        self._ended_ms = monotonic_ms()
        return True
