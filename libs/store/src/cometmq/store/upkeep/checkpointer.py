# SPDX-License-Identifier: Apache-2.0
"""Checkpoints and spills: they write the entries of queues and index from memory to the files.

A checkpoint writes the entries, syncs them, and then records the offset up to which everything is
on the disk, where recovery starts. A spill writes entries without a sync, to free memory.

If thousands of queues have changed, a checkpoint is divided into several jobs, so that the event
loop is not held while it copies their entries: all but the last are spills. The checkpoint records
the offset at which its first job began. The jobs also write later entries, which recovery ignores.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

from cometmq.store.errors import DiskError
from cometmq.store.parts import Parts
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.unsaved_queues import QueueWrite, Round, UnsavedQueues, Written
from cometmq.store.recovery.checkpoint import Checkpoint, CheckpointFiles, Progress
from cometmq.store.upkeep.flush import Flusher
from cometmq.store.upkeep.jobs import Step
from cometmq.store.upkeep.sealer import Sealer
from cometmq.store.writing.append import Batch
from cometmq.store.writing.pending_puts import has_passed

FAR_BEHIND_BYTES: Final = 16 << 20
"""A follower whose log is this much shorter than its master's is catching up. A copy that is in
sync is never as far behind.
"""

UNSAVED_BYTES_MAX: Final = 64 << 20
"""If the log of a follower that is catching up has grown by more than this since the last
checkpoint, the next checkpoint begins at once.
"""

UNSAVED_COUNT_MAX: Final = 100_000
"""A follower that is catching up pauses while more replicated records than this are waiting for a
checkpoint; above half this number, the next checkpoint begins at once.

A follower dispatches 500,000 records a second. Their entries take 40 bytes each, and twice that
while a checkpoint writes them: 8 MB in all.
"""


class CatchUp:
    """Decides when the next checkpoint must begin at once, and when replication must pause."""

    __slots__ = ("is_active", "is_pressed", "unsaved_count")

    def __init__(self) -> None:
        self.is_active = False
        self.is_pressed = False
        """Whether the next checkpoint begins at once."""
        self.unsaved_count = 0
        """The number of replicated records that no checkpoint has saved."""

    def note_distance(self, behind_bytes: int) -> None:
        """Record how far this follower's log is behind its master's.

        Sends to the master wait for a follower that is in sync, so its checkpoints must not compete
        with them for the disk.
        """
        self.is_active = behind_bytes > FAR_BEHIND_BYTES

    @property
    def is_crowded(self) -> bool:
        """Whether a follower should pause because checkpoints lag behind replication."""
        return self.is_active and self.unsaved_count > UNSAVED_COUNT_MAX

    def note_dispatched(self, count: int, *, unsaved_bytes: int) -> None:
        """Count replicated records; the log has grown by `unsaved_bytes` since the checkpoint."""
        self.unsaved_count += count
        self.is_pressed = self.is_active and (
            unsaved_bytes > UNSAVED_BYTES_MAX or self.unsaved_count > UNSAVED_COUNT_MAX // 2
        )

    def note_saved(self, count: int) -> None:
        """Count the records that a checkpoint has saved."""
        self.unsaved_count -= count
        self.is_pressed = False


PAUSE_FACTOR: Final = 4
"""Minimum pause after a checkpoint, as a multiple of its duration: the disk is busy with
checkpoints for at most one fifth of the time."""

SPILL_BYTES: Final = 8 << 20
"""A spill is due when the log has grown by more than this since the last one. It waits until
checkpoints, deletions and other jobs have ended. Checkpoints of a busy broker are seconds apart on
a slow disk; 400,000 records a second have 16 MB of entries.
"""

SPILL_QUEUE_BYTES: Final = 16 << 10
"""Added to SPILL_BYTES for each queue that has changed: writing a few entries costs as much as
writing hundreds.
"""

SPILL_INDEX_BYTES: Final = 4 << 20
"""A spill is also due above this size of the index entries in memory: the entries of messages with
thousands of keys are ten times as large as the messages.
"""

STOP_QUEUES_MAX: Final = 1_000
"""If more queues than this have no file, or more paths wait for their deletion, a stop syncs only
the log. The next start then recovers the queues, as after a kill.
"""

VERIFY_BYTES_MAX: Final = 64 << 20
"""Distance from the verify offset to the progress: how much of the log recovery checks for damage.
"""

OnDone: TypeAlias = Callable[[Exception | None], None]

_max_offset: Final = attrgetter("max_offset")


class _Draft(NamedTuple):
    """A checkpoint that was begun."""

    round: Round
    progress: Progress
    deletion_count: int
    dispatched_count: int


class Checkpointer:
    """Plans checkpoints and spills."""

    def __init__(
        self, parts: Parts, *, files: CheckpointFiles, flusher: Flusher, sealer: Sealer
    ) -> None:
        self._parts = parts
        self._files = files
        self._queues = parts.queues
        self._deletions = parts.deletions
        self._index = parts.index
        self._flusher = flusher
        self._sealer = sealer
        self.unsaved = UnsavedQueues()  # until `begin`
        self.catch_up = CatchUp()
        self._draft: _Draft | None = None
        self._spilling: Round | None = None
        self._spill_offset = 0
        self._last_ms = 0
        self._elapsed_ms = 0
        self._timestamp = 0
        self._verify_offset = 0
        self.offset = -1  # no checkpoint written yet
        self.dispatched_offset = 0

    def begin(self, unsaved: UnsavedQueues, *, start: int, end: int, last_timestamp: int) -> None:
        """Adopt the result of recovery: every queue with entries in memory is dirty."""
        self.unsaved = unsaved
        self.unsaved.note(queue for queue in self._queues.queues.values() if queue.tail_bytes)
        self._timestamp = last_timestamp
        self._verify_offset = start
        self.dispatched_offset = self._spill_offset = end

    def note_commit(self, batch: Batch) -> None:
        """Record which queues a commit has changed."""
        self.unsaved.queues.update(dict.fromkeys(batch.touched))  # `note`, without a call
        self._timestamp = max(self._timestamp, batch.store_timestamp)
        self.catch_up.is_pressed = False  # checkpoints must not delay senders
        self.dispatched_offset = batch.end

    def note_dispatched(
        self, queues: Iterable[ConsumeQueue], offset: int, timestamp: int, count: int
    ) -> None:
        """Record which queues `count` replicated records have changed."""
        self.unsaved.note(queues)
        self._timestamp = max(self._timestamp, timestamp)
        self.catch_up.note_dispatched(count, unsaved_bytes=offset - self.offset)
        self.dispatched_offset = offset

    def forget(self, queue: ConsumeQueue) -> None:
        """Drop a deleted queue; the next checkpoint no longer counts it."""
        self.unsaved.forget(queue)
        self.offset = -1  # makes a checkpoint due even if no message was stored

    def note_truncated(self, offset: int) -> None:
        """Adopt the end of a truncated log."""
        self.abandon()
        self.dispatched_offset = offset
        self._verify_offset = min(self._verify_offset, self._parts.commit_log.min_offset)
        self.offset = -1

    def is_due(self, now_ms: int, interval_ms: int) -> bool:
        """Return whether anything has changed and the interval has passed.

        A checkpoint of thousands of queues takes seconds, so the interval grows with its duration.
        A follower that is catching up does not wait, because it delays no sends.
        """
        pause_ms = max(interval_ms, self._elapsed_ms * PAUSE_FACTOR)
        if self.offset == self.dispatched_offset and not self._index.is_completing:
            return False
        return self.catch_up.is_pressed or has_passed(
            pause_ms, since_ms=self._last_ms, now_ms=now_ms
        )

    @property
    def is_begun(self) -> bool:
        """Whether some jobs of a checkpoint have run, and further ones are needed to complete
        it.
        """
        return self._draft is not None

    def plan(self, now_ms: int, on_done: OnDone, on_spilled: OnDone) -> Step:
        """Return the next job of the checkpoint that was begun, or of a new one.

        Call this only when no keys are queued for the index.
        """
        draft = self._begun(now_ms) if self._draft is None else self._draft
        writes = draft.round.writes()
        if draft.round.is_done:
            return self._completed(draft, writes, on_done)
        self._draft = draft
        return self._spill(writes, on_spilled)

    def _begun(self, now_ms: int) -> _Draft:
        self._last_ms = now_ms
        self._spilling, self._spill_offset = None, self.dispatched_offset
        index_name, index_count = self._index.position()
        progress = Progress(
            offset=self.dispatched_offset,
            verify_offset=self._next_verify_offset(),
            entry_count=sum(map(_max_offset, self._queues.queues.values())),
            index_count=index_count,
            # One time for log and queues: the job writes both before it writes the checkpoint.
            checkpoint=Checkpoint(self._timestamp, self._timestamp, self._index.end_timestamp),
            index_name=index_name,
        )
        return _Draft(
            Round(self.unsaved), progress, self._deletions.count, self.catch_up.unsaved_count
        )

    def _completed(
        self,
        draft: _Draft,
        writes: Sequence[QueueWrite],
        on_done: OnDone,
        *,
        is_closing: bool = False,
    ) -> Step:
        """Return the job that writes everything up to one offset to the disk, and then saves the
        checkpoint.
        """
        self._draft = None
        parts, progress, floors = self._parts, draft.progress, self._queues.floors
        flush, seal = self._flusher.plan(is_checkpoint=True), self._sealer.plan(progress.offset)
        spilled, index_flushes = (
            self.unsaved.spilled(),
            self._index.plan_flush(is_closing=is_closing),
        )
        floors_file = floors.plan(parts.disk, parts.layout, parts.commit_log.min_offset)

        def run() -> None:
            flush.run()
            seal.run()  # not on the sync thread, because sends wait for it
            written = spilled.files()
            written.write(parts.disk, writes)
            written.sync(parts.disk)
            for index_flush in index_flushes:
                index_flush.run()
            if floors_file is not None:
                floors_file.save()
            self._files.save(progress)

        def done(error: Exception | None) -> None:
            if error is None:
                self._elapsed_ms = max(0, parts.clock_ms() - self._last_ms)
                self.unsaved.note_saved(writes)
                self._index.mark_flushed(index_flushes)
                self._flusher.note_flushed(flush)
                seal.done(None)
                self.offset = progress.offset
                self._deletions.forget(draft.deletion_count, progress.offset)
                floors.note_saved(floors_file)
                self.catch_up.note_saved(draft.dispatched_count)
            else:
                self._index.mark_failed(index_flushes)
            on_done(error)

        return Step("checkpoint", run, done)

    def abandon(self) -> None:
        """Drop the checkpoint that was begun, because it could not be written or its plan is
        outdated.
        """
        self._draft = None

    @property
    def must_spill(self) -> bool:
        """Whether entries should leave memory before the next checkpoint is due."""
        if self._spilling is not None and not self._spilling.is_done:
            return True
        bytes_max = SPILL_BYTES + SPILL_QUEUE_BYTES * len(self.unsaved.queues)
        is_log_ahead = self.dispatched_offset - self._spill_offset > bytes_max
        return is_log_ahead or self._index.unwritten_bytes > SPILL_INDEX_BYTES

    def plan_spill(self, on_done: OnDone) -> Step:
        """Return the next job of a spill: it writes the entries of some of the queues that had
        entries in memory when the spill began.
        """
        if self._spilling is None or self._spilling.is_done:
            self._spilling, self._spill_offset = Round(self.unsaved), self.dispatched_offset
        return self._spill(self._spilling.writes(), on_done)

    def _spill(self, writes: Sequence[QueueWrite], on_done: OnDone) -> Step:
        """Return the job that moves entries to the files without a sync.

        Recovery does not trust entries beyond a checkpoint, so a crash after it does no harm.
        """
        disk, written, index_flushes = (
            self._parts.disk,
            Written({}, set()),
            self._index.plan_spill(),
        )

        def run() -> None:
            written.write(disk, writes)
            for index_flush in index_flushes:
                index_flush.write_entries()

        def done(error: Exception | None) -> None:
            if error is None:
                self._index.mark_flushed(index_flushes)
                self.unsaved.note_spilled(writes, written.folders)
            on_done(error)

        return Step("spill", run, done)

    def _next_verify_offset(self) -> int:
        if self.dispatched_offset - self._verify_offset > VERIFY_BYTES_MAX and self.offset >= 0:
            self._verify_offset = self.offset
        return max(self._verify_offset, self._parts.commit_log.min_offset)

    def save_all(self, now_ms: int) -> None:
        """Write a complete checkpoint, for example before closing; raise DiskError on failure."""
        self._index.catch_up()
        draft, writes = self._begun(now_ms), self.unsaved.writes()
        job = self._completed(draft, writes, lambda _error: None, is_closing=True)
        job.run()
        job.done(None)

    def close(self) -> None:
        """Close the checkpoint files."""
        self._files.close()


def is_sync_failure(error: Exception | None) -> bool:
    """Return whether fsync failed, which leaves the content of the disk unknown."""
    return isinstance(error, DiskError) and error.operation == "sync" and not error.is_open_refused
