# SPDX-License-Identifier: Apache-2.0
"""Schedules the background work of a store: checkpoints, new and expired files, recovery from disk
errors.

Each kind of work returns a job when it is due. `jobs` asks them in order of urgency; only one job
runs at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from cometmq.store.errors import DiskError
from cometmq.store.index.index import ROWS_MAX, Index
from cometmq.store.layout import TEMPORARY_SUFFIX
from cometmq.store.parts import Parts
from cometmq.store.upkeep.checkpointer import STOP_QUEUES_MAX, Checkpointer, is_sync_failure
from cometmq.store.upkeep.cleaner import Cleaner
from cometmq.store.upkeep.flush import Flusher
from cometmq.store.upkeep.jobs import Job, Step, probe
from cometmq.store.writing.append import Batch
from cometmq.store.writing.pending_puts import has_passed
from cometmq.store.writing.write_state import Refusal


class Indexing:
    """Writes the index of a running store."""

    __slots__ = ("_index", "_on_failure", "has_failed")

    def __init__(self, index: Index, on_failure: Callable[[Exception], None]) -> None:
        """Call `on_failure` when the disk refuses keys; it makes the store refuse further puts."""
        self._index = index
        self._on_failure = on_failure
        self.has_failed = False
        """Whether the disk has refused keys, so that no checkpoint may count them."""

    def add(self, batch: Batch) -> None:
        """Add the keys of a batch, or only queue them if they are many."""
        try:
            self._index.remember(batch.keys, is_large=batch.is_large)
        except DiskError as error:
            self._fail(error)

    def add_more(self) -> bool:
        """Add some of the queued keys; return whether more can be added."""
        return self._catch_up() is False

    def retry(self) -> bool:
        """Add some of the queued keys; return whether none is left."""
        if not self._catch_up():
            return False
        self.has_failed = False
        return True

    def _catch_up(self) -> bool | None:
        try:
            return self._index.catch_up(ROWS_MAX)
        except DiskError as error:
            self._fail(error)
            return None

    def _fail(self, error: DiskError) -> None:
        self.has_failed = True
        self._on_failure(error)


RETRY_INTERVAL_MS: Final = 1_000


class Housekeeping:
    """Schedules the jobs of one store."""

    def __init__(self, parts: Parts, *, flusher: Flusher, checkpointer: Checkpointer) -> None:
        self._parts = parts
        self._commit_log = parts.commit_log
        self._write_state = parts.write_state
        self._log = parts.log
        self._flusher = flusher
        self._checkpointer = checkpointer
        self._running: Job | None = None
        self._failed_segments: list[tuple[int, int]] = []
        self._last_try_ms = 0
        self._create_failed_ms = -RETRY_INTERVAL_MS
        self._now_ms = 0
        self.indexing = Indexing(parts.index, self._note_derived_failed)
        self.cleaner = Cleaner(parts, flusher)

    def jobs(self, now_ms: int) -> list[Job]:
        """Return the most urgent job that is due, or nothing while a job is running."""
        self._now_ms = now_ms
        if self._running is not None or self._write_state.has(Refusal.SYNC_FAILED):
            return []
        job = self._next_job(now_ms)
        if job is None:
            return []
        self._running = Step(job.name, job.run, partial(self._note_done, job))
        return [self._running]

    def _next_job(self, now_ms: int) -> Job | None:
        # Deletions come first, because a full disk may need them to recover.
        deletion = self.cleaner.deletion()
        if deletion is not None:
            return deletion
        if self._write_state.has(Refusal.LOG_WRITE_FAILED):
            if not has_passed(RETRY_INTERVAL_MS, since_ms=self._last_try_ms, now_ms=now_ms):
                return self.cleaner.job(now_ms)
            self._last_try_ms = now_ms
            run = partial(probe, self._commit_log.files, self._failed_segments)
            return Step("probe", run, self._note_probed)
        if self._must_create(now_ms):
            return self._create_job()
        interval_ms = self._parts.settings.flush_interval_consume_queue
        if self._checkpointer.is_begun or (
            self._checkpointer.is_due(now_ms, interval_ms) and self.indexing.retry()
        ):
            return self._checkpointer.plan(now_ms, self._note_checkpoint, self._note_spilled)
        if self._checkpointer.must_spill:
            return self._checkpointer.plan_spill(self._note_spilled)
        return self.cleaner.job(now_ms)

    def _note_done(self, job: Job, error: Exception | None) -> None:
        self._running = None
        job.done(error)

    # Failing writes

    def note_write_failed(self, error: DiskError, batch: Batch) -> None:
        """Refuse writes until a probe has overwritten the ranges of the failed write."""
        self._failed_segments = [
            (offset, sum(map(len, records))) for offset, records in batch.segments
        ]
        self._last_try_ms = self._now_ms
        self.cleaner.measure()
        if self._write_state.set(Refusal.LOG_WRITE_FAILED, holds=True):
            self._log.error(
                "log.write_failed", error=str(error), used_percent=self.cleaner.used_percent
            )

    def _note_probed(self, error: Exception | None) -> None:
        self.cleaner.measure()
        if is_sync_failure(error):
            self._fail_for_good(error)
        elif error is None:
            self._failed_segments = []
            self._commit_log.forget_view()
            if self._write_state.set(Refusal.LOG_WRITE_FAILED, holds=False):
                self._log.info("log.write_recovered")

    def _fail_for_good(self, error: Exception | None) -> None:
        self._flusher.fail(error if error is not None else RuntimeError("sync failed"))

    def _note_derived_failed(self, error: Exception) -> None:
        self.cleaner.measure()
        if self._write_state.set(Refusal.QUEUE_WRITE_FAILED, holds=True):
            self._log.error("queues.write_failed", error=str(error))

    # Checkpoints

    def _note_checkpoint(self, error: Exception | None) -> None:
        if is_sync_failure(error):
            self._fail_for_good(error)
        elif error is not None:
            self._note_derived_failed(error)
        # Else the checkpoint may have been planned before the disk refused the keys.
        elif not self.indexing.has_failed and self._write_state.set(
            Refusal.QUEUE_WRITE_FAILED, holds=False
        ):
            self._log.info("queues.write_recovered")

    def _note_spilled(self, error: Exception | None) -> None:
        if error is not None:
            self._checkpointer.abandon()
            self._note_derived_failed(error)

    # Files of the log

    def _must_create(self, now_ms: int) -> bool:
        files = self._commit_log.files
        left = files.end - self._commit_log.end
        # Half a file is enough notice: creating one takes milliseconds, filling 512 MiB takes
        # seconds.
        if not files.files or left >= files.file_size // 2:
            return False
        return has_passed(RETRY_INTERVAL_MS, since_ms=self._create_failed_ms, now_ms=now_ms)

    def _create_job(self) -> Job:
        files = self._commit_log.files
        path = files.path(files.end)
        prepared = self._parts.layout.temporary(f"{path}.next")
        temporary = f"{prepared}{TEMPORARY_SUFFIX}"
        # The loop may create the file itself meanwhile and write messages to it, so the new one has
        # another name until the loop renames it.
        run = partial(self._parts.disk.create, prepared, files.file_size, temporary=temporary)
        return Step("create-file", run, partial(self._note_created, path, prepared))

    def _note_created(self, path: str, prepared: str, error: Exception | None) -> None:
        """Adopt the prepared file, unless a put could not wait and has created the file itself."""
        disk, files = self._parts.disk, self._commit_log.files
        if error is None:
            try:
                if path == files.path(files.end):
                    disk.rename(prepared, path)
                    files.adopt_next(disk.open(path))
                    self._commit_log.forget_view()
                else:
                    disk.remove(prepared)
            except DiskError as failed:
                error = failed
        if error is not None:
            self._create_failed_ms = self._now_ms
            self._log.warning("file.create_failed", error=str(error))

    # Topics and shutdown

    def delete_topic(self, topic: str, log_end: int) -> None:
        """Drop a topic's queues and delete their files; its records before `log_end` are ignored
        from now on.
        """
        queues = list(self._parts.queues.of_topic(topic))
        if queues:
            self._note_deletion(topic, log_end)
        for queue in queues:
            self._checkpointer.forget(queue)
        self.cleaner.doom(self._parts.queues.remove_topic(topic))

    def _note_deletion(self, topic: str, log_end: int) -> None:
        try:
            self._parts.deletions.add(topic, log_end)
        except DiskError as error:
            self.cleaner.note_failed("note a deletion", error)  # it frees space on a full disk

    def finish(self) -> bool:
        """Write everything to the disk; return whether all writes succeeded.

        If that would take long, sync only the log, from which the next start recovers the rest.
        """
        # The kernel may have dropped dirty pages: only recovery can determine what reached the
        # disk.
        if self._write_state.has(Refusal.SYNC_FAILED):
            return False
        try:
            if self._is_stop_long():
                self._flusher.plan().run()
                return False
            self.cleaner.remove_at_end()
            self._checkpointer.save_all(self._now_ms)
            self._remove_unused_file()
        except DiskError as error:
            self._flusher.fail(error)
            return False
        finally:
            self._checkpointer.close()
        return True

    def _is_stop_long(self) -> bool:
        new_count, doomed_count = self._checkpointer.unsaved.new_count, self.cleaner.doomed_count
        is_long = max(new_count, doomed_count) > STOP_QUEUES_MAX
        if is_long:
            self._log.info("stop.shortened", new_queues=new_count, deleted_paths=doomed_count)
        return is_long

    def _remove_unused_file(self) -> None:
        """Remove the log file prepared in advance, as RocketMQ does on shutdown."""
        files = self._commit_log.files
        last_start = files.end - files.file_size
        if len(files.files) > 1 and last_start >= self._commit_log.end:
            files.remove_from(last_start)
