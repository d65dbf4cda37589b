# SPDX-License-Identifier: Apache-2.0
"""Run long jobs on the event loop in steps, so that other callbacks can run in between; a lock
for which owners take turns.

A thread would not help with pure Python code, or with one long call into an extension: the thread
holds the interpreter lock, so the loop still has to wait.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias, TypeVar

from cometmq.remoting.transport.flow.fair_queue import FairQueue, Requester

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]
"""A job that returns a T and yields after each step, so that the loop can run other callbacks."""


_DONE: Final = object()
_PROGRAM: Final = Requester("program")  # of jobs that the program itself needs


def finish(work: Steps[T]) -> T:
    """Run all steps at once and return the result."""
    try:
        while True:
            next(work)
    except StopIteration as end:
        result: T = end.value
        return result


class LaterSteps:
    """Runs any number of jobs on the event loop: the first step of each at once, then one step of
    one job in each turn of the loop, in rotation.
    """

    def __init__(self) -> None:
        self._waiting: deque[Steps[Any]] = deque()

    def __len__(self) -> int:
        """Return the number of jobs that have not ended yet."""
        return len(self._waiting)

    def start(self, work: Steps[Any]) -> None:
        """Begin a job. Its steps must tolerate any changes that happen between them."""
        if next(work, _DONE) is not _DONE:
            self._waiting.append(work)
            if len(self._waiting) == 1:
                asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        work = self._waiting[0]
        is_done = True
        try:
            is_done = next(work, _DONE) is _DONE
        finally:  # a job that fails does not end the others
            self._waiting.popleft()
            if not is_done:
                self._waiting.append(work)
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._go_on)


_WAITING_MAX: Final = 1 << 40  # no limit: the code that starts the tasks bounds their number


class TurnExpired(Exception):
    """The turn of a waiter did not come in time."""


class TurnLock:
    """Held by one task at a time, for which owners take turns: many waiters of one owner delay
    another by one turn only.
    """

    def __init__(self) -> None:
        self.is_held = False
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue(_WAITING_MAX)

    @property
    def waiting_count(self) -> int:
        """Number of waiters."""
        return len(self._waiting)

    @asynccontextmanager
    async def hold(
        self, requester: Requester, wait_s_max: float | None = None
    ) -> AsyncIterator[None]:
        """Wait for the lock, and hold it; the waiters of one requester keep their order.

        Raise TurnExpired if the turn of this one does not come within `wait_s_max`; the waiters of
        one requester expire in their order.
        """
        if self.is_held:
            await self._wait(requester, wait_s_max)
        self.is_held = True
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, requester: Requester, wait_s_max: float | None) -> None:
        came: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.put(requester, came)
        try:
            async with asyncio.timeout(wait_s_max):
                await came
        except (asyncio.CancelledError, TimeoutError) as error:
            if not came.cancelled():  # it had its turn already
                self._pass_on()
            # Waiters expire in order, so none stays in the queue behind one that goes on waiting.
            self._waiting.discard_first(requester, asyncio.Future.done)
            if isinstance(error, TimeoutError):
                raise TurnExpired from None
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            came = self._waiting.pop()
            if not came.done():  # cancelled
                came.set_result(None)
                return
        self.is_held = False


class IncrementalRunner:
    """Runs one job at a time, one step per turn of the event loop; further jobs wait."""

    def __init__(self) -> None:
        self._lock = TurnLock()

    @property
    def is_running(self) -> bool:
        """Whether a job has not ended yet."""
        return self._lock.is_held

    @property
    def waiting_count(self) -> int:
        """Number of jobs that have not begun."""
        return self._lock.waiting_count

    async def run(
        self, work: Steps[T], requester: Requester = _PROGRAM, wait_s_max: float | None = None
    ) -> T:
        """Run the job when its turn comes, and return its result; the jobs of one
        requester keep their order. For `wait_s_max`, see `TurnLock.hold`.
        """
        async with self._lock.hold(requester, wait_s_max):
            try:
                while True:
                    next(work)
                    await asyncio.sleep(0)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                work.close()
