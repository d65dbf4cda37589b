# SPDX-License-Identifier: Apache-2.0
"""Implements `RecordPort.watch` by polling, for backends that report no changes."""

from collections.abc import AsyncIterator, Awaitable, Callable

from cometmq.ha.port import RecordUnreachable
from cometmq.ha.record import Versioned

Read = Callable[[], Awaitable[Versioned | None]]
Sleep = Callable[[float], Awaitable[None]]


async def poll(read: Read, *, sleep: Sleep, interval_ms: int) -> AsyncIterator[Versioned | None]:
    """Yield the record now and whenever a read returns a new version."""
    is_first, last = True, None
    while True:
        try:
            found = await read()
        except RecordUnreachable:
            await sleep(interval_ms / 1000)
            continue
        if is_first or found != last:
            is_first, last = False, found
            yield found
        await sleep(interval_ms / 1000)
