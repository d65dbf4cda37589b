# SPDX-License-Identifier: Apache-2.0
"""The tasks of one server or client.

A ``TaskGroup`` must be entered and left by one task, while a server is started and closed by
whoever embeds it, perhaps from two. This set keeps the same promise: no task outlives it, and
no task's end goes unseen.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any


class TaskSet:
    """Tasks that end before their owner does."""

    __slots__ = ("_loop", "_tasks")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start without tasks."""
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Start a task; ``work`` must handle its own errors."""
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def drain(self, timeout_s: float) -> None:
        """Wait for the tasks that run, and cancel those that take longer."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=timeout_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
