# SPDX-License-Identifier: Apache-2.0
"""Flush policy: decides when the log is synced, and which puts a sync completes.

The sync itself is a job. Group commit: one sync covers every put that was written before the sync
began. While it runs, the next sync is planned again with each commit, so that it can begin as soon
as the running one has ended.

A failed sync is fatal for the store: the kernel may have dropped the dirty pages, so a later
successful sync would prove nothing. A file that could not be opened, because too many are open, was
not synced at all; that sync is repeated.

The kernel reports a failed writeback once to each open file description of the file, or to the
first that is opened later. If two threads synced one description, only one of them would get the
report, and the other would treat lost pages as durable. Hence the rule: code that reports bytes as
durable syncs them through a description that only this code syncs, and that was open before the
first sync of the bytes.

- Log files and notes of deletions have two syncers, the flusher (a worker, or the native thread)
  and the checkpoint. `plan` opens a description for each; both stay open, whatever the limit of
  open files, until a sync covers the end of the file.
- Probes and truncations sync these files through the description that writes use. If such a sync
  fails, the store fails, as does the next sync of the flusher and of the checkpoint.
- A block of the log that is repaired is synced through a file object of its own.
- The files of queues, index and progress are synced by checkpoints only; if such a sync fails, the
  store fails. Checksums and repaired entries need no such care: if they are lost, they are computed
  or found again.
- The entries of a folder are written through the file system's journal, whose errors are permanent.

Between syncs, writeback of the log is started early. While a sync writes many pages, a file system
with a journal makes appends to the same file wait, and with them all senders.
"""

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Final

from cometmq.store.disk import DiskFile
from cometmq.store.errors import DiskError
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.parts import Parts
from cometmq.store.upkeep.jobs import FlushJob, Job, Step
from cometmq.store.writing.pending_puts import Condition, PendingPuts, has_passed
from cometmq.store.writing.write_state import Refusal

PAGE_BYTES: Final = 4096
AHEAD_BYTES: Final = 256 << 10
SMALL_BYTES: Final = 32 << 10
"""Maximum size of a batch for which zeros are written."""
_ZEROS: Final = bytes(AHEAD_BYTES + PAGE_BYTES)


class ZerosAhead:
    """Writes zeros after the end of the log before small batches are synced.

    The files of the log are sparse. If a sync writes bytes to new blocks, it waits for the journal
    of the file system; if they overwrite zeros, only for the bytes. With ext4, it takes 97 instead
    of 138 us after messages of 260 bytes, and 138 instead of 255 us after 16 KiB. Large batches
    gain nothing, because all bytes are written twice.
    """

    __slots__ = ("_end", "_log", "_seen")

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._end = 0
        self._seen = 0

    def write(self) -> None:
        """Write zeros if the batch since the last call is small and the next one may need blocks.

        Call this when nothing has been written after the end of the log.
        """
        log, files = self._log, self._log.files
        end, size = log.end, log.end - self._seen
        self._seen = end
        start = max(end, self._end)
        if size > SMALL_BYTES or start - end >= SMALL_BYTES or start >= files.end:
            return
        position = (start - files.first) % files.file_size
        rest = files.file_size - position
        count = min(AHEAD_BYTES + -(position + AHEAD_BYTES) % PAGE_BYTES, rest)
        self._end = start + count
        try:
            files.file_at(start).write(position, [memoryview(_ZEROS)[:count]])
        except DiskError:
            return  # the disk is full: messages may still fit, and are refused otherwise

    def note_truncated(self, offset: int) -> None:
        """Note that the file has no blocks after this offset any more."""
        self._end = self._seen = min(self._end, offset)


OPEN_RETRY_MS: Final = 100
WRITEBACK_BYTES: Final = 4 << 20
"""Size of the pieces whose writeback is started before they are synced."""


class Flusher:
    """Decides when to sync and completes the puts that are waiting for a sync."""

    def __init__(
        self,
        parts: Parts,
        pending: PendingPuts,
        *,
        flushed_offset: int,
    ) -> None:
        """Assume that only the bytes before `flushed_offset` are on the disk.

        After a kill, the bytes beyond it may exist only in the page cache.
        """
        self._parts = parts
        self._commit_log = parts.commit_log
        self._pending = pending
        self._apart: dict[DiskFile, tuple[DiskFile, DiskFile]] = {}
        """For each file to sync, the file objects of the flusher and of the checkpoint."""
        self._wanted: Sequence[DiskFile] = ()  # the keys of `_apart`, unless a file is missing
        self._outstanding: deque[FlushJob] = deque()  # the running sync and the next one
        self._last_flush_ms = 0
        self._last_thorough_ms = 0
        self._refused_ms: int | None = None  # when a file could not be opened
        self._deletions_version = 0  # of the notes of deleted topics that are on the disk
        self._named_end = -1  # the folder is synced for all files before this offset
        self._writeback_offset = flushed_offset  # writeback was started for all pages before it
        self.zeros_ahead = ZerosAhead(self._commit_log)
        self.is_writing_back = False
        self.flushed_offset = flushed_offset
        self.flush_count = 0
        self.has_failed = False

    @property
    def needed_from(self) -> int:
        """The offset from which a running or future sync still needs the files."""
        running = self._outstanding[0] if self._outstanding else None
        return self.flushed_offset if running is None else min(running.start, self.flushed_offset)

    @property
    def has_pages(self) -> bool:
        """Whether the unsynced bytes fill so many pages that a sync is due before the thorough
        interval.
        """
        pages = self._parts.settings.flush_commit_log_least_pages
        return self._commit_log.end - self.flushed_offset >= max(1, pages * PAGE_BYTES)

    def job(self, now_ms: int | None = None, *, is_forced: bool = False) -> FlushJob | None:
        """Return the sync that is due, or None; run it on a worker, then call `done`.

        While a sync runs and puts wait for messages that no job covers, return the next sync. It
        replaces a next sync that was returned before.
        """
        if now_ms is None:
            now_ms = self._parts.monotonic_ms()
        settings = self._parts.settings
        # First, because puts must time out even while a sync hangs or after one has failed.
        self._pending.expire(now_ms, (settings.sync_flush_timeout, settings.slave_timeout))
        if self.has_failed or not self._is_wanted(now_ms, is_forced=is_forced):
            return None
        self._last_flush_ms = now_ms
        job = self.plan()
        if len(self._outstanding) > 1:
            self._outstanding.pop()
        self._outstanding.append(job)
        return job

    def _is_wanted(self, now_ms: int, *, is_forced: bool) -> bool:
        refused_ms = self._refused_ms
        if refused_ms is not None and not has_passed(
            OPEN_RETRY_MS, since_ms=refused_ms, now_ms=now_ms
        ):
            return False
        if self._outstanding:
            planned = self._outstanding[-1].offset
            return self._pending.is_needed(Condition.FLUSHED, beyond=planned)
        if refused_ms is not None or self._is_due(now_ms):
            return True
        return is_forced and self._commit_log.end > self.flushed_offset

    def _note_writeback(self, _error: Exception | None) -> None:
        """Note that the writeback of the next piece may start; errors are left to the sync."""
        self.is_writing_back = False

    def writeback_job(self) -> Job | None:
        """Return the writeback that is due, or None; it may run at the same time as a sync.

        The last page is left out, because the next append changes it.
        """
        log, files = self._commit_log, self._commit_log.files
        start = max(self._writeback_offset, self.flushed_offset)
        if log.end - start < WRITEBACK_BYTES or self.is_writing_back or self.has_failed:
            return None
        number = (log.end - 1 - files.first) // files.file_size
        base = files.first + number * files.file_size
        start = max(start - base, 0)  # the sync writes the rest of an earlier file
        stop = (log.end - base) // PAGE_BYTES * PAGE_BYTES
        self._writeback_offset = base + stop
        if start == stop:  # the newest file has no whole page yet
            return None
        self.is_writing_back = True
        write = partial(files.files[number].start_writeback, start, stop - start)
        return Step("writeback", write, self._note_writeback)

    def plan(self, *, is_checkpoint: bool = False) -> FlushJob:
        """Return the job that syncs everything written so far."""
        log, files = self._commit_log, self._commit_log.files
        file_end = files.end
        # Start with the file of the first unsynced byte: a commit may have filled it and begun the
        # next.
        start = (self.flushed_offset - files.first) // files.file_size
        stop = -(-(log.end - files.first) // files.file_size)
        log_files = files.files[max(0, start) : stop]
        # Before the records of a new topic of the same name.
        deletions = self._parts.deletions
        has_notes = deletions.version != self._deletions_version
        wanted = [deletions.file, *log_files]
        refused = None if wanted == self._wanted else self._open_apart(wanted)
        wanted = wanted if has_notes else log_files
        return FlushJob(
            disk=self._parts.disk,
            files=[] if refused else [self._apart[file][is_checkpoint] for file in wanted],
            folder=files.folder if file_end != self._named_end else None,
            start=self.flushed_offset,
            offset=log.end,
            file_end=file_end,
            deletions=deletions.version,
            refused=refused,
        )

    def _open_apart(self, wanted: Sequence[DiskFile]) -> DiskError | None:
        """Open the descriptions of these files that are missing, and drop all others.

        Return the error if a file cannot be opened; neither of its descriptions is kept then.
        """
        disk, self._wanted = self._parts.disk, ()
        self._apart = {file: pair for file, pair in self._apart.items() if file in wanted}
        try:
            for file in wanted:
                if file not in self._apart:
                    pair = disk.open_apart(file.path), disk.open_apart(file.path)
                    self._apart[file] = pair
        except DiskError as error:
            return error
        self._wanted = wanted
        return None

    def _is_due(self, now_ms: int) -> bool:
        if self._commit_log.end <= self.flushed_offset:
            return False
        if self._pending.is_needed(
            Condition.FLUSHED
        ):  # SYNC_FLUSH: a put is waiting, so no interval applies
            return True
        settings = self._parts.settings
        thorough_ms = settings.flush_commit_log_thorough_interval
        if has_passed(thorough_ms, since_ms=self._last_thorough_ms, now_ms=now_ms):
            self._last_thorough_ms = now_ms
            return True
        if not self.has_pages:
            return False
        interval_ms = settings.flush_interval_commit_log
        return has_passed(interval_ms, since_ms=self._last_flush_ms, now_ms=now_ms)

    def done(self, job: FlushJob, error: Exception | None = None) -> None:
        """Complete the puts that a finished job has synced."""
        if job in self._outstanding:  # not if it was replaced just after it had begun
            self._outstanding.remove(job)
        if isinstance(error, DiskError) and error.is_open_refused:
            self._note_refused(error)
            return
        if error is not None:
            self.fail(error)
            return
        self._refused_ms = None
        self.flush_count += 1
        self.note_flushed(job)

    def note_flushed(self, job: FlushJob) -> None:
        """Complete the puts whose records are on the disk.

        After a failed sync this does nothing: the kernel reports a lost page to only one sync, so a
        later success proves nothing.
        """
        if self.has_failed:
            return
        self.flushed_offset = max(self.flushed_offset, job.offset)
        self._named_end = max(self._named_end, job.file_end)
        self._deletions_version = max(self._deletions_version, job.deletions)
        self._pending.advance(Condition.FLUSHED, job.offset)

    def _note_refused(self, error: DiskError) -> None:
        """Note that the sync must be repeated; the puts keep waiting, and are answered at their
        timeout.
        """
        if self._refused_ms is None:
            self._parts.log.warning(
                "sync.postponed",
                error=str(error),
                action="raise the limit of open files (nofile)",
            )
        self._refused_ms = self._last_flush_ms

    def fail(self, error: Exception) -> None:
        """Fail all waiting puts; the store remains read-only."""
        self.has_failed = True
        parts = self._parts
        if parts.write_state.set(Refusal.SYNC_FAILED, holds=True):
            parts.log.error("store.failed", error=str(error), action="restart the broker")
        self._pending.fail()

    def note_truncated(self, offset: int) -> None:
        """Adopt the end of a truncated log."""
        self.flushed_offset = min(self.flushed_offset, offset)
        self._writeback_offset = min(self._writeback_offset, offset)
        self._pending.retreat(offset)
        self.zeros_ahead.note_truncated(offset)
        self._named_end = -1
