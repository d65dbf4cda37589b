# SPDX-License-Identifier: Apache-2.0
"""Simulates a host's disk: the store's files, the group's small files, and their threads.

A killed process loses nothing that it has written. A crashed host loses unsynced bytes: the
unsynced part of each file survives completely, in some of its pages, or not at all.
"""

import os
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from tests.sim.kernel import ProcessLoop, Scheduler

from cometmq.testing.store.memory_disk import MemoryDisk

PAGE_BYTES = 512


class SimDisk(MemoryDisk):
    """The store's disk."""

    def kill(self) -> None:
        """Handle the death of the process that had the store open."""
        self._locks.clear()

    def crash_host(self, random: Random) -> int:
        """Lose unsynced bytes; return the number of affected files."""
        self._locks.clear()
        changed = 0
        for path, data in self.contents.items():
            durable = self.durable.get(path, b"")[: len(data)].ljust(len(data), b"\0")
            if data == durable:
                continue
            fate = random.random()
            if fate < 0.3:
                continue  # the kernel had already written everything back
            before = bytes(data)
            if fate < 0.7:
                data[:] = durable
            else:
                for start in range(0, len(data), PAGE_BYTES):
                    if random.random() < 0.5:
                        data[start : start + PAGE_BYTES] = durable[start : start + PAGE_BYTES]
            changed += before != data
        for path, data in self.contents.items():
            self.durable[path] = bytes(data)
        return changed


class SimFiles:
    """Small files that are replaced durably."""

    def __init__(self) -> None:
        self.contents: dict[Path, bytes] = {}
        self.error = 0
        """The errno with which all writes fail; 0 if they succeed."""

    def read(self, path: Path) -> bytes | None:
        return self.contents.get(path)

    def replace(self, path: Path, data: bytes) -> None:
        if self.error:
            raise OSError(self.error, os.strerror(self.error), str(path))
        self.contents[path] = data


class SimWorker:
    """A thread that runs its jobs one at a time, each after a disk delay."""

    def __init__(
        self, name: str, loop: ProcessLoop, scheduler: Scheduler, latency_s: Callable[[], float]
    ) -> None:
        self.name = name
        self._loop = loop
        self._scheduler = scheduler
        self._latency_s = latency_s
        self._jobs: deque[tuple[Callable[[], Any], Any]] = deque()
        self._is_busy = False

    def submit(self, job: Callable[[], Any]) -> Any:
        future = self._loop.create_future()
        self._jobs.append((job, future))
        if not self._is_busy:
            self._begin()
        return future

    def finish_one(self) -> None:
        """Complete the current job, although its process is being killed."""
        if self._is_busy and self._jobs:
            job, _ = self._jobs.popleft()
            self._jobs.clear()
            try:
                job()
            except Exception:  # noqa: BLE001  # the process is gone: no caller waits
                return

    def _begin(self) -> None:
        self._is_busy = True
        self._scheduler.after(self._latency_s(), self._end)

    def _end(self) -> None:
        if self._loop.is_dead:
            return
        job, future = self._jobs.popleft()
        try:
            result = self._loop.enter(job)
        except Exception as error:  # noqa: BLE001  # handed to the future, as by an executor
            self._loop.call_soon(partial(_fail, future, error))
        else:
            self._loop.call_soon(partial(_complete, future, result))
        if self._jobs:
            self._begin()
        else:
            self._is_busy = False


def _complete(future: Any, result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: Any, error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
