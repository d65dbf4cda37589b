# SPDX-License-Identifier: Apache-2.0
"""Paces the route lookups that senders wait for: one at once, then one per RENEW_MS."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Final

import msgspec

from cometmq.client.clock import monotonic_ms
from cometmq.remoting.errors import CometError

RENEW_MS: Final = 1_000
"""Interval between lookups of a route to which nothing can be sent."""


class _Renewal(msgspec.Struct):
    lock: asyncio.Lock
    begun_count: int = 0
    completed_count: int = 0
    next_ms: int = 0
    """When the next lookup is due."""
    error: CometError | None = None
    """Why the last lookup failed."""


class Renewals:
    """Shares lookups among all senders that wait for the same route."""

    def __init__(self) -> None:
        self._renewals: dict[Hashable, _Renewal] = {}

    async def share(
        self,
        key: Hashable,
        look_up: Callable[[], Awaitable[object]],
        *,
        is_found: Callable[[], bool],
        wait_ms: int,
    ) -> None:
        """Return after a lookup that began after this call, or once `is_found` is true.

        If the next lookup is not due within `wait_ms`, the last one counts. Raise its error.
        """
        called_ms = monotonic_ms()
        renewal = self._of(key, called_ms)
        begun_count = renewal.begun_count
        if renewal.next_ms - called_ms > wait_ms:
            return _end(renewal)
        async with renewal.lock:
            if is_found():
                return None
            due_ms = max(renewal.next_ms, monotonic_ms())
            if renewal.completed_count > begun_count or due_ms - called_ms > wait_ms:
                return _end(renewal)
            await asyncio.sleep((due_ms - monotonic_ms()) / 1000)
            await _look_up(renewal, look_up)
        return None

    def _of(self, key: Hashable, now_ms: int) -> _Renewal:
        found = self._renewals.get(key)
        if found is None:
            self._renewals = {
                other: renewal
                for other, renewal in self._renewals.items()
                if renewal.lock.locked() or renewal.next_ms > now_ms
            }
            found = self._renewals[key] = _Renewal(asyncio.Lock())
        return found


async def _look_up(renewal: _Renewal, look_up: Callable[[], Awaitable[object]]) -> None:
    renewal.begun_count += 1
    renewal.error = None
    try:
        await look_up()
    except CometError as error:
        renewal.error = error
        renewal.completed_count = renewal.begun_count
        raise
    else:
        renewal.completed_count = renewal.begun_count
    finally:
        renewal.next_ms = monotonic_ms() + RENEW_MS


def _end(renewal: _Renewal) -> None:
    if renewal.error is not None:
        raise renewal.error
