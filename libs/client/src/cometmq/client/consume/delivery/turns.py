# SPDX-License-Identifier: Apache-2.0
"""Limits how long a consumer's listener runs in one turn of the event loop."""

import asyncio
from typing import Final

from cometmq.client.clock import monotonic_ms

TURN_MS: Final = 10


class LoopTurns:
    """Makes listener calls yield to the loop, which an `async` listener may block.

    Without this, calls that never suspend would run in one turn until no message is left, and
    heartbeats, renewals of locks and signals would wait for the last of them.
    """

    def __init__(self) -> None:
        self._begin_ms = 0
        self._lock = asyncio.Lock()

    async def share(self) -> None:
        """Wait for another turn of the loop if calls have taken `TURN_MS` since the last wait.

        Callers wait in the order of their calls, so later messages never delay earlier ones.
        """
        if monotonic_ms() - self._begin_ms < TURN_MS:
            return
        async with self._lock:
            if monotonic_ms() - self._begin_ms >= TURN_MS:
                await asyncio.sleep(0)
                self._begin_ms = monotonic_ms()
