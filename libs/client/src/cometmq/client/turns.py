# SPDX-License-Identifier: Apache-2.0
"""Work in turns of the event loop, so that nothing holds it, and no server can make it busy."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final, TypeVar

from cometmq.client.clock import monotonic_ms
from cometmq.remoting.bodies.dialect import decode_json
from cometmq.remoting.types import Buffer

T = TypeVar("T")

BEGUN_PER_TURN: Final = 64
"""How many calls begin in one turn of the loop; each may encode a request."""


async def for_each(
    items: Collection[T], action: Callable[[T], Coroutine[Any, Any, None]], *, running_max: int
) -> None:
    """Call `action` for every item, in order; at most `running_max` calls run at the same time.

    If a call raises, the others are cancelled, and its error is raised.
    """
    waiting = iter(items)

    async def work() -> None:
        for item in waiting:
            await action(item)

    try:
        async with asyncio.TaskGroup() as group:
            for number in range(1, min(running_max, len(items)) + 1):
                group.create_task(work())
                if not number % BEGUN_PER_TURN:
                    await asyncio.sleep(0)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors


ON_LOOP_BYTES_MAX: Final = 32 << 10
"""In Java's dialect, 32 KiB take up to 5 ms, and a frame of 16 MiB up to 3 s."""


async def decode_answer(type_: type[T], body: Buffer) -> T:
    """Decode an answer as `decode_json` does, on a thread if it is large."""
    if len(body) <= ON_LOOP_BYTES_MAX:
        return decode_json(type_, body)
    return await asyncio.to_thread(decode_json, type_, bytes(body))


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


class Room:
    """A semaphore for tens of thousands of waiting tasks.

    `asyncio.Semaphore` scans all the waiters that it has woken in the same turn of the loop: with
    25,000 concurrent sends, this took most of their time.
    """

    def __init__(self, size: int) -> None:
        self.size: Final = size
        self.count = 0
        """How many sends are in flight."""
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._emptied = asyncio.Event()

    async def __aenter__(self) -> None:
        if self.count < self.size:
            self.count += 1
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._leave()  # its place was handed over just before
            raise

    async def __aexit__(self, *_: object) -> None:
        self._leave()

    async def wait_empty(self) -> None:
        """Wait until no send is in flight."""
        while self.count:
            self._emptied.clear()
            await self._emptied.wait()

    def _leave(self) -> None:
        """Hand the place over to the next waiter, if there is one."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self.count -= 1
        if not self.count:
            self._emptied.set()
