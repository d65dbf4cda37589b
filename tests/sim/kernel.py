# SPDX-License-Identifier: Apache-2.0
"""Provides virtual time, and an event loop for each simulated process.

One heap holds all future events by virtual time. The ready callbacks of a process run in one turn,
in order, as asyncio guarantees. The seed decides when turns begin and how processes alternate.

A loop can be paused, as by SIGSTOP: its callbacks wait and its timers become due while the other
processes continue. The callbacks of a dead loop never run.
"""

import asyncio
import contextlib
import heapq
import weakref
from asyncio import events
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, Final

import msgspec

TURN_S: Final = 0.0001
"""Longest usual time between an event and the turn of the process that handles it."""
SLOW_TURN_S: Final = 0.02
EVENTS_MAX: Final = 400_000
"""A run with more events is a livelock. Usual runs have 4,000, the longest 130,000, because in a
group that waits for a lost store, slaves forward requests again and again until these time out.
"""


class Scheduler:
    """The queue of future events, and the virtual clock."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now = 0.0
        self.event_count = 0
        self.is_stopped = False
        self.is_livelock = False
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, when: float, action: Callable[..., object], *args: Any) -> None:
        """Call `action` at a virtual time."""
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, action, args))

    def after(self, delay_s: float, action: Callable[..., object], *args: Any) -> None:
        """Call `action` after a delay."""
        self._count += 1
        heapq.heappush(self._heap, (self.now + delay_s, self._count, action, args))

    def run(self, until: float, is_done: Callable[[], bool] | None = None) -> bool:
        """Run until a time, or until `is_done` holds; return whether it held.

        `is_done` is tested every 50 ms of virtual time.
        """
        heap, pop = self._heap, heapq.heappop
        next_look = self.now
        while heap and heap[0][0] <= until and not self.is_stopped:
            if self.event_count >= EVENTS_MAX:
                self.is_livelock = self.is_stopped = True
                break
            when, _, action, args = pop(heap)
            if when > self.now:
                self.now = when
            self.event_count += 1
            action(*args)
            if is_done is not None and self.now >= next_look:
                next_look = self.now + 0.05
                if is_done():
                    return True
        self.now = max(self.now, until)
        return is_done is not None and is_done()


class Callback(msgspec.Struct, eq=False):
    """A callback that is ready or scheduled for a time; a lightweight `asyncio.Handle`."""

    call: Any
    args: tuple[Any, ...]
    context: Any
    when_s: float = 0.0
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.when_s


class ProcessLoop:
    """The event loop of one process; its clock may run faster or slower than virtual time.

    It implements the methods of asyncio's loops that the programs use.
    """

    def __init__(
        self, scheduler: Scheduler, name: str, *, rate: float, failed: Callable[[str], None]
    ) -> None:
        """`failed` is called with the text of each unhandled exception."""
        self.name = name
        self.is_dead = False
        self.is_slow = False
        self._self: Any = self  # not an `AbstractEventLoop`
        self.connect: Callable[..., Any] | None = None
        self._scheduler = scheduler
        self._random = scheduler.random
        self._rate = rate
        self._failed = failed
        self._ready: deque[Callback] = deque()
        self._tasks: list[weakref.ref[asyncio.Task[Any]]] = []
        self._is_armed = False
        self._is_paused = False

    # The interface to asyncio

    def time(self) -> float:
        return self._scheduler.now * self._rate

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
        handle = Callback(callback, args, context)
        if not self.is_dead:
            self._ready.append(handle)
            if not self._is_armed:
                self._arm()
        return handle

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        handle = Callback(callback, args, context, when)
        self._scheduler.at(when / self._rate, self._due, handle)
        return handle

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self._self)

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None) -> Any:
        task = asyncio.Task(coro, loop=self._self, name=name, context=context)
        self._tasks.append(weakref.ref(task))
        return task

    async def create_connection(
        self, factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        assert self.connect is not None
        return await self.connect(factory, host)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.is_dead:
            error = context.get("exception")
            self._failed(f"{self.name}: {context.get('message')}: {error!r}")

    # The interface to the simulator

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        if self._ready and not self._is_armed and not self.is_dead:
            self._arm()

    def kill(self) -> None:
        self.is_dead = True
        self._ready.clear()

    def close_tasks(self) -> None:
        """Close the coroutines of all tasks, after the death of the process."""
        assert self.is_dead
        for reference in self._tasks:
            task: Any = reference()
            if task is not None and not task.done():
                task._log_destroy_pending = False
                with contextlib.suppress(BaseException):
                    self.enter(task.get_coro().close)

    def enter(self, callback: Callable[[], Any]) -> Any:
        """Run a function as if from a callback of this process."""
        before = events._get_running_loop()
        events._set_running_loop(self._self)
        try:
            return callback()
        finally:
            events._set_running_loop(before)

    def _due(self, handle: Callback) -> None:
        if not self.is_dead and not handle.is_cancelled:
            self._ready.append(handle)
            if not self._is_armed:
                self._arm()

    def _arm(self) -> None:
        if self._is_paused:
            return
        self._is_armed = True
        delay = self._random.random() * (SLOW_TURN_S if self.is_slow else TURN_S)
        scheduler = self._scheduler  # as `after` does, but this is most of what a run schedules
        scheduler._count += 1
        event = (scheduler.now + delay, scheduler._count, self._turn, ())
        heapq.heappush(scheduler._heap, event)

    def _turn(self) -> None:
        self._is_armed = False
        if self.is_dead or self._is_paused:
            return
        ready = self._ready
        events._set_running_loop(self._self)
        try:
            for _ in range(len(ready)):
                handle = ready.popleft()
                if handle.is_cancelled:
                    continue
                try:
                    if handle.context is None:
                        handle.call(*handle.args)
                    else:
                        handle.context.run(handle.call, *handle.args)
                except Exception as error:  # noqa: BLE001  # as asyncio's handles do
                    self.call_exception_handler({"message": "a callback", "exception": error})
                if self.is_dead:
                    return
        finally:
            events._set_running_loop(None)
        if ready and not self._is_armed:
            self._arm()
