# SPDX-License-Identifier: Apache-2.0
"""Drives the pure store: one commit per turn of the loop, slow disk work on named threads.

Invariants: only the loop calls the store; a thread runs nothing but the closures that the
store hands out for it (flush, retention, cold reads), and their results come back on the loop.

Hot path: `put` is one call and one test per message; everything else is per batch.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from cometmq.remoting.errors import Overloaded, SystemBusy
from cometmq.remoting.log import Log
from cometmq.remoting.message.record import NewMessage
from cometmq.runtime.clock import Clock
from cometmq.runtime.tasks import describe
from cometmq.runtime.worker import Worker
from cometmq.store.message_store import Job, MessageStore
from cometmq.store.results import PutDone

T = TypeVar("T")

STAGED_BYTES_MAX: Final = 1 << 20  # a larger batch is written before the loop's turn ends
TICK_INTERVAL_MS: Final = 100


class Workers(NamedTuple):
    """The threads of a broker, each for one kind of disk work."""

    flush: Worker  # fsync of the commit log: what senders wait for
    store: Worker  # checkpoints, retention, deletion
    read: Worker  # cold reads of catching-up consumers
    config: Worker  # config tables

    @classmethod
    def start(cls) -> "Workers":
        """Name them; a thread starts with its first job."""
        return cls(*(Worker(f"cometmq-{name}") for name in cls._fields))

    def close(self) -> None:
        """Wait for what was submitted; blocks."""
        for worker in self:
            worker.close()


class StoreDriver:
    """The only caller of the store's writing half."""

    def __init__(
        self,
        store: MessageStore,
        *,
        workers: Workers,
        clock: Clock,
        log: Log,
        after_commit: Callable[[], None],
    ) -> None:
        """`after_commit` runs after each commit, when its answers can leave."""
        self._store = store
        self._workers = workers
        self._clock = clock
        self._log = log
        self._after_commit = after_commit
        self._loop = asyncio.get_running_loop()
        self._is_scheduled = False
        self._is_flushing = False
        self.commit_count = 0

    def put(self, message: NewMessage, done: PutDone) -> None:
        """Store a message with those of this turn; `done` is called when its fate is known."""
        self._store.put(message, done)
        self._schedule()

    def put_batch(self, messages: Sequence[NewMessage], done: PutDone) -> None:
        """Store messages of one queue side by side or not at all."""
        self._store.put_batch(messages, done)
        self._schedule()

    def commit(self) -> None:
        """Write what is staged, wake held pulls, let the answers leave."""
        self._is_scheduled = False
        self.commit_count += 1
        self._store.commit()
        self._after_commit()
        if self._store.flush_is_awaited:
            self._flush()

    def read(self, job: Callable[[], T], done: Callable[[T], None]) -> None:
        """Run a cold read on its thread, then `done` with its result on the loop.

        Raises SystemBusy when too many cold reads wait already.
        """
        try:
            future = self._workers.read.submit(job)
        except Overloaded as error:
            raise SystemBusy(f"[OVERLOAD]too many cold reads, {error}") from error
        future.add_done_callback(lambda ended: done(ended.result()))

    def tick(self) -> None:
        """Start the flushes and the housekeeping that are due; called every 100 ms."""
        self._flush()
        for job in self._store.jobs(self._clock.now_ms()):
            self._start(self._workers.store, job)

    async def drain(self) -> None:
        """Write and flush everything that was put: the last step before the store closes."""
        self.commit()
        while self._is_flushing:
            await asyncio.sleep(0.001)

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self.commit)
        elif self._store.staged_bytes > STAGED_BYTES_MAX:
            self._loop.call_soon(self.commit)

    def _flush(self) -> None:
        """Start a flush if one is due and none runs: those who come meanwhile share the next."""
        if self._is_flushing:
            return
        job = self._store.flush_job(self._clock.now_ms())
        if job is not None:
            self._is_flushing = True
            self._start(self._workers.flush, job, self._flushed)

    def _flushed(self) -> None:
        self._is_flushing = False
        self._after_commit()
        if self._store.flush_is_awaited:
            self._flush()

    def _start(self, worker: Worker, job: Job, then: Callable[[], None] | None = None) -> None:
        def ended(future: asyncio.Future[None]) -> None:
            error = future.exception()
            if error is not None:
                self._log.error("store.job_failed", job=job.name, error=describe(error))
            self._store.job_done(job, error)
            if then is not None:
                then()

        worker.submit(job.run).add_done_callback(ended)
