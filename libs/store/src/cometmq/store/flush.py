# SPDX-License-Identifier: Apache-2.0
"""When the log is synced, and who waits for it: a pure policy, the syncing is a job.

Group commit: one sync serves every put that was written before it began. A sync that fails is
fatal for the store, for the system may have dropped the pages: nothing is retried as if it had
not happened.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from cometmq.store.disk import Disk, DiskFile
from cometmq.store.pacing import has_passed
from cometmq.store.parts import Parts
from cometmq.store.results import PutDone, PutResult, PutStatus
from cometmq.store.settings import FlushDiskType

PAGE_BYTES: Final = 4096


class FlushJob:
    """Sync the log up to an offset: `run` on a worker thread, then the store's `flush_done`."""

    __slots__ = ("_disk", "_files", "_folder", "file_end", "offset", "start")

    def __init__(
        self,
        disk: Disk,
        files: list[DiskFile],
        folder: str | None,
        *,
        start: int,
        offset: int,
        file_end: int,
    ) -> None:
        """Take the files as they are now; `folder` is synced if a file came into it."""
        self._disk = disk
        self._files = files
        self._folder = folder
        self.start = start
        self.offset = offset
        self.file_end = file_end

    def run(self) -> None:
        """Wait until the disk has everything."""
        for file in self._files:
            file.sync()
        if self._folder is not None:
            self._disk.sync_folder(self._folder)


class _Waiter(NamedTuple):
    offset: int
    since_ms: int
    done: PutDone
    result: PutResult


class Flusher:
    """Decides when to sync and answers who waited."""

    __slots__ = (
        "_last_flush_ms",
        "_last_thorough_ms",
        "_log",
        "_named_end",
        "_parts",
        "_running",
        "_waiters",
        "flush_count",
        "flushed_offset",
        "has_failed",
        "on_failure",
    )

    def __init__(
        self, parts: Parts, on_failure: Callable[[Exception], None], *, flushed_offset: int
    ) -> None:
        """Begin with a log that is certainly on the disk up to an offset.

        After a kill what follows may be in the system's memory only.
        """
        self._parts = parts
        self._log = parts.commit_log
        self._waiters: deque[_Waiter] = deque()
        self._running: FlushJob | None = None
        self._last_flush_ms = 0
        self._last_thorough_ms = 0
        self._named_end = -1  # names of files before this offset are on the disk
        self.flushed_offset = flushed_offset
        self.flush_count = 0
        self.has_failed = False
        self.on_failure = on_failure

    @property
    def is_sync(self) -> bool:
        """Whether puts wait for the disk."""
        return self._parts.settings.flush_disk_type is FlushDiskType.SYNC_FLUSH

    @property
    def waiting_count(self) -> int:
        """Puts that wait for a sync."""
        return len(self._waiters)

    @property
    def needed_from(self) -> int:
        """Files that end before this offset are of no use to any sync, running or to come."""
        running = self._running
        return self.flushed_offset if running is None else min(running.start, self.flushed_offset)

    def wait(self, offset: int, now_ms: int, done: PutDone, result: PutResult) -> None:
        """Answer once the log is on the disk up to here, or the time is over."""
        self._waiters.append(_Waiter(offset, now_ms, done, result))

    def job(self, now_ms: int, *, is_forced: bool = False) -> FlushJob | None:
        """Return what to sync now, if anything; one job runs at a time."""
        self._expire(now_ms)
        if self._running is not None or self.has_failed:
            return None
        if not self._is_due(now_ms) and not (is_forced and self._log.end > self.flushed_offset):
            return None
        self._last_flush_ms = now_ms
        self._running = job = self.plan()
        return job

    def plan(self) -> FlushJob:
        """Return the job that syncs everything written so far."""
        log, files = self._log, self._log.files
        start = (self.flushed_offset - files.first) // files.file_size
        stop = -(-(log.end - files.first) // files.file_size)
        return FlushJob(
            self._parts.disk,
            files.files[max(0, start) : stop],
            files.folder if files.end != self._named_end else None,
            start=self.flushed_offset,
            offset=log.end,
            file_end=files.end,
        )

    def _is_due(self, now_ms: int) -> bool:
        dirty = self._log.end - self.flushed_offset
        if dirty <= 0:
            return False
        if self._waiters:
            return True
        settings = self._parts.settings
        thorough_ms = settings.flush_commit_log_thorough_interval
        if has_passed(thorough_ms, since_ms=self._last_thorough_ms, now_ms=now_ms):
            self._last_thorough_ms = now_ms
            return True
        if dirty < settings.flush_commit_log_least_pages * PAGE_BYTES:
            return False
        interval_ms = settings.flush_interval_commit_log
        return has_passed(interval_ms, since_ms=self._last_flush_ms, now_ms=now_ms)

    def _expire(self, now_ms: int) -> None:
        """Answer those who waited too long: stored, but perhaps not on the disk."""
        waiters = self._waiters
        timeout_ms = self._parts.settings.sync_flush_timeout
        while waiters and has_passed(timeout_ms, since_ms=waiters[0].since_ms, now_ms=now_ms):
            self._answer(waiters.popleft(), PutStatus.FLUSH_DISK_TIMEOUT)

    def done(self, job: FlushJob, error: Exception | None) -> None:
        """Answer everyone whose bytes a finished job has synced."""
        if job is self._running:
            self._running = None
        if error is not None:
            self.fail(error)
            return
        self.flush_count += 1
        self.note_flushed(job)

    def note_flushed(self, job: FlushJob) -> None:
        """Answer everyone whose bytes are on the disk.

        After a failure nobody knows: the system reports a lost page to one sync only.
        """
        if self.has_failed:
            return
        self.flushed_offset = max(self.flushed_offset, job.offset)
        self._named_end = max(self._named_end, job.file_end)
        waiters = self._waiters
        while waiters and waiters[0].offset <= job.offset:
            self._answer(waiters.popleft(), PutStatus.PUT_OK)

    def fail(self, error: Exception) -> None:
        """Answer everyone that their bytes are not safe."""
        self.has_failed = True
        self.on_failure(error)
        while self._waiters:
            self._answer(self._waiters.popleft(), PutStatus.SERVICE_NOT_AVAILABLE)

    def note_truncated(self, offset: int) -> None:
        """Follow a log that ends earlier now."""
        self.flushed_offset = min(self.flushed_offset, offset)
        self._named_end = -1

    @staticmethod
    def _answer(waiter: _Waiter, status: PutStatus) -> None:
        waiter.result.status = status
        waiter.done(waiter.result)
