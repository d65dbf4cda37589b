# SPDX-License-Identifier: Apache-2.0
"""When slow handlers may start, so that many of them do not fill one turn of the loop.

Creating a task takes little time, but its first step may take milliseconds. Without a limit, a
thousand tasks would take their steps in the same turn. So the number of handlers that may start in
a turn doubles while turns are short, and halves when they are long. However long the turns take, at
least one handler starts after each pause of 50 ms; one that has waited for WAIT_S_MAX is refused.

Owners take turns: with one queue for all, an account that had 1,800 handlers of 2 ms waiting
delayed another's answers by 8 s.

The dispatcher measures a handler only until its first await. Its later steps, of milliseconds each
between other connections' requests, are charged to its connection by `Timed`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from time import monotonic, thread_time
from typing import Any, Final, Generic, TypeVar

from cometmq.remoting import remarks
from cometmq.remoting.errors import SystemBusy
from cometmq.remoting.transport.flow.connected import Connected
from cometmq.remoting.transport.flow.fair_queue import FairQueue
from cometmq.remoting.transport.flow.places import requester_of
from cometmq.remoting.transport.flow.turns import SLOW_S

WAIT_S_MAX: Final = 3.0
_RATE_MAX: Final = 256
_SHORT_S: Final = 0.005
_LONG_S: Final = 0.010
_PAUSE_S: Final = 0.050
"""One handler starts after this pause, however long the turns are."""


class Starts:
    """Limits how many slow handlers of one port start in one turn of the loop."""

    __slots__ = ("_free", "_is_scheduled", "_rate", "_scheduled_s", "_started_s", "_waiting")

    def __init__(self) -> None:
        self._rate = self._free = 16
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()
        self._is_scheduled = False
        self._scheduled_s = 0.0
        self._started_s = 0.0

    async def admitted(self, peer: Connected) -> None:
        """Wait until a handler of the peer may start; raise SystemBusy if that takes too long."""
        self._schedule()
        if self._free > 0 and not self._waiting:
            self._free -= 1
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.put(requester_of(peer), future)
        try:
            async with asyncio.timeout(WAIT_S_MAX):
                await future
        except TimeoutError:
            waited_ms, count = int(WAIT_S_MAX * 1000), len(self._waiting)
            raise SystemBusy(remarks.queue_timeout(in_queue=count, waited_ms=waited_ms)) from None

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._scheduled_s = thread_time()
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        now = monotonic()
        turn_s = thread_time() - self._scheduled_s
        if turn_s > _LONG_S:
            self._rate //= 2
        elif turn_s < _SHORT_S:
            self._rate = min(max(1, self._rate * 2), _RATE_MAX)
        self._free = self._rate
        if not self._waiting:
            return
        if not self._free and now - self._started_s > _PAUSE_S:
            self._free = 1
        while self._free > 0 and self._waiting:
            future = self._waiting.pop()
            if not future.done():  # the task may have been cancelled
                future.set_result(None)
                self._free -= 1
                self._started_s = now
        self._schedule()


T = TypeVar("T")


class Timed(Generic[T]):
    """Slow work whose time is reported whenever it adds up to `SLOW_S`."""

    __slots__ = ("_charge", "_spent_s", "_work")

    def __init__(self, work: Awaitable[T], charge: Callable[[float], None]) -> None:
        self._work = work
        self._charge = charge
        self._spent_s = 0.0

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._work.__await__()
        error: BaseException | None = None
        while True:
            began_s = thread_time()
            try:
                waits_for = next(steps) if error is None else steps.throw(error)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                error = None
                self._note(thread_time() - began_s)
            try:
                yield waits_for
            except BaseException as thrown:  # noqa: BLE001  # the work handles it
                error = thrown

    def _note(self, spent_s: float) -> None:
        self._spent_s += spent_s
        if self._spent_s > SLOW_S:
            self._charge(self._spent_s)
            self._spent_s = 0.0
