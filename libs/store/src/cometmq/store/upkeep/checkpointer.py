# SPDX-License-Identifier: Apache-2.0
"""Checkpoints, which keep the queues and the index on disk from falling far behind the log.

A checkpoint writes the entries that queues and index hold only in memory, syncs them, and then
records the offset up to which everything is on the disk. Recovery starts there.
"""

from collections.abc import Callable, Iterable
from typing import Final

from cometmq.store.errors import DiskError
from cometmq.store.pacing import has_passed
from cometmq.store.parts import Parts
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.recovery.checkpoint import Checkpoint, CheckpointFiles, Progress
from cometmq.store.upkeep.catch_up import CatchUp
from cometmq.store.upkeep.flush import Flusher
from cometmq.store.upkeep.jobs import CheckpointJob, SpillJob
from cometmq.store.upkeep.sealer import Sealer
from cometmq.store.upkeep.unsaved_queues import UnsavedQueues
from cometmq.store.writing.append import Batch

PAUSE_FACTOR: Final = 4
"""Minimum pause after a checkpoint, as a multiple of its duration: the disk is busy with
checkpoints for at most one fifth of the time."""

SPILL_BYTES: Final = 8 << 20
"""How much of the log may have its entries in memory while no other job runs; a spill waits for
checkpoints, deletions and other jobs to end. Checkpoints of a busy broker are seconds apart on a
slow disk; 400,000 records a second have 16 MB of entries.
"""

SPILL_QUEUE_BYTES: Final = 16 << 10
"""Added to SPILL_BYTES for each queue that has changed: writing a few entries costs as much as
writing hundreds.
"""

SPILL_INDEX_BYTES: Final = 4 << 20
"""Size of the index entries in memory from which on they are spilled: those of messages with
thousands of keys are ten times as large as the messages.
"""

NEW_QUEUES_MAX: Final = 500
"""How many queues without a file one job writes. Creating the folders and the file of a queue takes
0.5 ms, and several times that on a busy disk; a stop waits for the running job.
"""

STOP_QUEUES_MAX: Final = 1_000
"""With more queues without a file, or more deleted topics, a stop leaves their files to the next
start, as after a kill.
"""

VERIFY_BYTES_MAX: Final = 64 << 20
"""Distance from the verify offset to the progress: how much of the log recovery checks for damage.
"""


class Checkpointer:
    """Plans checkpoints and spills."""

    def __init__(
        self, parts: Parts, *, files: CheckpointFiles, flusher: Flusher, sealer: Sealer
    ) -> None:
        self._disk = parts.disk
        self._layout = parts.layout
        self._files = files
        self._commit_log = parts.commit_log
        self._queues = parts.queues
        self._deletions = parts.deletions
        self._index = parts.index
        self._flusher = flusher
        self._sealer = sealer
        self.unsaved = UnsavedQueues()
        self.catch_up = CatchUp()
        self._spill_offset = 0
        self._last_ms = 0
        self._elapsed_ms = 0
        self._timestamp = 0
        self._verify_offset = 0
        self.offset = -1  # no checkpoint written yet
        self.dispatched_offset = 0

    def begin(self, *, start: int, end: int, last_timestamp: int) -> None:
        """Adopt the result of recovery: every queue with entries in memory is dirty."""
        self.unsaved.note(queue for queue in self._queues.queues.values() if queue.tail_bytes)
        self._timestamp = last_timestamp
        self._verify_offset = start
        self.dispatched_offset = self._spill_offset = end

    def note_commit(self, batch: Batch) -> None:
        """Record which queues a commit has changed."""
        self.unsaved.note(batch.touched)
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
        """Drop a deleted queue, so that the next checkpoint no longer counts it."""
        self.unsaved.forget(queue)
        self.offset = -1  # makes a checkpoint due even if no message was stored

    def note_truncated(self, offset: int) -> None:
        """Adopt the end of a truncated log."""
        self.dispatched_offset = offset
        self._verify_offset = min(self._verify_offset, self._commit_log.min_offset)
        self.offset = -1

    def is_due(self, now_ms: int, interval_ms: int) -> bool:
        """Return whether anything has changed and the interval has passed.

        A checkpoint of thousands of queues takes seconds, so the interval grows with its duration.
        A follower that is catching up does not wait, because it delays no sends.
        """
        pause_ms = max(interval_ms, self._elapsed_ms * PAUSE_FACTOR)
        if self.offset == self.dispatched_offset:
            return False
        return self.catch_up.is_pressed or has_passed(
            pause_ms, since_ms=self._last_ms, now_ms=now_ms
        )

    def plan(
        self,
        now_ms: int,
        on_done: Callable[[CheckpointJob, Exception | None], None],
        *,
        is_closing: bool = False,
    ) -> CheckpointJob:
        """Copy everything that the next checkpoint writes."""
        self._last_ms = now_ms
        self._spill_offset = self.dispatched_offset
        index_flushes = self._index.plan_flush(is_closing=is_closing)
        index_name, index_count = self._index.position()
        # One timestamp for log and queues: the job writes both before it writes the checkpoint.
        checkpoint = Checkpoint(self._timestamp, self._timestamp, self._index.end_timestamp)
        progress = Progress(
            offset=self.dispatched_offset,
            verify_offset=self._next_verify_offset(),
            entry_count=sum(queue.max_offset for queue in self._queues.queues.values()),
            index_count=index_count,
            checkpoint=checkpoint,
            index_name=index_name,
        )
        return CheckpointJob(
            disk=self._disk,
            files=self._files,
            flush=self._flusher.plan(is_checkpoint=True),
            seal=self._sealer.plan(progress.offset),
            writes=self.unsaved.writes(),
            written=self.unsaved.spilled_files(),
            index_flushes=index_flushes,
            progress=progress,
            deletion_count=self._deletions.count,
            floors=self._queues.floors.plan(self._disk, self._layout, self._commit_log.min_offset),
            dispatched_count=self.catch_up.unsaved_count,
            on_done=on_done,
        )

    @property
    def must_spill(self) -> bool:
        """Whether entries should leave memory before the next checkpoint is due."""
        bytes_max = SPILL_BYTES + SPILL_QUEUE_BYTES * len(self.unsaved.queues)
        is_log_ahead = self.dispatched_offset - self._spill_offset > bytes_max
        return is_log_ahead or self._index.unwritten_bytes > SPILL_INDEX_BYTES

    def plan_spill(self, on_done: Callable[[SpillJob, Exception | None], None]) -> SpillJob:
        """Take the entries that exist only in memory; of queues without a file, only some."""
        new = self.unsaved.new(NEW_QUEUES_MAX + 1)
        if len(new) > NEW_QUEUES_MAX:
            writes = self.unsaved.writes(new[:NEW_QUEUES_MAX])
        else:
            writes = self.unsaved.writes()
            self._spill_offset = self.dispatched_offset
        return SpillJob(
            disk=self._disk,
            writes=writes,
            index_flushes=self._index.plan_spill(),
            on_done=on_done,
        )

    def take_over_spill(self, job: SpillJob) -> None:
        """Release the entries that a finished spill has written."""
        self._index.mark_flushed(job.index_flushes)
        self.unsaved.note_spilled(job.writes, job.written.folders)

    def _next_verify_offset(self) -> int:
        if self.dispatched_offset - self._verify_offset > VERIFY_BYTES_MAX and self.offset >= 0:
            self._verify_offset = self.offset
        return max(self._verify_offset, self._commit_log.min_offset)

    def take_over(self, job: CheckpointJob, now_ms: int) -> None:
        """Release the entries that a finished job has written to the disk."""
        self._elapsed_ms = max(0, now_ms - self._last_ms)
        self.unsaved.note_saved(job.writes)
        self._index.mark_flushed(job.index_flushes)
        self._flusher.note_flushed(job.flush)
        job.seal.done()
        self.offset = job.progress.offset
        self._deletions.forget(job.deletion_count, job.progress.offset)
        self._queues.floors.note_saved(job.floors)
        self.catch_up.note_saved(job.dispatched_count)

    def give_back(self, job: CheckpointJob) -> None:
        """Keep the entries that a failed job could not write."""
        self._index.mark_failed(job.index_flushes)

    def save_all(self, now_ms: int) -> None:
        """Write a complete checkpoint, for example before closing; raise DiskError on failure."""
        self._index.catch_up()
        job = self.plan(now_ms, _nothing, is_closing=True)
        job.run()
        self.take_over(job, now_ms)

    def close(self) -> None:
        """Close the checkpoint files."""
        self._files.close()


def _nothing(_job: CheckpointJob, _error: Exception | None) -> None: ...


def is_sync_failure(error: Exception | None) -> bool:
    """Return whether fsync failed, which leaves the content of the disk unknown."""
    return isinstance(error, DiskError) and error.operation == "sync" and not error.is_open_refused
