# SPDX-License-Identifier: Apache-2.0
"""Runs one task per object, with its passes: after events, after changes of the
view, and at intervals.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, TypeVar

import msgspec

from cometmq.operator.api import ApiRefused, ApiUnreachable
from cometmq.operator.engine.context import Context
from cometmq.operator.engine.managed import Key
from cometmq.operator.engine.passes import Pass
from cometmq.remoting.transport.tasks import TaskSet

RETRY_MS: Final = 2_000
LOOK_MS: Final = 250
"""Interval at which a waiting task compares the view (`Pass.view`), which takes no request."""

P = TypeVar("P", bound=Pass[Any])

Count = Callable[[str, str, float], None]
"""Takes the kind, the result (done, failed) and the duration of a pass in seconds."""


class _Task(msgspec.Struct, Generic[P]):
    work: P
    wake: asyncio.Event
    attending: asyncio.Task[None]


class Engine(ABC, Generic[P]):
    """The tasks of the objects of one kind, or of similar kinds."""

    def __init__(self, context: Context, count: Count) -> None:
        self.context = context
        self._count = count
        self._objects: dict[Key, _Task[P]] = {}
        self.tasks = TaskSet(context.log)

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: Key) -> bool:
        return key in self._objects

    def __iter__(self) -> Iterator[P]:
        return iter([one.work for one in self._objects.values()])

    def get(self, key: Key) -> P | None:
        """Return the passes over an object; None if it has no task."""
        found = self._objects.get(key)
        return None if found is None else found.work

    @abstractmethod
    def new(self, key: Key) -> P:
        """Create the passes over an object that has no task yet."""

    def ended(self, key: Key) -> None:
        """Forget all state about an object that no longer exists."""

    def wake(self, key: Key) -> None:
        """Start a pass over an object now; the first call for an object creates its task."""
        found = self._objects.get(key)
        if found is None:
            work, name = self.new(key), "-".join(key)
            attending = self.tasks.keep(work.attend, name=f"attend-{name}")
            found = self._objects[key] = _Task(work, asyncio.Event(), attending)
            self.tasks.keep(lambda: self._run(key), name=name)
        found.wake.set()

    async def close(self) -> None:
        """Stop all tasks; brokers keep running, and another operator may take over."""
        await self.tasks.close()
        for one in self._objects.values():
            await one.work.close()
        self._objects.clear()

    async def _run(self, key: Key) -> None:
        one, clock = self._objects[key], self.context.clock
        while True:
            one.wake.clear()
            view = one.work.view()
            started_ms, result = clock.monotonic_ms(), "done"
            try:
                pause_ms = await one.work.run()
            except (ApiUnreachable, ApiRefused, msgspec.ValidationError) as error:
                one.work.note_failure(error)
                result, pause_ms = "failed", RETRY_MS
            self._count(key[0], result, (clock.monotonic_ms() - started_ms) / 1000)
            if pause_ms is not None:
                await self._rest(one, view, pause_ms)
            elif not one.wake.is_set():
                await one.work.close()
                if not one.wake.is_set():
                    one.attending.cancel()
                    del self._objects[key]
                    self.ended(key)
                    return

    async def _rest(self, one: _Task[P], view: object, pause_ms: int) -> None:
        """Wait until the pause ends, an event arrives, or the view changes."""
        now_ms = self.context.clock.monotonic_ms
        end_ms = now_ms() + pause_ms
        while (left_ms := end_ms - now_ms()) > 0:
            look_ms = left_ms if view is None else min(left_ms, LOOK_MS)
            try:
                async with asyncio.timeout(look_ms / 1000):
                    await one.wake.wait()
            except TimeoutError:
                if one.work.view() == view:
                    continue
            return
