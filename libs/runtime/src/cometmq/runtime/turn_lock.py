# SPDX-License-Identifier: Apache-2.0
"""A lock for which keys take turns: many waiters of one key delay another key by one turn only.

An `asyncio.Lock` serves waiters in order of arrival: a thousand requests of one connection would
all get it before the first request of another.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from cometmq.runtime.fair_queue import FairQueue

_WAITING_MAX: Final = 1 << 40  # no limit: the code that starts the tasks bounds their number


class TurnLock:
    """Held by one task at a time."""

    def __init__(self) -> None:
        self.is_held = False
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue(_WAITING_MAX)

    @asynccontextmanager
    async def hold(self, key: object) -> AsyncIterator[None]:
        """Wait for the lock, and hold it. Keys take turns; the waiters of one key keep their
        order.
        """
        if self.is_held:
            await self._wait(key)
        self.is_held = True
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, key: object) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.put(key, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it had its turn already
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            turn = self._waiting.pop()
            if not turn.done():  # cancelled
                turn.set_result(None)
                return
        self.is_held = False
