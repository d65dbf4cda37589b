# SPDX-License-Identifier: Apache-2.0
"""An event with a timeout, which ends the pause of a background loop early."""

import asyncio
from collections import deque
from typing import Final

from cometmq.client.clock import monotonic_ms

APART_MS: Final = 200
"""Average time between rounds that servers may cause: rebalancing, locks, reconnections."""
AT_ONCE: Final = 5
"""How many rounds run without a pause: members that join one after the other must share queues at
once, because a message that arrives before the old owner leaves its queue is consumed twice.
"""


class Wakeup:
    """Wakes one waiting task; several calls to `set` before it waits again count as one."""

    def __init__(self, *, apart_ms: int = 0) -> None:
        """At most AT_ONCE waits are ended by `set` within AT_ONCE * `apart_ms`, because a server
        may wake a client thousands of times a second.
        """
        self._event = asyncio.Event()
        self._apart_ms = apart_ms
        self._ended_ms: deque[int] = deque(maxlen=AT_ONCE)

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
        if len(self._ended_ms) == AT_ONCE:
            left_ms = self._ended_ms[0] + AT_ONCE * self._apart_ms - monotonic_ms()
            await asyncio.sleep(max(0, left_ms) / 1000)
        self._event.clear()
        self._ended_ms.append(monotonic_ms())
        return True
