# SPDX-License-Identifier: Apache-2.0
"""Drives the pure store: one commit per turn of the loop, and slow disk work on named threads.

Invariant: only the loop calls the store. Threads run only closures that the store provides (flush,
retention, cold reads), and their results are handled on the loop. The only exception is `truncate`.
While it runs on a thread, the loop does not use the store: the broker is not the master, the gate
refuses reads, searches are refused, and no sync or other job runs.

Hot path: `put` is one call and one test per message; everything else is done per batch.
"""

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from cometmq.broker.storing.disk_jobs import DiskJobs, Workers
from cometmq.broker.storing.log_syncs import NativeSyncer
from cometmq.broker.storing.sends import Sends
from cometmq.broker.storing.store_reads import StoreReads
from cometmq.broker.turn import Turn
from cometmq.remoting.log import Log
from cometmq.remoting.message.new_message import NewMessage
from cometmq.remoting.types import Buffer
from cometmq.runtime.clock import Clock
from cometmq.runtime.incremental import Steps
from cometmq.store.message_store import MessageStore
from cometmq.store.results import PutDone, PutResult
from cometmq.store.upkeep import flush
from cometmq.store.writing.append import Batch
from cometmq.store.writing.runs import RunSource

LONG_COMMIT_S: Final = 0.004
"""A commit that takes more processor time is charged to the connections: most take less than 1 ms.
"""
WATCHED_COUNT: Final = 16
"""Number of commits whose processor time is measured after one that took long. To measure all would
cost a lone send 1 %. Elapsed time alone does not show the cost, because other programs may
interrupt a commit.
"""
STAGED_BYTES_MAX: Final = 1 << 20  # a larger batch is written before the loop's turn ends
COMMIT_BYTES_MAX: Final = 2 << 20
"""Maximum size of the puts of one commit; the last put may exceed it. After a large batch, more
puts may be waiting; they are written in later turns.
"""
PLACING_BYTES_MAX: Final = 32 << 20
"""Maximum size of the puts that wait while a large batch is being placed. Above it, connections
with sends are not read; above twice this size, the batch is placed at once.
"""
TICK_INTERVAL_MS: Final = 100
IDLE_INTERVAL_MS: Final = 500
"""Longest pause between ticks. It is at most `flushIntervalCommitLog`, so that the first message
after a pause is synced in time.
"""


class StoreDriver:
    """The only caller of the store's writer: one commit per turn of the loop."""

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
        """`syncer` syncs the log instead of a worker thread; it needs an `OsDisk`."""
        self.turn = turn or Turn()
        self.store = store
        self._writer = store.writer
        self._clock = clock
        self._wake = self.turn.wake
        self._loop = asyncio.get_running_loop()
        self.is_scheduled = False
        """Whether a commit of staged messages is due in this turn of the loop or the next one."""
        self._is_in_turn = False
        self._is_committing = False
        self.is_full = False
        """Whether so many puts wait for a large batch that connections must not be read."""
        self._is_indexing = False
        self._ticked_end = -1  # of the log, at the last tick
        self.reads = StoreReads(workers.read, log=log)
        self.jobs = DiskJobs(store, workers, log=log, ended=self.turn.job_ended)
        self.sends = Sends(
            store, clock=clock, log=log, wake=self._wake, flush_worker=workers.flush, syncer=syncer
        )
        self.commit_count = 0
        self._watched_count = 0  # commits whose processor time is still to be measured
        self._staged_s = 0.0  # when the first put of the next commit was staged

    def put(self, message: NewMessage, done: PutDone) -> None:
        """Stage a message for this turn's commit; `done` is called when its outcome is known."""
        staged_bytes = self._writer.put(message, done)
        if not self.is_scheduled or staged_bytes > STAGED_BYTES_MAX:
            self._schedule()

    def put_run(self, source: RunSource, first: int, count: int, staged_bytes: int) -> None:
        """Stage requests of a source (`cometmq.store.writing.runs`), from number `first` on."""
        staged_bytes = self._writer.put_run(source, first, count, staged_bytes)
        if not self.is_scheduled or staged_bytes > STAGED_BYTES_MAX:
            self._schedule()

    def put_batch(self, messages: Sequence[NewMessage], done: PutDone) -> None:
        """Store all messages contiguously, or none; they may be for different queues."""
        self._writer.put_batch(messages, done)
        self._schedule()

    def delete_topic(self, topic: str) -> asyncio.Future[PutResult]:
        """Delete a topic's queues, in all copies by a record (mark); return its outcome."""
        self.commit()
        stored: asyncio.Future[PutResult] = self._loop.create_future()
        self._note_commit(self.store.delete_topic(topic, stored.set_result), time.perf_counter())
        return stored

    def trim_queue(self, topic: str, queue_id: int, queue_offset: int) -> asyncio.Future[PutResult]:
        """Delete the messages of a queue before an offset as `delete_topic` deletes all."""
        self.commit()
        stored: asyncio.Future[PutResult] = self._loop.create_future()
        batch = self.store.trim_queue(topic, queue_id, queue_offset, stored.set_result)
        self._note_commit(batch, time.perf_counter())
        return stored

    def put_large(self, messages: Sequence[NewMessage], done: PutDone) -> Steps[None]:
        """Store messages as `put_batch` does, but in steps; other puts wait for the last step.

        If the caller closes the generator, the remaining steps are run at once.
        """
        self.commit()
        placing, began_s = self._writer.put_large(messages, done), time.perf_counter()
        with self.jobs.counted():  # `drain` waits for the steps
            try:
                while not placing.is_done:
                    self._is_committing = True  # an answer may stage messages, but not commit them
                    try:
                        placing.step()
                    finally:
                        self._is_committing = False
                    yield
            finally:
                placing.finish()
                self.is_full = False
                self._note_commit(placing.batch, began_s)
                # The last step has answered the batch; the puts that waited have a turn of their
                # own, because both together take twice as long.
                self.is_scheduled = bool(self._writer.appender.staged_count)
                if self.is_scheduled:
                    self._loop.call_soon(self._commit_in_turn)
            while self._writer.appender.staged_bytes > STAGED_BYTES_MAX:
                yield
                self._commit_some()
            while self.store.upkeep.indexing.add_more():
                yield

    def _commit_in_turn(self) -> None:
        if self._writer.placing is None:
            self._commit_some()
        # otherwise `put_large` commits what has been staged, after its last step

    def _commit_some(self) -> None:
        """Commit the oldest puts, up to COMMIT_BYTES_MAX; schedule the commit of further ones."""
        self.commit(bytes_max=COMMIT_BYTES_MAX)
        if self._writer.appender.staged_count and not self.is_scheduled:
            self._schedule()

    def commit(
        self, source: RunSource | None = None, count: int = 0, *, bytes_max: int | None = None
    ) -> None:
        """Write the staged messages, or the oldest ones up to `bytes_max`; wake
        held pulls, and send the answers.

        With a `source`, write its `count` requests, which are all that it has; no messages may be
        staged or being placed then.
        """
        writer = self._writer
        if source is not None:
            self._staged_s = time.perf_counter()
        self.is_scheduled = self._is_in_turn = False
        self.commit_count += 1
        self._is_committing = True
        began_s = time.thread_time() if self._watched_count else 0.0
        try:
            if source is None:
                batch = writer.commit(self.sends.note_written, bytes_max)
            else:
                batch = writer.store(
                    writer.appender.take_run(source, count), self.sends.note_written
                )
        finally:
            self._is_committing = False
        if self._watched_count:
            self._watch(time.thread_time() - began_s)
        self._note_commit(batch, self._staged_s)

    def _note_commit(self, batch: Batch | None, staged_s: float) -> None:
        spent_s = time.perf_counter() - staged_s
        if batch is not None and spent_s > LONG_COMMIT_S and not self._watched_count:
            self._watched_count = WATCHED_COUNT
        self.sends.note_commit(batch, spent_s)
        self._wake.fire()
        if batch is not None:
            self.turn.grew.fire()
            flusher = self.store.upkeep.flusher
            if batch.end - flusher.flushed_offset >= flush.WRITEBACK_BYTES:
                self.jobs.write_back()
            if self.store.upkeep.index.is_behind:
                self._index()

    def _index(self) -> None:
        """Add keys that no commit had time for, some in each turn."""
        if not self._is_indexing:
            self._is_indexing = True
            self._loop.call_soon(self._index_more)

    def _index_more(self) -> None:
        self._is_indexing = (
            self.store.upkeep.indexing.add_more() and self.store.upkeep.index.is_behind
        )
        if self._is_indexing:
            self._loop.call_soon(self._index_more)

    def _watch(self, spent_s: float) -> None:
        """Report the processor time of a commit while commits are measured (WATCHED_COUNT)."""
        self._watched_count -= 1
        if spent_s > LONG_COMMIT_S:
            self._watched_count = WATCHED_COUNT
            self.turn.took_long(spent_s)

    def append(self, offset: int, data: Buffer) -> None:
        """Append a piece of the master's log to this log, and wake held pulls and
        this broker's slaves.

        Raise StoreError if the bytes do not fit, DiskError if the write fails.
        """
        try:
            self.store.replica.append(offset, data)
        finally:  # a failed append may have completed the last file
            self._wake.fire()
            self.turn.grew.fire()
        self.jobs.write_back()
        if self.store.upkeep.index.is_behind:
            self._index()

    def confirm(self, offset: int) -> None:
        """Make the log visible up to this offset; wake pulls, answer sends that waited."""
        self.store.publisher.confirm(offset)
        self.sends.note_replicated(offset)
        self._wake.fire()

    def forget_unconfirmed(self) -> None:
        """Refuse the pending sends; call this when the broker is no longer the master."""
        self._writer.forget_unconfirmed()
        self.sends.forget()
        self._wake.fire()

    async def truncate(self, offset: int) -> None:
        """Truncate the log at a record boundary; raise DiskError.

        The broker must not be a master, and must not serve reads while this runs. Searches that are
        still running for clients are refused.
        """
        assert not self.store.write_state.role_writable
        self.forget_unconfirmed()
        self.sends.is_stopped = self.reads.is_refused = True
        try:
            await self.drain()
            await self.jobs.workers.store.submit(partial(self.store.truncate, offset))
        finally:
            self.sends.is_stopped = self.reads.is_refused = False
        self.turn.cut()

    def tick_interval_ms(self) -> int:
        """Return the pause until the next tick; it is longer while nothing is being written."""
        store, before = self.store, self._ticked_end
        self._ticked_end = end = store.commit_log.end
        is_busy = end != before or self.jobs.running or self.sends.is_busy
        is_busy = is_busy or store.upkeep.flusher.has_pages or store.upkeep.checkpointer.is_begun
        return TICK_INTERVAL_MS if is_busy else IDLE_INTERVAL_MS

    def tick(self) -> None:
        """Start the flush and the disk jobs that are due."""
        if not self.sends.is_stopped:
            self.sends.tick()
            self.jobs.start_due(self._clock.now_ms())

    async def drain(self) -> None:
        """Write all staged messages, and wait until reads and pending sends are answered.

        Afterwards no job is running, so the store may be closed on a thread.
        """
        self.commit()
        while (
            self.sends.syncs.is_busy or self.reads.futures or self.jobs.running or self._is_indexing
        ):
            await self.sends.syncs.wait()
            if self._is_indexing:
                await asyncio.sleep(0)
            if self.reads.futures or self.jobs.running:
                await asyncio.wait([*self.reads.futures, *self.jobs.running])
            if self.is_scheduled:  # by a finished read
                self.commit()

    async def settle(self) -> None:
        """Write and flush everything, unless the disk has failed."""
        await self.drain()
        self.sends.sync(is_forced=True)
        await self.drain()

    def begin_turn(self) -> None:
        """Schedule no commit until `end_turn`, which handles what is staged in between."""
        if not self.is_scheduled:
            self.is_scheduled = self._is_in_turn = True
            self._staged_s = time.perf_counter()

    def end_turn(self) -> None:
        """Commit the request staged since `begin_turn`; schedule the commit of several requests.

        A lone sender waits for its answer, while several requests gain from a larger commit.
        """
        if not self._is_in_turn:
            return
        self._is_in_turn = False
        count = self._writer.appender.staged_count
        if count == 1 and self._writer.placing is None:
            self.commit()
        elif count:
            self._loop.call_soon(self._commit_in_turn)
        else:
            self.is_scheduled = False

    def _schedule(self) -> None:
        if not self.is_scheduled:
            self.is_scheduled = True
            self._staged_s = time.perf_counter()
            # The loop first serves the other sockets that are readable now, so that their messages
            # share this commit.
            self._loop.call_soon(self._commit_in_turn)
        # Nothing else bounds what one turn stages.
        elif not self._is_committing:
            staged_bytes = self._writer.appender.staged_bytes
            if self._writer.placing is None:
                if staged_bytes > STAGED_BYTES_MAX:
                    self._commit_some()
            elif staged_bytes > PLACING_BYTES_MAX:
                self.is_full = True
                if staged_bytes > 2 * PLACING_BYTES_MAX:
                    self.commit()
