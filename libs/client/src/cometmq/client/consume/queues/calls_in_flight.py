# SPDX-License-Identifier: Apache-2.0
"""Counts listener calls in flight, and waits until they have ended.

Hot path
    `began` and `ended` run once per list of messages, so an event is created only for a waiter.
"""

import asyncio


class Calls:
    """Counts the listener calls of a consumer, or only those for one queue."""

    def __init__(self) -> None:
        self._count = 0
        self._idle: asyncio.Event | None = None

    @property
    def count(self) -> int:
        """The number of calls in flight."""
        return self._count

    @property
    def is_idle(self) -> bool:
        """Return whether no call is in flight."""
        return not self._count

    def began(self) -> None:
        """Count a call."""
        self._count += 1

    def ended(self) -> None:
        """Record that a call has ended and its result has been processed."""
        self._count -= 1
        if self._idle is not None and not self._count:
            self._idle.set()

    async def idle(self) -> None:
        """Wait until no call is in flight; the caller must prevent new calls."""
        if self._count:
            self._idle = self._idle or asyncio.Event()
            await self._idle.wait()

    async def left_after(self, timeout_ms: int) -> int:
        """Wait until no call is in flight and return 0, or return their number on timeout."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self.idle()
        except TimeoutError:
            return self._count
        return 0
