# SPDX-License-Identifier: Apache-2.0
"""Named threads for work that would block the loop: fsync, unlink, cold reads, file saves.

A worker has one thread, so its jobs run one at a time, in submission order. The queue is bounded:
when it is full, `submit` raises an error instead of letting memory grow.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, TypeVar

from cometmq.remoting.errors import CometError, Overloaded
from cometmq.runtime.process.system import use_idle_io

T = TypeVar("T")

PENDING_COUNT_MAX = 10_000
"""Maximum number of queued or running jobs; a job is a closure of a few hundred bytes."""


class NoThread(CometError):
    """The system does not allow this process another thread."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} cannot be started: raise the limit of processes and threads (ulimit -u,"
            " TasksMax of systemd, pids.max of the container)"
        )


class WorkerStats(NamedTuple):
    """A worker's counters since it started."""

    name: str
    pending_count: int
    done_count: int
    failed_count: int


class Worker:
    """One named thread with a bounded queue; the event loop submits jobs and awaits them."""

    __slots__ = ("_done_count", "_executor", "_failed_count", "_pending_count", "_pending_max",
                 "name")  # fmt: skip

    def __init__(
        self, name: str, *, pending_count_max: int = PENDING_COUNT_MAX, has_idle_io: bool = False
    ) -> None:
        """Start the thread; with `has_idle_io`, it gets the lowest disk priority.

        Raise NoThread if the system allows no more threads. A thread that started with its first
        job could fail in the middle of the job's caller, at any time.
        """
        assert pending_count_max > 0
        self.name = name
        self._pending_max = pending_count_max
        self._pending_count = 0
        self._done_count = 0
        self._failed_count = 0
        begin = partial(_begin, name, has_idle_io=has_idle_io)
        self._executor = ThreadPoolExecutor(1, name, initializer=begin)
        try:
            self._executor.submit(_nothing)
        except RuntimeError as error:
            raise NoThread(f"the thread {name}") from error

    def submit(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """Run the job on the thread; raise Overloaded if too many jobs are pending."""
        if self._pending_count >= self._pending_max:
            raise Overloaded(f"worker {self.name}: {self._pending_count} jobs are pending")
        future = asyncio.get_running_loop().run_in_executor(self._executor, job)
        self._pending_count += 1
        future.add_done_callback(self._count)
        return future

    def stats(self) -> WorkerStats:
        """Return a copy of the counters."""
        return WorkerStats(self.name, self._pending_count, self._done_count, self._failed_count)

    def close(self) -> None:
        """Accept no more jobs and wait for the submitted ones; blocks, so call it last."""
        self._executor.shutdown(wait=True)

    def _count(self, future: asyncio.Future[T]) -> None:
        self._pending_count -= 1
        if future.cancelled() or future.exception() is not None:
            self._failed_count += 1
        else:
            self._done_count += 1


def refused_thread(error: BaseException) -> NoThread | None:
    """Return the NoThread for an error of Python, Rust or a new process; None for another error."""
    is_refusal = str(error) == "can't start new thread" or (
        isinstance(error, BlockingIOError)
        and not hasattr(error, "characters_written")  # of a pipe that is full
    )
    return NoThread("a thread or process") if is_refusal else None


def check_threads(count: int, what: str) -> None:
    """Raise NoThread, with `what` as its subject, unless `count` more threads can run together."""
    end = threading.Event()
    threads = [threading.Thread(target=end.wait) for _ in range(count)]
    started: list[threading.Thread] = []
    try:
        for thread in threads:
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        raise NoThread(what) from error
    finally:
        end.set()
        for thread in started:
            thread.join()


def _nothing() -> None: ...


def _begin(name: str, *, has_idle_io: bool) -> None:  # the thread's initializer
    threading.current_thread().name = name
    if has_idle_io:
        use_idle_io()


def error_of(future: asyncio.Future[T]) -> Exception | None:
    """Return the error of a finished job, or None; re-raise an error that is not an Exception."""
    error = future.exception()
    if error is not None and not isinstance(error, Exception):
        raise error
    return error
