# SPDX-License-Identifier: Apache-2.0
"""How many calls of a listener run, and waiting for their end."""

import asyncio


class Calls:
    """Counts the calls of one consumer's listener: `with calls: ...` around each."""

    def __init__(self) -> None:
        """Start with none."""
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def __enter__(self) -> None:
        """Count a call."""
        self._count += 1
        self._idle.clear()

    def __exit__(self, *_: object) -> None:
        """Note its end."""
        self._count -= 1
        if not self._count:
            self._idle.set()

    async def ended(self, timeout_ms: int) -> bool:
        """Wait until none runs; False if some take longer."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
