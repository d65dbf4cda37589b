# SPDX-License-Identifier: Apache-2.0
"""Wakes a loop early."""

import asyncio


class Wakeup:
    """Wakes one waiting task; several calls to `set` before it waits again count as one."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """Wake the waiting task or, if there is none, the next one to wait."""
        self._event.set()

    async def wait(self, timeout_ms: int) -> bool:
        """Return True when woken, False after `timeout_ms`."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True
