# SPDX-License-Identifier: Apache-2.0
"""How many calls of a listener run, and waiting for their end.

Hot path
    `began` and `ended` run once per list of messages: an event is made only when somebody waits.
"""

import asyncio


class Calls:
    """Counts the calls of a consumer's listener, or those with messages of one queue."""

    def __init__(self) -> None:
        """Start with none."""
        self._count = 0
        self._idle: asyncio.Event | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no call runs."""
        return not self._count

    def began(self) -> None:
        """Count a call."""
        self._count += 1

    def ended(self) -> None:
        """Note that a call has ended, and what follows from it is done."""
        self._count -= 1
        if self._idle is not None and not self._count:
            self._idle.set()

    async def idle(self) -> None:
        """Wait until no call runs; for one for whom no new ones begin."""
        if self._count:
            self._idle = self._idle or asyncio.Event()
            await self._idle.wait()

    async def idle_within(self, timeout_ms: int) -> bool:
        """Wait until no call runs; False if some take longer."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self.idle()
        except TimeoutError:
            return False
        return True
