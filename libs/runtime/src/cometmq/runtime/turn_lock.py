# SPDX-License-Identifier: Apache-2.0
"""A lock for which owners take turns: many waiters of one owner delay another by one turn only.

An `asyncio.Lock` serves waiters in order of arrival: a thousand requests of one client would all
get it before the first request of another.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from cometmq.remoting.transport.flow.fair_queue import FairQueue, Requester

_WAITING_MAX: Final = 1 << 40  # no limit: the code that starts the tasks bounds their number


class TurnExpired(Exception):
    """The turn of a waiter did not come in time."""


class TurnLock:
    """Held by one task at a time."""

    def __init__(self) -> None:
        self.is_held = False
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue(_WAITING_MAX)

    @property
    def waiting_count(self) -> int:
        """Number of waiters."""
        return len(self._waiting)

    @asynccontextmanager
    async def hold(
        self, requester: Requester, wait_s_max: float | None = None
    ) -> AsyncIterator[None]:
        """Wait for the lock, and hold it; the waiters of one requester keep their order.

        Raise TurnExpired if the turn of this one does not come within `wait_s_max`; the waiters of
        one requester expire in their order.
        """
        if self.is_held:
            await self._wait(requester, wait_s_max)
        self.is_held = True
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, requester: Requester, wait_s_max: float | None) -> None:
        came: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.put(requester, came)
        try:
            async with asyncio.timeout(wait_s_max):
                await came
        except (asyncio.CancelledError, TimeoutError) as error:
            if not came.cancelled():  # it had its turn already
                self._pass_on()
            # Waiters expire in order, so none stays in the queue behind one that goes on waiting.
            self._waiting.discard_first(requester, asyncio.Future.done)
            if isinstance(error, TimeoutError):
                raise TurnExpired from None
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            came = self._waiting.pop()
            if not came.done():  # cancelled
                came.set_result(None)
                return
        self.is_held = False
