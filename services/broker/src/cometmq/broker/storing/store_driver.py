# SPDX-License-Identifier: Apache-2.0
"""Drives the pure store: one commit per turn of the loop, and slow disk work on named threads.

Invariants: only the loop calls the store. Threads run only closures that the store provides (flush,
retention, cold reads), and their results are handled on the loop.

Hot path: `put` is one call and one test per message; everything else is done per batch.
"""

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from cometmq.broker.statistics.latencies import latency_buckets
from cometmq.broker.statistics.put_times import PutTimes
from cometmq.broker.storing.log_syncs import (
    LogSyncs,
    LoneAnswer,
    NativeSyncer,
    NativeSyncs,
    SlowSyncs,
    Sync,
    WorkerSyncs,
)
from cometmq.broker.storing.store_reads import StoreReads
from cometmq.broker.turn import Turn
from cometmq.remoting.log import Log
from cometmq.remoting.message.new_message import NewMessage
from cometmq.remoting.transport.tasks import describe
from cometmq.remoting.types import Buffer
from cometmq.runtime.clock import Clock
from cometmq.runtime.incremental import Steps
from cometmq.runtime.worker import Worker, error_of
from cometmq.store.message_store import MessageStore
from cometmq.store.results import PutDone, PutResult
from cometmq.store.upkeep.jobs import Job
from cometmq.store.writing.append import Batch
from cometmq.store.writing.placing import Placing
from cometmq.store.writing.runs import RunSource

LONG_COMMIT_S: Final = 0.004
"""A commit that takes more processor time is charged to the connections: most take less than 1 ms.
"""
WATCHED_COUNT: Final = 16
"""Number of commits whose processor time is measured after a long one. Measuring all would cost a
lone send 1 %; the mere time of a commit is also long if other programs interrupt it.
"""
STAGED_BYTES_MAX: Final = 1 << 20  # a larger batch is written before the loop's turn ends
PLACING_BYTES_MAX: Final = 32 << 20
"""Size of the puts that wait while a large batch is being placed; above it, the batch is placed at
once.
"""
TICK_INTERVAL_MS: Final = 100
IDLE_INTERVAL_MS: Final = 500
"""At most `flushIntervalCommitLog`, so that the first message after a pause is synced in time."""


class Workers(NamedTuple):
    """The threads of a broker, each for one kind of disk work."""

    flush: Worker  # fsync of the commit log: senders wait for it
    writeback: Worker  # starting to write the log to the disk
    store: Worker  # checkpoints, retention, deletion
    read: Worker  # cold reads of consumers that catch up
    replicate: Worker  # cold reads of slaves that catch up
    config: Worker  # config tables
    scrub: Worker  # comparing the log with its checksums: yields the disk to the others

    @classmethod
    def start(cls) -> "Workers":
        """Create the workers; each thread starts with its first job."""
        return cls(
            *(Worker(f"cometmq-{name}", has_idle_io=name == "scrub") for name in cls._fields)
        )

    def close(self) -> None:
        """Wait for submitted jobs; blocks."""
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
        turn: Turn | None = None,
        syncer: NativeSyncer | None = None,
    ) -> None:
        """`syncer` syncs the log instead of a worker; the store must be on an `OsDisk`."""
        self.turn = turn or Turn()
        self._store = store
        self._workers = workers
        self._clock = clock
        self._log = log
        self._wake = self.turn.wake
        self._loop = asyncio.get_running_loop()
        self._is_scheduled = False
        self._is_in_turn = False
        self._is_committing = False
        self._is_truncating = False
        self._is_indexing = False
        self._ticked_end = -1  # of the log, at the last tick
        self._syncs: LogSyncs = (
            WorkerSyncs(workers.flush, self._synced)
            if syncer is None
            else NativeSyncs(syncer, self._synced)
        )
        self._slow_syncs = SlowSyncs(log)
        self._jobs: set[asyncio.Future[None]] = set()
        self.reads = StoreReads(workers.read, log=log)
        self.commit_count = 0
        self.put_times = PutTimes(lambda: store.put_count)
        self.put_seconds = latency_buckets()
        """Time from a put to its answer; each message of a commit counts with the time of the
        oldest one.
        """
        self.sync_seconds = latency_buckets()
        self._watched_count = 0  # commits whose processor time is still to be measured
        self._staged_s = 0.0  # when the first put of the next commit was staged
        self.waiting_count = 0
        """Number of sends that wait for the disk or a slave, as of the last commit, flush or
        acknowledgement.
        """
        self._waiting_since_ms: int | None = None  # the oldest send that no sync covers yet

    @property
    def store(self) -> MessageStore:
        return self._store

    def put(self, message: NewMessage, done: PutDone) -> None:
        """Stage a message for this turn's commit; `done` is called when its outcome is known."""
        staged_bytes = self._store.put(message, done)
        if not self._is_scheduled or staged_bytes > STAGED_BYTES_MAX:
            self._schedule()

    def put_run(self, source: RunSource, first: int, count: int, staged_bytes: int) -> None:
        """Store requests of a source, from number `first` on; see `cometmq.store.writing.runs`."""
        staged_bytes = self._store.put_run(source, first, count, staged_bytes)
        if not self._is_scheduled or staged_bytes > STAGED_BYTES_MAX:
            self._schedule()

    def put_batch(self, messages: Sequence[NewMessage], done: PutDone) -> None:
        """Store all messages contiguously, or none; they may be for different queues."""
        self._store.put_batch(messages, done)
        self._schedule()

    def delete_topic(self, topic: str) -> asyncio.Future[PutResult]:
        """Drop the queues of a topic; return the outcome of the mark that deletes them on all
        copies.
        """
        self.commit()
        stored: asyncio.Future[PutResult] = self._loop.create_future()
        batch = self._store.delete_topic(topic, stored.set_result)
        self._note_commit(batch, time.perf_counter())
        return stored

    def put_large(self, messages: Sequence[NewMessage], done: PutDone) -> Steps[None]:
        """Store a unit as `put_batch` does, in steps; other puts wait for the last one.

        If the caller gives up, the remaining steps are run at once.
        """
        self.commit()
        placing, began_s = self._store.put_large(messages, done), time.perf_counter()
        try:
            while not placing.is_done:
                self._place(placing)
                yield
        finally:
            placing.finish()
            self._note_commit(placing.batch, began_s)
            self.commit()
        while self._store.upkeep.housekeeping.put_more_index():
            yield

    def _place(self, placing: Placing) -> None:
        self._is_committing = True  # an answer may stage messages, but not commit them
        try:
            placing.step()
        finally:
            self._is_committing = False

    def commit(self) -> None:
        """Write the staged messages, wake held pulls, and send the answers."""
        self._is_scheduled = self._is_in_turn = False
        self.commit_count += 1
        self._is_committing = True
        began_s = time.thread_time() if self._watched_count else 0.0
        try:
            batch = self._store.commit()
        finally:
            self._is_committing = False
        if self._watched_count:
            self._watch(time.thread_time() - began_s)
        self._note_commit(batch, self._staged_s)

    def _note_commit(self, batch: Batch | None, staged_s: float) -> None:
        self.waiting_count = self._store.waiting_put_count
        spent_s = time.perf_counter() - staged_s
        if batch is not None and spent_s > LONG_COMMIT_S and not self._watched_count:
            self._watched_count = WATCHED_COUNT
        if self.waiting_count:
            if self._waiting_since_ms is None:
                self._waiting_since_ms = self._clock.monotonic_ms()
        elif batch is not None:
            self.put_seconds.observe(spent_s, batch.message_count)
            elapsed_ms = self._clock.now_ms() - batch.store_timestamp
            if elapsed_ms > 0:
                self.put_times.add(elapsed_ms, batch.message_count)
        # The tick would start this sync up to 100 ms later.
        if self.waiting_count:
            self._flush()
        self._wake.fire()
        if batch is not None:
            self.turn.grew.fire()
            self._write_back()
            self._index()

    def _index(self) -> None:
        """Add keys that no commit had time for, some in each turn."""
        if self._store.upkeep.index.is_behind and not self._is_indexing:
            self._is_indexing = True
            self._loop.call_soon(self._index_more)

    def _index_more(self) -> None:
        self._is_indexing = (
            self._store.upkeep.housekeeping.put_more_index() and self._store.upkeep.index.is_behind
        )
        if self._is_indexing:
            self._loop.call_soon(self._index_more)

    def _watch(self, spent_s: float) -> None:
        """Report the processor time of a commit that follows a long one."""
        self._watched_count -= 1
        if spent_s > LONG_COMMIT_S:
            self._watched_count = WATCHED_COUNT
            self.turn.took_long(spent_s)

    def append(self, offset: int, data: Buffer) -> None:
        """Append a piece of the master's log to our own, and wake held pulls and our own slaves.

        Raise StoreError if the bytes do not fit, DiskError if the write fails.
        """
        try:
            self._store.append_raw(offset, data)
        finally:  # a failed append may have completed the last file
            self._wake.fire()
            self.turn.grew.fire()
        self._write_back()
        self._index()

    def _write_back(self) -> None:
        job = self._store.upkeep.flusher.writeback_job()
        if job is not None:
            self._start(job, self._workers.writeback)

    def note_replicated(self, offset: int) -> None:
        """Answer the sends that were waiting for a slave to have the log up to this offset."""
        before_count = self._store.waiting_put_count
        self._store.note_replicated(offset)
        self.waiting_count = self._store.waiting_put_count
        if self.waiting_count == before_count:
            return
        if not self._syncs.is_busy and self._waiting_since_ms is not None:
            elapsed_ms = self._clock.monotonic_ms() - self._waiting_since_ms
            self._count_waited(elapsed_ms, before_count - self.waiting_count)
            self._waiting_since_ms = self._clock.monotonic_ms() if self.waiting_count else None
        self._wake.fire()

    def _count_waited(self, elapsed_ms: int, count: int) -> None:
        """Count sends that were answered after a wait for the disk or a slave."""
        self.put_times.add(elapsed_ms, count)
        if count > 0:
            self.put_seconds.observe(elapsed_ms / 1000, count)

    def confirm(self, offset: int) -> None:
        """Make the log visible to readers up to this offset, wake held pulls, and answer the sends
        that were waiting for it.
        """
        self._store.confirm(offset)
        self.note_replicated(offset)
        self._wake.fire()

    def forget_unconfirmed(self) -> None:
        """Refuse the pending sends; call this when the broker is no longer the master."""
        self._store.forget_unconfirmed()
        self.waiting_count, self._waiting_since_ms = 0, None
        self._wake.fire()

    async def truncate(self, offset: int) -> None:
        """Truncate the log at a record boundary; raise DiskError.

        The broker must not be a master, and must not serve reads while this runs. Searches that are
        still running for clients are refused.
        """
        assert not self._store.role_writable
        self.forget_unconfirmed()
        self._is_truncating = self.reads.is_refused = True
        try:
            await self.drain()
            await self._workers.store.submit(partial(self._store.truncate, offset))
        finally:
            self._is_truncating = self.reads.is_refused = False
        self.turn.cut()

    def tick_interval_ms(self) -> int:
        """Return the pause until the next tick; it is longer while nothing is being written."""
        store, before = self._store, self._ticked_end
        self._ticked_end = end = store.commit_log.end
        is_busy = end != before or self._jobs or self._syncs.is_busy or self.waiting_count
        return TICK_INTERVAL_MS if is_busy or store.upkeep.flusher.has_pages else IDLE_INTERVAL_MS

    def tick(self) -> None:
        """Start any flush and housekeeping that are due."""
        if self._is_truncating:
            return
        waiting_count = self.waiting_count
        self._flush()
        if self.waiting_count < waiting_count:  # some have timed out
            self._wake.fire()
        now_ms = self._clock.now_ms()
        for job in self._store.jobs(now_ms):
            self._start(job, self._workers.store)
        scrub = self._store.upkeep.scrubber.job(now_ms)
        if scrub is not None:
            self._start(scrub, self._workers.scrub)

    def _start(self, job: Job, worker: Worker) -> None:
        future = worker.submit(job.run)
        self._jobs.add(future)
        future.add_done_callback(self._jobs.discard)
        future.add_done_callback(partial(self._job_ended, job))

    def head_wait_ms(self) -> int:
        """Return how long the oldest send has waited for the disk."""
        oldest = self._syncs.oldest
        since_ms = oldest.since_ms if oldest is not None else None
        if since_ms is None:
            since_ms = self._waiting_since_ms
        return 0 if since_ms is None else self._clock.monotonic_ms() - since_ms

    async def drain(self) -> None:
        """Write all staged messages, and wait until reads and pending sends are answered.

        Afterwards no job is running, so the store may be closed on a thread.
        """
        self.commit()
        while self._syncs.is_busy or self.reads.futures or self._jobs or self._is_indexing:
            await self._syncs.wait()
            if self._is_indexing:
                await asyncio.sleep(0)
            if self.reads.futures or self._jobs:
                await asyncio.wait([*self.reads.futures, *self._jobs])
            if self._is_scheduled:  # by a finished read
                self.commit()

    async def settle(self) -> None:
        """Flush everything, unless the disk has failed."""
        await self.drain()
        self._flush(is_forced=True)
        await self.drain()

    def begin_turn(self) -> None:
        """Schedule no commit until `end_turn`, which handles what is staged in between."""
        if not self._is_scheduled:
            self._is_scheduled = self._is_in_turn = True
            self._staged_s = time.perf_counter()

    def end_turn(self) -> None:
        """Commit the request staged since `begin_turn`; schedule the commit of several requests.

        A lone sender waits for its answer, while several requests gain from a larger commit.
        """
        if not self._is_in_turn:
            return
        self._is_in_turn = False
        count = self._store.staged_count
        if count == 1 and self._store.placing is None:
            self.commit()
        elif count:
            self._loop.call_soon(self._commit_in_turn)
        else:
            self._is_scheduled = False

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._staged_s = time.perf_counter()
            # The loop first serves the other sockets that are readable now, so that their messages
            # share this commit.
            self._loop.call_soon(self._commit_in_turn)
        # Nothing else bounds what one turn stages.
        elif not self._is_committing and self._store.staged_bytes > (
            STAGED_BYTES_MAX if self._store.placing is None else PLACING_BYTES_MAX
        ):
            self.commit()

    def _commit_in_turn(self) -> None:
        if self._store.placing is None:
            self.commit()
        # otherwise `put_large` commits what has been staged, after its last step

    def _flush(self, *, is_forced: bool = False) -> None:
        """Start a sync if one is due; while one runs, plan the next for the sends that it does not
        cover.
        """
        if self._is_truncating:
            return
        if self._syncs.is_busy:
            self._syncs.collect()
        job = self._store.upkeep.flusher.job(is_forced=is_forced)
        self.waiting_count = self._store.waiting_put_count  # without the sends that timed out
        if not self.waiting_count:
            self._waiting_since_ms = None
        if job is not None:
            # This sync covers every send so far; sends from now on wait for the next one.
            since_ms, self._waiting_since_ms = self._waiting_since_ms, None
            is_alone = not self._syncs.is_busy
            self._syncs.start(job, since_ms)
            if is_alone:
                self._lend_answer()

    def _lend_answer(self) -> None:
        """Let the thread that syncs answer a lone put, if it waits only for this sync."""
        withdraw = self._syncs.withdraw
        done = self._store.upkeep.pending.lone()
        if withdraw is not None and isinstance(done, LoneAnswer):
            answer = done.lend(withdraw)
            if answer is not None:
                self._syncs.answer(answer)

    def _synced(self, sync: Sync, error: Exception | None) -> None:
        waiting_count = self.waiting_count
        self._store.upkeep.flusher.done(sync.job, error)
        self.waiting_count = self._store.waiting_put_count
        answered_count = waiting_count - self.waiting_count
        if self.waiting_count:
            self._flush()  # first, because the disk waits
        self.sync_seconds.observe(sync.seconds)
        if sync.since_ms is not None:
            now_ms = self._clock.monotonic_ms()
            self._count_waited(now_ms - sync.since_ms, answered_count)
            self._slow_syncs.note(sync.seconds, now_ms=now_ms)
        self._wake.fire()

    def _job_ended(self, job: Job, future: asyncio.Future[None]) -> None:
        error = error_of(future)
        if error is not None:
            self._log.error("store.job_failed", job=job.name, error=describe(error))
        job.done(error)
        self.turn.job_ended()
