# SPDX-License-Identifier: Apache-2.0
"""Limits how many sends are in flight; the others wait in the order of their calls."""

import asyncio
from collections import deque
from typing import Final


class Room:
    """A semaphore for tens of thousands of waiting tasks.

    `asyncio.Semaphore` scans all the waiters that it has woken in the same turn of the loop: with
    25,000 concurrent sends, this took most of their time.
    """

    def __init__(self, size: int) -> None:
        self.size: Final = size
        self.count = 0
        """How many sends are in flight."""
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._emptied = asyncio.Event()

    async def __aenter__(self) -> None:
        if self.count < self.size:
            self.count += 1
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._leave()  # its place was handed over just before
            raise

    async def __aexit__(self, *_: object) -> None:
        self._leave()

    async def wait_empty(self) -> None:
        """Wait until no send is in flight."""
        while self.count:
            self._emptied.clear()
            await self._emptied.wait()

    def _leave(self) -> None:
        """Hand the place over to the next waiter, if there is one."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self.count -= 1
        if not self.count:
            self._emptied.set()
