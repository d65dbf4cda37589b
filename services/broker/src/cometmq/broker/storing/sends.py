# SPDX-License-Identifier: Apache-2.0
"""The sends that wait for the disk or a slave: starts the syncs that they need, and
measures latencies.
"""

from cometmq.broker.statistics.latencies import PutTimes, latency_buckets
from cometmq.broker.storing.log_syncs import (
    LendableAnswers,
    NativeSyncer,
    NativeSyncs,
    SlowSyncs,
    Sync,
    WorkerSyncs,
)
from cometmq.broker.turn import Signal
from cometmq.remoting.log import Log
from cometmq.runtime.clock import Clock
from cometmq.runtime.worker import Worker
from cometmq.store.message_store import MessageStore
from cometmq.store.writing.append import Batch


class Sends:
    """Counts the sends that wait, and starts the syncs that answer them."""

    def __init__(
        self,
        store: MessageStore,
        *,
        clock: Clock,
        log: Log,
        wake: Signal[[]],
        flush_worker: Worker,
        syncer: NativeSyncer | None,
    ) -> None:
        self._writer = store.writer
        self._pending = store.upkeep.pending
        self._flusher = store.upkeep.flusher
        self._clock = clock
        self._wake = wake
        self.syncs: WorkerSyncs | NativeSyncs = (
            WorkerSyncs(flush_worker, self._synced)
            if syncer is None
            else NativeSyncs(syncer, self._synced)
        )
        self._slow_syncs = SlowSyncs(log)
        self.is_stopped = False
        """Whether no sync may start, because the log is being truncated."""
        self.waiting_count = 0
        """Sends that wait for the disk or a slave, as of the last commit, flush or answer."""
        self._begun: Batch | None = None  # the commit that `note_written` has noted
        self._since_ms: int | None = None  # the oldest send that no sync covers yet
        self.put_times = PutTimes(lambda: store.counters.put_count)
        self.put_seconds = latency_buckets()
        """Time from a put to its answer; all of a commit count with that of the oldest."""
        self.sync_seconds = latency_buckets()

    @property
    def is_busy(self) -> bool:
        """Whether sends wait or a sync is running."""
        return bool(self.waiting_count) or self.syncs.is_busy

    def note_written(self, batch: Batch) -> None:
        """Start the sync for which the sends of a commit wait.

        This is called as soon as the commit is written, before its messages are visible and before
        the end of the last sync is noted, so that the disk is never idle.
        """
        self._begun = batch
        self.waiting_count = self._pending.count
        if self.waiting_count:
            if self._since_ms is None:
                self._since_ms = self._clock.monotonic_ms()
            if self._start(is_forced=False) and isinstance(self.syncs, NativeSyncs):
                self._lend_answers(self.syncs, batch.end)

    def note_commit(self, batch: Batch | None, spent_s: float) -> None:
        """Count the sends of a commit as answered or waiting."""
        self.waiting_count = self._pending.count
        if self.waiting_count and batch is not None and batch is not self._begun:
            self.note_written(batch)
        self._begun = None
        if self.waiting_count:
            if self.syncs.is_busy:
                self.syncs.collect()
        elif batch is not None:
            self.put_seconds.observe(spent_s, batch.message_count)
            if spent_s >= 0.001:
                self.put_times.add(int(spent_s * 1_000), batch.message_count)

    def note_replicated(self, offset: int) -> None:
        """Answer the sends that were waiting for a slave to have the log up to this offset."""
        before_count = self._pending.count
        self._writer.note_replicated(offset)
        self.waiting_count = self._pending.count
        if self.waiting_count == before_count:
            return
        self._count_waited(*self._pending.take_answered())
        if not self.syncs.is_busy and self._since_ms is not None:
            self._since_ms = self._clock.monotonic_ms() if self.waiting_count else None
        self._wake.fire()

    def _count_waited(self, count: int, since_ms: int, late_ms: int = 0) -> None:
        """Count messages whose answers have waited for the disk or a slave; `late_ms` is the time
        that has passed since the answers were sent.
        """
        if count:
            elapsed_ms = max(0, self._clock.monotonic_ms() - since_ms - late_ms)
            self.put_times.add(elapsed_ms, count)
            self.put_seconds.observe(elapsed_ms / 1000, count)

    def forget(self) -> None:
        """Forget the pending sends, which have been refused."""
        self.waiting_count, self._since_ms = 0, None
        self._count_waited(*self._pending.take_answered())

    def head_wait_ms(self) -> int:
        """Return how long the oldest send has waited for the disk."""
        oldest = self.syncs.oldest
        since_ms = oldest.since_ms if oldest is not None else None
        if since_ms is None:
            since_ms = self._since_ms
        return 0 if since_ms is None else self._clock.monotonic_ms() - since_ms

    def tick(self) -> None:
        """Start a sync that is due, and answer the sends that have timed out."""
        waiting_count = self.waiting_count
        self.sync()
        if self.waiting_count < waiting_count:
            self._wake.fire()

    def sync(self, *, is_forced: bool = False) -> None:
        """Note the syncs that have ended, then start one if it is due."""
        if not self.is_stopped and self.syncs.is_busy:
            self.syncs.collect()
        self._start(is_forced=is_forced)

    def _start(self, *, is_forced: bool) -> bool:
        """Start a sync if one is due; while one is running, plan the next one for the sends that it
        does not cover. Return whether a sync was started or planned.
        """
        if self.is_stopped:
            return False
        job = self._flusher.job(is_forced=is_forced)
        self.waiting_count = self._pending.count  # without the sends that timed out
        if self._pending.answered_count:
            self._count_waited(*self._pending.take_answered())
        if not self.waiting_count:
            self._since_ms = None
        if job is None:
            return False
        # This sync covers every send so far; sends from now on wait for the next one.
        since_ms, self._since_ms = self._since_ms, None
        self.syncs.start(job, since_ms)
        return True

    def _lend_answers(self, syncs: NativeSyncs, offset: int) -> None:
        """Lend the answers of the commit that ends at `offset` to the sync thread, if possible."""
        dones, is_all = self._pending.flushing(offset)
        lent = []
        for done in dones:
            answers = done.lend() if isinstance(done, LendableAnswers) else None
            if answers is None:
                is_all = False
            else:
                lent.append(answers)
        for answers in lent:
            syncs.lend(answers, is_all=is_all)

    def _synced(self, sync: Sync, error: Exception | None) -> None:
        self._flusher.done(sync.job, error)
        self.waiting_count = self._pending.count
        answered = self._pending.take_answered()
        if self._since_ms is not None:
            self._start(is_forced=False)  # first, because the disk waits
        self.sync_seconds.observe(sync.seconds)
        self._count_waited(*answered, late_ms=int(sync.late_s * 1_000))
        if sync.since_ms is not None:
            self._slow_syncs.note(sync.seconds, now_ms=self._clock.monotonic_ms())
        self._wake.fire()
