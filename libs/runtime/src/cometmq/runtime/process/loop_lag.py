# SPDX-License-Identifier: Apache-2.0
"""Event loop lag: how late timers fire, which is also how long each request waits to be served."""

import asyncio

from cometmq.remoting.transport.tasks import due_on_grid
from cometmq.runtime.metrics.histogram import Buckets

PROBE_INTERVAL_S = 0.1
_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class LoopLag:
    """Sets a timer ten times a second and measures how late it fires."""

    __slots__ = ("_due_s", "_handle", "_loop", "max_s", "seconds")

    def __init__(self) -> None:
        self.seconds = Buckets(_BOUNDS_S)
        self.max_s = 0.0
        self._handle: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due_s = 0.0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start probing this loop."""
        assert self._handle is None, "started twice"
        self._loop = loop
        self._schedule(loop)

    def stop(self) -> None:
        """Stop probing."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def observe(self, lag_s: float) -> None:
        """Record one measured lag, in seconds."""
        self.seconds.observe(lag_s)
        self.max_s = max(self.max_s, lag_s)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due_s = due_on_grid(loop.time(), PROBE_INTERVAL_S)
        self._handle = loop.call_at(self._due_s, self._fired)

    def _fired(self) -> None:
        assert self._loop is not None
        self.observe(max(0.0, self._loop.time() - self._due_s))
        self._schedule(self._loop)
