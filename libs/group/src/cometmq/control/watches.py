# SPDX-License-Identifier: Apache-2.0
"""Tells the open watches of a member's status when to send it.

The member's report is looked at once for all watches: when the member has completed an event, and
at an interval, because time alone can change the report (a silent master).
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from cometmq.control.controlled import Report, lasting
from cometmq.remoting.transport.tasks import GRID_S, due_on_grid

CHECK_MS: Final = 100
HALF_S: Final = CHECK_MS / 2000
"""A look counts for the time to which it is nearest."""


class Watch:
    """An open watch; its owner sends the status whenever `due` is set, and then calls `sent`."""

    __slots__ = ("_due_s", "_interval_s", "_last", "due", "must_end")

    def __init__(self, interval_ms: int, must_end: Callable[[], bool]) -> None:
        """`interval_ms` is the interval without changes; `must_end` returns whether the watch must
        be ended.
        """
        self.due = asyncio.Event()
        self.due.set()
        self.must_end = must_end
        self._interval_s = interval_ms / 1000
        self._due_s = 0.0
        self._last: Report | None = None

    def sent(self, report: Report, now_s: float) -> None:
        """Note that this report is sent now.

        The next status is due at the end of the interval or a little earlier, on the grid: one
        turn of the loop then serves all watches.
        """
        self.due.clear()
        self._last = lasting(report)
        step_s = min(self._interval_s, GRID_S)
        self._due_s = (now_s + self._interval_s + HALF_S) // step_s * step_s

    def look(self, now: Report, now_s: float) -> None:
        """Set `due` if the report has changed, or if nothing was sent for the interval."""
        is_time = now_s >= self._due_s - HALF_S
        if is_time or now != self._last or self.must_end():
            self.due.set()


class Watches:
    """The open watches of one server."""

    def __init__(
        self, report: Callable[[], Report], changed: Callable[[], Awaitable[None]]
    ) -> None:
        """`changed` returns when the member has completed an event."""
        self._report = report
        self._changed = changed
        self._open: set[Watch] = set()
        self._is_open = asyncio.Event()

    @contextlib.contextmanager
    def entered(self, watch: Watch) -> Iterator[None]:
        """Serve a watch for as long as this context is open."""
        self._open.add(watch)
        self._is_open.set()
        try:
            yield
        finally:
            self._open.discard(watch)
            if not self._open:
                self._is_open.clear()

    async def run(self) -> None:
        """Look at the report; the caller cancels this."""
        loop = asyncio.get_running_loop()
        while True:
            await self._is_open.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due_on_grid(loop.time(), CHECK_MS / 1000)):
                    await self._changed()
            if not self._open:
                continue
            now = lasting(self._report())
            for watch in self._open:
                watch.look(now, loop.time())
