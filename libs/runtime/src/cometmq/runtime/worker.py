# SPDX-License-Identifier: Apache-2.0
"""Named threads for what would block the loop: fsync, unlink, cold reads, file saves.

Invariants: a worker has one thread, so its jobs run one after the other in the order of their
submission; the queue is bounded, and at the bound the caller is told instead of memory growing.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from cometmq.remoting.errors import Overloaded

T = TypeVar("T")

PENDING_COUNT_MAX = 10_000
"""Jobs waiting or running; a job is a closure of some hundred bytes."""


class WorkerStats(NamedTuple):
    """What a worker did so far."""

    name: str
    pending_count: int
    done_count: int
    failed_count: int


class Worker:
    """One named thread with a bounded queue; the loop hands over and awaits."""

    __slots__ = ("_done_count", "_executor", "_failed_count", "_pending_count", "_pending_max",
                 "name")  # fmt: skip

    def __init__(self, name: str, *, pending_count_max: int = PENDING_COUNT_MAX) -> None:
        """Name the thread; it starts with the first job."""
        assert pending_count_max > 0
        self.name = name
        self._pending_max = pending_count_max
        self._pending_count = 0
        self._done_count = 0
        self._failed_count = 0
        self._executor = ThreadPoolExecutor(1, name, initializer=_set_thread_name, initargs=(name,))

    def submit(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """Run the job on the thread; raise Overloaded when too many wait already."""
        if self._pending_count >= self._pending_max:
            raise Overloaded(f"worker {self.name}: {self._pending_count} jobs wait")
        future = asyncio.get_running_loop().run_in_executor(self._executor, job)
        self._pending_count += 1
        future.add_done_callback(self._count)
        return future

    def stats(self) -> WorkerStats:
        """Return the counters."""
        return WorkerStats(self.name, self._pending_count, self._done_count, self._failed_count)

    def close(self) -> None:
        """Take no more jobs and wait for those submitted; blocks, so call it last."""
        self._executor.shutdown(wait=True)

    def _count(self, future: asyncio.Future[T]) -> None:
        self._pending_count -= 1
        if future.cancelled() or future.exception() is not None:
            self._failed_count += 1
        else:
            self._done_count += 1


def _set_thread_name(name: str) -> None:
    threading.current_thread().name = name
