# SPDX-License-Identifier: Apache-2.0
"""Group commit: syncs the log again as soon as the last sync has ended.

While a sync runs, messages arrive and are written. The next sync covers all of them. Each commit
extends it, and it begins as soon as the running one ends, so that the disk never waits for the
loop. The syncs run on a native thread (`NativeSyncs`) or, without native code, on a worker thread
(`WorkerSyncs`, the reference). Both report the ends of syncs on the loop, in order.

With few senders, much of a send's latency would be the time until the loop wakes up after the sync.
The loop therefore encodes the answers during the sync and lends them to the native thread, which
writes them to the sockets (`LendableAnswers`).
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from cometmq.remoting.log import Log
from cometmq.runtime.worker import Worker, error_of
from cometmq.store.disk import Descriptor
from cometmq.store.errors import DiskError
from cometmq.store.results import PutResult
from cometmq.store.upkeep.jobs import FlushJob

if TYPE_CHECKING:
    from cometmq.accel import LentAnswers

SLOW_S: Final = 0.1
SLOW_COUNT: Final = 3
REPEAT_MS: Final = 60_000


@dataclass(slots=True, eq=False)
class Sync:
    """A sync of the log, and when the oldest put that it completes began to wait."""

    job: FlushJob
    since_ms: int | None
    seconds: float = 0.0
    late_s: float = 0.0
    """The time from the end of the sync to its report on the loop."""


SyncEnded: TypeAlias = Callable[[Sync, Exception | None], None]
"""Receives a sync that has ended, and its error or None."""


class LendableAnswers:
    """Sends the answers of puts after a sync, or lends them to the sync thread."""

    # Not an ABC, because `isinstance` would then cost 1 us before each sync.

    __slots__ = ()

    def __call__(self, result: PutResult) -> None:
        """Send the answers that the sync thread has not sent."""
        raise NotImplementedError

    def lend(self) -> "LentAnswers | None":
        """Encode the answers for the sync thread; return None if the loop must send them."""
        raise NotImplementedError


class WorkerSyncs:
    """Runs syncs on a worker thread, the next before the loop notes the end of the last."""

    def __init__(self, worker: Worker, ended: SyncEnded) -> None:
        self._worker = worker
        self._ended = ended
        self._running: Sync | None = None
        self._next: Sync | None = None
        self._future: asyncio.Future[float] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a sync is running."""
        return self._running is not None

    @property
    def oldest(self) -> Sync | None:
        """The running sync."""
        return self._running

    def start(self, job: FlushJob, since_ms: int | None) -> None:
        """Run this sync next, when the running one has ended.

        It replaces a sync that has not begun, and must cover what that would have covered.
        """
        sync = Sync(job, since_ms)
        if self._running is None:
            self._submit(sync)
            return
        if self._next is not None and self._next.since_ms is not None:
            sync.since_ms = self._next.since_ms
        self._next = sync

    def collect(self) -> None:
        """Do nothing: callbacks on the loop report each end."""

    async def wait(self) -> None:
        while self._future is not None:
            await asyncio.wait([self._future])

    def _submit(self, sync: Sync) -> None:
        self._running, self._next = sync, None
        self._future = self._worker.submit(partial(_timed, sync.job))
        self._future.add_done_callback(partial(self._note_ended, sync))

    def _note_ended(self, sync: Sync, future: asyncio.Future[float]) -> None:
        error = error_of(future)
        self._running = self._future = None
        if self._next is not None:
            self._submit(self._next)
        if error is None:
            sync.seconds = future.result()
        self._ended(sync, error)


def _timed(job: FlushJob) -> float:
    began_s = time.perf_counter()
    job.run()
    return time.perf_counter() - began_s


Ended: TypeAlias = tuple[int, float, tuple[int, int] | None, float]


class NativeSyncer(Protocol):
    """The methods of `cometmq.accel.LogSyncer`."""

    def fileno(self) -> int:
        """Return the descriptor that is readable when a sync has ended."""

    def start(self, number: int, files: Sequence[int], folder: int | None) -> bool:
        """Run this sync next; return whether it replaces one that had not begun."""

    def lend(self, number: int, answers: "LentAnswers", is_all: bool) -> None:
        """Write answers after a sync."""

    def take(self) -> list[Ended]:
        """Return the ended syncs: number, seconds, failure, and seconds since the end."""


class NativeSyncs:
    """Runs syncs on a native thread, which begins the next sync without waiting for the loop."""

    def __init__(self, syncer: NativeSyncer, ended: SyncEnded) -> None:
        self._syncer = syncer
        self._ended = ended
        self._number = 0
        self._last = 0  # the number of the last sync that the thread was given
        self._open: dict[int, tuple[Sync, list[Descriptor]]] = {}
        """The syncs that have not been reported, with descriptors that must stay open."""
        self._ended_syncs: deque[Ended] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(syncer.fileno(), self.collect)

    @property
    def is_busy(self) -> bool:
        """Whether a sync is running or its end has not been reported yet."""
        return bool(self._open)

    @property
    def oldest(self) -> Sync | None:
        """The oldest sync whose end has not been reported."""
        for sync, _ in self._open.values():
            return sync
        return None

    def start(self, job: FlushJob, since_ms: int | None) -> None:
        sync = Sync(job, since_ms)
        try:
            files, folder = job.descriptors()
        except DiskError as error:
            self._report_unopened(sync, error)
            return
        descriptors = files if folder is None else [*files, folder]
        folder_number = None if folder is None else folder.number
        number = self._number = self._number + 1
        if self._syncer.start(number, [file.number for file in files], folder_number):
            replaced, _ = self._open.pop(self._last)
            if replaced.since_ms is not None:
                sync.since_ms = replaced.since_ms
        self._last = number
        self._open[number] = sync, descriptors

    def lend(self, answers: "LentAnswers", *, is_all: bool) -> None:
        """Send answers when the last started sync, or the one that replaces it, has succeeded.

        `is_all` says that the loop has no other answers to send after this sync, so its end may be
        reported a millisecond late.
        """
        # Not `_last`: if no file could be opened, the thread does not know this sync, and the next
        # one answers.
        self._syncer.lend(self._number, answers, is_all)

    def _report_unopened(self, sync: Sync, error: DiskError) -> None:
        """Report in a later turn that a sync has failed, because its file could not be opened."""
        number = self._number = self._number + 1
        self._open[number] = sync, []
        self._loop.call_soon(self._note_ended, number, 0.0, 0.0, error)

    def collect(self) -> None:
        """Report the syncs that have ended so far."""
        self._ended_syncs += self._syncer.take()
        while self._ended_syncs:  # a report may call this again: the order must be kept
            number, seconds, failure, late_s = self._ended_syncs.popleft()
            error = None
            if failure is not None:
                sync, _ = self._open[number]
                error = DiskError("sync", sync.job.path(failure[0]), failure[1])
            self._note_ended(number, seconds, late_s, error)

    def _note_ended(
        self, number: int, seconds: float, late_s: float, error: DiskError | None
    ) -> None:
        sync, _ = self._open.pop(number)
        sync.seconds, sync.late_s = seconds, late_s
        try:
            self._ended(sync, error)
        finally:
            if self._waiter is not None and not self._open:
                self._waiter.set_result(None)
                self._waiter = None

    async def wait(self) -> None:
        while self._open:
            if self._waiter is None:
                self._waiter = self._loop.create_future()
            await asyncio.wait([self._waiter])


class SlowSyncs:
    """Warns once if the disk is slow: consecutive syncs that puts wait for take too long."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._slow_count = 0
        self._warned_ms: int | None = None

    def note(self, seconds: float, *, now_ms: int) -> None:
        """Count a sync that a put has waited for."""
        if seconds < SLOW_S:
            self._slow_count = 0
            return
        self._slow_count += 1
        is_due = self._warned_ms is None or now_ms - self._warned_ms >= REPEAT_MS
        if self._slow_count >= SLOW_COUNT and is_due:
            self._warned_ms = now_ms
            self._log.warning(
                "sync.slow",
                elapsed_ms=round(seconds * 1_000),
                action="sends wait for this disk: use a faster one, or ASYNC_FLUSH with two copies",
            )
