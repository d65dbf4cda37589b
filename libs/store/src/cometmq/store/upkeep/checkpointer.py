# SPDX-License-Identifier: Apache-2.0
"""Checkpoints, which keep the queues and the index on disk from falling far behind the log.

A checkpoint writes the entries that queues and index hold only in memory, syncs them, and then
records the offset up to which everything is on the disk. Recovery starts there.
"""

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Final

from cometmq.store.errors import DiskError
from cometmq.store.pacing import has_passed
from cometmq.store.parts import Parts
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.recovery.checkpoint import Checkpoint, CheckpointFiles, Progress
from cometmq.store.settings import CQ_ENTRY_BYTES
from cometmq.store.upkeep.flush import Flusher
from cometmq.store.upkeep.jobs import CheckpointJob, QueueWrite, SpillJob, Written
from cometmq.store.upkeep.sealer import Sealer
from cometmq.store.writing.append import Batch

FAR_BEHIND_BYTES: Final = 16 << 20
"""A follower that is further than this behind its master is catching up. A copy that is in sync is
never as far behind.
"""

PAUSE_FACTOR: Final = 4
"""Minimum pause after a checkpoint, as a multiple of its duration: the disk is busy with
checkpoints for at most one fifth of the time."""

UNSAVED_BYTES_MAX: Final = 64 << 20
"""If the log of a follower that is catching up has grown by more than this since the last
checkpoint, the next one does not wait.
"""

UNSAVED_COUNT_MAX: Final = 100_000
"""A follower that is catching up pauses while more replicated records than this are waiting for a
checkpoint; above half this number, the next checkpoint does not wait. A follower dispatches 500,000
records a second. Their entries take 40 bytes each, and twice that while a checkpoint writes them:
8 MB in all.
"""

SPILL_BYTES: Final = 8 << 20
"""How much of the log may have its entries in memory while no other job runs; a spill waits for
checkpoints, deletions and other jobs to end. Checkpoints of a busy broker are seconds apart on a
slow disk; 400,000 records a second have 16 MB of entries.
"""

SPILL_QUEUE_BYTES: Final = 16 << 10
"""Added to SPILL_BYTES for each queue that has changed: writing a few entries costs as much as
writing hundreds.
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

_NAME: Final = attrgetter("topic", "queue_id")


class Checkpointer:
    """Tracks changes since the last checkpoint and plans the next one."""

    __slots__ = (
        "_commit_log",
        "_deletions",
        "_dirty",
        "_disk",
        "_elapsed_ms",
        "_files",
        "_flusher",
        "_index",
        "_is_pressed",
        "_last_ms",
        "_queues",
        "_sealer",
        "_spill_offset",
        "_spilled",
        "_spilled_folders",
        "_timestamp",
        "_unsaved_count",
        "_verify_offset",
        "dispatched_offset",
        "is_catching_up",
        "offset",
    )

    def __init__(
        self, parts: Parts, *, files: CheckpointFiles, flusher: Flusher, sealer: Sealer
    ) -> None:
        self._disk = parts.disk
        self._files = files
        self._commit_log = parts.commit_log
        self._queues = parts.queues
        self._deletions = parts.deletions
        self._index = parts.index
        self._flusher = flusher
        self._sealer = sealer
        self._dirty: set[ConsumeQueue] = set()
        # Queue -> the first of its entries that a spill has written since the checkpoint.
        self._spilled: dict[ConsumeQueue, int] = {}
        self._spilled_folders: set[str] = set()
        self._spill_offset = 0
        self._is_pressed = False
        self._unsaved_count = 0  # records dispatched since the checkpoint
        self._last_ms = 0
        self._elapsed_ms = 0
        self._timestamp = 0
        self._verify_offset = 0
        self.is_catching_up = False
        self.offset = -1  # no checkpoint written yet
        self.dispatched_offset = 0

    def begin(self, *, start: int, end: int, last_timestamp: int) -> None:
        """Adopt the result of recovery: every queue with entries in memory is dirty."""
        self._dirty = {queue for queue in self._queues.queues.values() if queue.tail_bytes}
        self._timestamp = last_timestamp
        self._verify_offset = start
        self.dispatched_offset = self._spill_offset = end

    def note_commit(self, batch: Batch) -> None:
        """Record which queues a commit has changed."""
        self._dirty.update(batch.touched)
        self._timestamp = max(self._timestamp, batch.store_timestamp)
        self._is_pressed = False  # checkpoints must not compete with senders for the disk
        self.dispatched_offset = batch.end

    def note_dispatched(
        self, queues: set[ConsumeQueue], offset: int, timestamp: int, count: int
    ) -> None:
        """Record which queues `count` replicated records have changed."""
        self._dirty |= queues
        self._timestamp = max(self._timestamp, timestamp)
        self._unsaved_count += count
        self._is_pressed = self.is_catching_up and (
            offset - self.offset > UNSAVED_BYTES_MAX or self._unsaved_count > UNSAVED_COUNT_MAX // 2
        )
        self.dispatched_offset = offset

    def note_distance(self, behind_bytes: int) -> None:
        """Record how far this follower's log is behind its master's.

        Sends to the master wait for a follower that is in sync, so its checkpoints must not compete
        with them for the disk.
        """
        self.is_catching_up = behind_bytes > FAR_BEHIND_BYTES

    @property
    def is_crowded(self) -> bool:
        """Whether a follower should pause because checkpoints lag behind replication."""
        return self.is_catching_up and self._unsaved_count > UNSAVED_COUNT_MAX

    def forget(self, queue: ConsumeQueue) -> None:
        """Drop a deleted queue, so that the next checkpoint no longer counts it."""
        self._dirty.discard(queue)
        self._spilled.pop(queue, None)
        self._spilled_folders.discard(queue.files.folder)
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
        if self._is_pressed:
            return True
        return has_passed(pause_ms, since_ms=self._last_ms, now_ms=now_ms)

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
            writes=self._queue_writes(),
            written=self._spilled_files(),
            index_flushes=index_flushes,
            progress=progress,
            deletion_count=self._deletions.count,
            dispatched_count=self._unsaved_count,
            on_done=on_done,
        )

    def _queue_writes(self) -> list[QueueWrite]:
        return [
            QueueWrite(queue, queue.written_offset, queue.unwritten())
            for queue in sorted(self._dirty, key=_NAME)  # a simulated run repeats this order
            if queue.tail_bytes
        ]

    def _spilled_files(self) -> Written:
        # Retention may have removed files since the spill, so the files are looked up again.
        files = {}
        for queue, first in self._spilled.items():
            for file in queue.files.files_from(first * CQ_ENTRY_BYTES):
                files[file.path] = file
        return Written(files, set(self._spilled_folders))

    @property
    def must_spill(self) -> bool:
        """Whether entries should leave memory before the next checkpoint is due."""
        bytes_max = SPILL_BYTES + SPILL_QUEUE_BYTES * len(self._dirty)
        return self.dispatched_offset - self._spill_offset > bytes_max

    @property
    def new_queue_count(self) -> int:
        """The number of queues that have no file yet."""
        return sum(not queue.files.files for queue in self._dirty)

    def plan_spill(self, on_done: Callable[[SpillJob, Exception | None], None]) -> SpillJob:
        """Copy the entries that exist only in memory; of queues without a file, only some."""
        writes = self._queue_writes()
        new = [write for write in writes if not write.queue.files.files]
        if len(new) > NEW_QUEUES_MAX:
            writes = new[:NEW_QUEUES_MAX]
        else:
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
        for queue, queue_offset, _ in job.writes:
            if queue not in self._dirty:
                continue  # its topic was deleted meanwhile
            self._spilled.setdefault(queue, queue_offset)
            if queue.files.folder in job.written.folders:
                self._spilled_folders.add(queue.files.folder)
        self._release(job.writes)

    def _release(self, writes: Iterable[QueueWrite]) -> None:
        for queue, queue_offset, entries in writes:
            queue.mark_written(queue_offset + len(entries) // CQ_ENTRY_BYTES)
            if not queue.tail_bytes:
                self._dirty.discard(queue)

    def _next_verify_offset(self) -> int:
        if self.dispatched_offset - self._verify_offset > VERIFY_BYTES_MAX and self.offset >= 0:
            self._verify_offset = self.offset
        return max(self._verify_offset, self._commit_log.min_offset)

    def take_over(self, job: CheckpointJob, now_ms: int) -> None:
        """Release the entries that a finished job has written to the disk."""
        self._elapsed_ms = max(0, now_ms - self._last_ms)
        self._release(job.writes)
        self._spilled.clear()
        self._spilled_folders.clear()
        self._index.mark_flushed(job.index_flushes)
        self._flusher.note_flushed(job.flush)
        job.seal.done()
        self.offset = job.progress.offset
        self._deletions.forget(job.deletion_count, job.progress.offset)
        self._unsaved_count -= job.dispatched_count
        self._is_pressed = False

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
