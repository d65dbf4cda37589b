# SPDX-License-Identifier: Apache-2.0
"""Returns memory that gRPC has freed to the kernel.

gRPC parses what it receives on threads of its own, and no setting bounds the memory for that: a
flood of header frames from 20 connections used 600 MiB, and glibc never returned 500 MiB of it.
`front.py` bounds what strangers send, but admitted callers can still cause such a flood.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from cometmq.runtime.process.memory import release_free_memory, used_memory

CHECK_S: Final = 5.0
GROWTH_BYTES: Final = 32 << 20


def anonymous_bytes() -> int:
    """Return the memory of this process without mapped files; 0 if the system reports none."""
    used = used_memory()
    return 0 if used is None else used.resident - used.files


class FreedMemory:
    """Releases freed memory whenever the process has grown by GROWTH_BYTES."""

    def __init__(
        self,
        used_bytes: Callable[[], int] = anonymous_bytes,
        release: Callable[[], None] = release_free_memory,
    ) -> None:
        """`release` is called on a thread."""
        self._used_bytes = used_bytes
        self._release = release
        self._least_bytes = used_bytes()

    async def check(self) -> None:
        """Release freed memory if the process has grown by GROWTH_BYTES since the last release."""
        used_bytes = self._used_bytes()
        if used_bytes > self._least_bytes + GROWTH_BYTES:
            await asyncio.to_thread(self._release)
            self._least_bytes = self._used_bytes()
        self._least_bytes = min(self._least_bytes, used_bytes)

    async def run(self) -> None:
        """Check at intervals."""
        while True:
            await asyncio.sleep(CHECK_S)
            await self.check()
