# SPDX-License-Identifier: Apache-2.0
"""Reports a listener whose calls do not end, or that blocks the event loop.

Without these reports, a consumer whose listener hangs in every slot would look like a consumer
without messages. A stall is logged as a warning when it begins, with reminders while it lasts and
one line when it ends.

A blocked loop cannot run checks, so a thread watches it. The stack of the loop's thread shows
whether the listener blocks it, and on which line.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Final

from cometmq.client.clock import monotonic_ms
from cometmq.client.listener import AnyCaller
from cometmq.client.log import Reminders
from cometmq.remoting.log import Log

CHECK_MS: Final = 1_000
BLOCKED_MS: Final = 2_000
"""A loop whose check is overdue by this long counts as blocked, not merely busy."""

REMIND_MS: Final = 60_000

_STUCK_ADVICE: Final = (
    "each call holds one of `concurrency` slots and its messages: give what the listener waits for "
    "a timeout; if calls of this length are normal, raise the option stuck_listener_ms"
)
_BLOCKED_ADVICE: Final = (
    "an async listener must not block: write `await asyncio.sleep(...)` instead of time.sleep, "
    "`await asyncio.to_thread(...)` around blocking calls, or make the listener a plain function, "
    "which runs on a thread"
)


class Stalls:
    """Watches the listener of one consumer."""

    def __init__(
        self,
        listener: AnyCaller,
        *,
        stuck_ms: int,
        log: Log,
        clock_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        """Report calls that run for `stuck_ms` or longer."""
        self._listener = listener
        self._stuck_ms = stuck_ms
        self._log = log
        self._clock_ms = clock_ms
        self._due = Reminders(REMIND_MS, clock_ms=clock_ms)
        self._due_ms = 0

    async def run(self) -> None:
        interval_ms = min(CHECK_MS, self._stuck_ms)
        ended = threading.Event()
        self._due_ms = self._clock_ms() + interval_ms
        if self._listener.is_on_loop:
            watch = (threading.get_ident(), ended)
            threading.Thread(
                target=self._watch_loop, args=watch, name="cometmq-stalls", daemon=True
            ).start()
        try:
            while True:
                await asyncio.sleep(interval_ms / 1000)
                self._due_ms = self._clock_ms() + interval_ms
                self.check()
        finally:
            ended.set()

    def _watch_loop(self, thread_id: int, ended: threading.Event) -> None:
        while not ended.wait(CHECK_MS / 1000):
            self.check_loop(thread_id)

    def check_loop(self, thread_id: int) -> None:
        """Report the listener if it blocks the loop that runs in this thread."""
        since_ms = self._due_ms
        if self._clock_ms() - since_ms < BLOCKED_MS:
            return
        if line := self._listener.line_on(thread_id):
            self._report("listener.blocks_loop", since_ms, line=line, advice=_BLOCKED_ADVICE)

    def check(self) -> None:
        """Report stuck calls and stalls that have ended; on the loop, which is thus not blocked."""
        self._end("listener.blocks_loop")
        now_ms = self._clock_ms()
        oldest_ms = min(self._listener.begins_ms, default=now_ms)
        if now_ms - oldest_ms < self._stuck_ms:
            self._end("listener.stuck")
        else:
            self._report("listener.stuck", oldest_ms, advice=_STUCK_ADVICE)

    def _report(self, event: str, since_ms: int, **more: object) -> None:
        if not self._due.is_due(event, since_ms=since_ms):
            return
        listener = self._listener
        self._log.warning(
            event,
            group=listener.group,
            listener=listener.name,
            running_count=len(listener.begins_ms),
            seconds=_seconds(self._due.lasted_ms(event)),
            **more,
        )

    def _end(self, event: str) -> None:
        if event in self._due:
            self._log.info(
                "listener.works_again",
                group=self._listener.group,
                listener=self._listener.name,
                after=event,
                lasted_s=_seconds(self._due.lasted_ms(event)),
            )
            self._due.end(event)


def _seconds(ms: int) -> float:
    return round(ms / 1000, 1)
