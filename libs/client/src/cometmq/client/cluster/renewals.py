# SPDX-License-Identifier: Apache-2.0
"""Limits the rate of the route lookups that senders wait for.

The first lookup is immediate; the intervals between the next ones double from RENEW_MS_MIN to
RENEW_MS, because a successor is most often found within the first second.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Hashable
from typing import Final

import msgspec

from cometmq.client.clock import monotonic_ms
from cometmq.client.errors import ClientStateError
from cometmq.remoting.errors import CometError
from cometmq.remoting.transport.tasks import TaskSet

RENEW_MS_MIN: Final = 100
RENEW_MS: Final = 1_000
"""The shortest and the longest interval between lookups while a topic has no queue to send to."""


class _Renewal(msgspec.Struct):
    begun_count: int = 0
    completed_count: int = 0
    ended_ms: int = 0
    """When the last lookup ended."""
    pause_ms: int = 0
    """Interval between the last lookup and the next one."""
    error: CometError | None = None
    """Why the last lookup failed; None if it succeeded."""
    running: asyncio.Task[None] | None = None
    """The current lookup, or the next one before it is due; it may outlast its callers."""
    waiters: dict[asyncio.Future[None], None] = {}
    """The callers of the current lookup, in the order of their calls.

    `asyncio.Lock` and `asyncio.wait` compare each of thousands of callers with all the others when
    they time out.
    """

    @property
    def due_ms(self) -> int:
        return self.ended_ms + self.pause_ms

    def is_over(self, now_ms: int) -> bool:
        """Return whether RENEW_MS passed without need of a lookup, so that intervals restart."""
        return self.running is None and now_ms > self.due_ms + RENEW_MS


class Renewals:
    """Shares lookups among all senders that wait for the same route."""

    def __init__(self, background: TaskSet) -> None:
        """Lookups run in `background`, so that they continue after a caller has timed out.

        Otherwise a client with shorter timeouts than its name server lookups would never switch
        from a hung name server to the next.
        """
        self._background = background
        self._renewals: dict[Hashable, _Renewal] = {}

    async def share(
        self,
        key: Hashable,
        look_up: Callable[[], Awaitable[object]],
        *,
        is_found: Callable[[], bool],
        wait_ms: int,
    ) -> bool:
        """Wait for a lookup that begins after this call, or until `is_found` is true.

        If no such lookup ends within `wait_ms`, use the last lookup and return False, or raise
        TimeoutError if it is too old. If the lookup failed, raise its error.
        """
        called_ms = monotonic_ms()
        renewal = self._of(key, called_ms)
        begun_count = renewal.begun_count
        is_recent = called_ms < renewal.ended_ms + RENEW_MS
        try:
            async with asyncio.timeout(wait_ms / 1000):
                while not is_found() and renewal.completed_count <= begun_count:
                    if renewal.due_ms - called_ms > wait_ms:
                        break
                    if renewal.running is None:
                        work = _look_up(renewal, look_up)
                        renewal.running = self._background.spawn(work, name="look-up-route")
                        renewal.running.add_done_callback(functools.partial(_ended, renewal))
                    await _wait(renewal)
        except TimeoutError:
            if not is_recent and renewal.completed_count <= begun_count:
                raise
        if not is_found() and renewal.error is not None:
            raise renewal.error.with_traceback(None)  # it would grow with each of many callers
        return renewal.completed_count > begun_count or is_found()

    def _of(self, key: Hashable, now_ms: int) -> _Renewal:
        found = self._renewals.get(key)
        if found is None or found.is_over(now_ms):
            self._renewals = {
                other: renewal
                for other, renewal in self._renewals.items()
                if not renewal.is_over(now_ms)
            }
            found = self._renewals[key] = _Renewal()
        return found


async def _look_up(renewal: _Renewal, look_up: Callable[[], Awaitable[object]]) -> None:
    await asyncio.sleep((renewal.due_ms - monotonic_ms()) / 1000)
    renewal.begun_count += 1
    error: CometError | None = _closed()
    try:
        await look_up()
        error = None
    except CometError as failure:
        error = failure
    finally:
        renewal.error = error


def _closed() -> ClientStateError:
    return ClientStateError("the client was closed during a lookup of routes")


async def _wait(renewal: _Renewal) -> None:
    """Wait until the current lookup ends."""
    waiter = asyncio.get_running_loop().create_future()
    renewal.waiters[waiter] = None
    try:
        await waiter
    finally:
        renewal.waiters.pop(waiter, None)


def _ended(renewal: _Renewal, task: asyncio.Task[None]) -> None:
    """Wake the callers of a lookup, even if it was cancelled before it began."""
    if task.cancelled():
        renewal.begun_count += 1
        renewal.error = _closed()
    renewal.completed_count = renewal.begun_count
    renewal.pause_ms = min(max(RENEW_MS_MIN, 2 * renewal.pause_ms), RENEW_MS)
    renewal.ended_ms = monotonic_ms()
    renewal.running = None
    for waiter in renewal.waiters:
        if not waiter.done():
            waiter.set_result(None)
