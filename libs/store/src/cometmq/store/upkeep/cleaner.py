# SPDX-License-Identifier: Apache-2.0
"""Retention: measure the disk, delete old files, and trim queues and index.

Three jobs run one after the other: look (disk usage and file ages), trim (each queue's new
minimum), remove. After `look`, the loop decides which log files to delete. After `trim`, it drops
these files and raises the minimums in the same turn: no new reader can open such a file, and
consumers learn that its messages have expired. Readers that have a file open may finish.
"""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

from cometmq.store.errors import DiskError
from cometmq.store.log.log_scanner import first_record
from cometmq.store.parts import Parts
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.upkeep.flush import Flusher
from cometmq.store.upkeep.jobs import Job, Step, remove, with_result
from cometmq.store.upkeep.retention import FILES_PER_ROUND_MAX, DiskState, FileAges, decide
from cometmq.store.writing.pending_puts import has_passed
from cometmq.store.writing.write_state import Refusal

SACRIFICED_REMIND_MS: Final = 600_000
ROUNDS_ASKED_FOR: Final = 20  # rounds that a delete request remains active, as in RocketMQ


class _Plan(NamedTuple):
    """The log files that will be deleted."""

    file_count: int
    expired_count: int
    first: int
    """The first offset of the log after the deletion."""
    now_ms: int


class Cleaner:
    """Applies the retention rules of one store."""

    def __init__(self, parts: Parts, flusher: Flusher) -> None:
        self._parts = parts
        self._flusher = flusher
        self._disk = parts.disk
        self._commit_log = parts.commit_log
        self._last_ms = -parts.settings.clean_resource_interval
        self._ages = FileAges()
        self._rounds_asked_for = 0
        self._must_trim = False
        self._plan: _Plan | None = None
        self._doomed: list[str] = []
        self._doomed_checksums: list[str] = []
        self._was_above_ratio = False
        self._sacrificed_count = 0
        self._sacrificed_logged_ms = -SACRIFICED_REMIND_MS
        self.used_percent = 0

    def ask(self) -> None:
        """Request the deletion of expired files, whatever the hour."""
        self._rounds_asked_for = ROUNDS_ASKED_FOR
        self._last_ms = -self._parts.settings.clean_resource_interval

    def ask_trim(self) -> None:
        """Make the next round drop the entries of queues and index that point before the start of
        the log.
        """
        self._must_trim = True

    @property
    def doomed_count(self) -> int:
        """The number of files and folders that wait for their deletion."""
        return len(self._doomed)

    def doom(self, paths: list[str]) -> None:
        """Queue files and folders for deletion."""
        self._doomed += paths

    def deletion(self) -> Job | None:
        """Return the job that deletes queued files or prepares a deletion; None if neither is due.

        Queued files must be deleted before the next checkpoint, which may create a file of the same
        name.
        """
        if self._doomed:
            return self._removal()
        if self._plan is not None or self._must_trim:
            self._must_trim = False
            plan = self._plan
            minimums = partial(self._minimums, plan)
            return with_result("trim", minimums, partial(self._take_minimums, plan))
        return None

    def _removal(self) -> Step:
        paths, self._doomed = self._doomed, []
        sums, self._doomed_checksums = self._doomed_checksums, []
        # Checksums without their log file prove a loss (`recovery/trust.py`).
        run = partial(remove, self._disk, paths, sums, self._parts.layout.checksums)
        return Step("remove", run, self._note_removed)

    def remove_at_end(self) -> None:
        """Delete all queued files and ignore failures; blocks."""
        if not self._doomed:
            return
        try:
            self._removal().run()
        except DiskError as error:
            self.note_failed("remove", error)

    def job(self, now_ms: int) -> Job | None:
        """Return the job that begins a round, or None if it is not due."""
        self._ages.note(now_ms, self._parts.monotonic_ms())
        interval_ms = self._parts.settings.clean_resource_interval
        if has_passed(interval_ms, since_ms=self._last_ms, now_ms=now_ms):
            self._last_ms = now_ms
            return with_result("look", self._look, partial(self._take, now_ms))
        return None

    def _look(self) -> DiskState:
        """Read how full the disk is and how old the oldest files are; blocks."""
        used, files = self._used_percent(), self._commit_log.files
        timestamps: list[int] = []
        for start in range(files.first + files.file_size, files.end, files.file_size):
            scan = first_record(files, start)
            if scan is None or len(timestamps) >= FILES_PER_ROUND_MAX:
                break
            timestamps.append(scan.store_timestamp)
        return DiskState(used, timestamps, self._surplus_bytes())

    def _surplus_bytes(self) -> int | None:
        usage = self._disk.usage(self._parts.layout.commit_log)
        ratio = self._parts.settings.disk_space_clean_forcibly_ratio
        surplus = usage.used - (usage.used + usage.available) * ratio // 100
        return surplus if surplus > 0 else None

    def measure(self) -> None:
        """Update the disk usage after a failed write to this file system.

        The disk may have filled up since the last measurement, and refusals must report the current
        figure.
        """
        try:
            self.used_percent = self._used_percent()
        except DiskError as error:
            self.note_failed("measure", error)

    def _used_percent(self) -> int:
        layout = self._parts.layout
        folders = layout.commit_log, layout.consume_queue
        return max(self._disk.usage(folder).percent for folder in folders)

    def _take(self, now_ms: int, state: DiskState | None, error: Exception | None) -> None:
        """Decide which log files to delete; `deletion` returns the job that does it."""
        if state is None:
            self.note_failed("look", error)
            return
        self.used_percent = state.used_percent
        reserved_ms = self._parts.settings.file_reserved_time * 3_600_000
        decision = decide(
            self._parts.settings,
            state._replace(end_timestamps=self._ages.known(state.end_timestamps, now_ms)),
            now_ms,
            believed_ms=self._ages.believed_ms(now_ms, reserved_ms=reserved_ms),
            is_asked_for=self._rounds_asked_for > 0,
        )
        self._rounds_asked_for = max(0, self._rounds_asked_for - 1)
        self._note_levels(is_full=decision.is_full, is_above=decision.is_above_clean_ratio)
        count = min(decision.delete_count, self._synced_count())
        if count:
            files = self._commit_log.files
            first = files.first + count * files.file_size
            self._plan = _Plan(count, decision.expired_count, first, now_ms)
        else:
            self._report_sacrificed(now_ms)

    def _is_valid(self, plan: _Plan) -> bool:
        """Return whether the log still begins at the same offset, and no sync needs the files."""
        files = self._commit_log.files
        is_same = files.first + plan.file_count * files.file_size == plan.first
        return is_same and plan.file_count <= self._synced_count()

    def _forget_files(self, plan: _Plan) -> None:
        """Stop using the files of a plan, and queue them for deletion."""
        files = self._commit_log.files
        paths = self._commit_log.forget_first(plan.file_count)
        starts = range(files.first - len(paths) * files.file_size, files.first, files.file_size)
        self._doomed += paths
        self._doomed_checksums += self._parts.checksums.take_paths(starts)
        self._parts.log.info("files.expired", count=len(paths), first=paths[0])
        self._sacrificed_count += max(0, len(paths) - plan.expired_count)
        self._report_sacrificed(plan.now_ms)

    def _synced_count(self) -> int:
        files = self._commit_log.files
        return max(0, self._flusher.needed_from - files.first) // files.file_size

    def _note_levels(self, *, is_full: bool, is_above: bool) -> None:
        if self._parts.write_state.set(Refusal.DISK_FULL, holds=is_full):
            if is_full:
                self._parts.log.error("disk.full", used_percent=self.used_percent)
            else:
                self._parts.log.info("disk.freed", used_percent=self.used_percent)
        if is_above and not self._was_above_ratio:
            self._parts.log.warning("disk.filling", used_percent=self.used_percent)
        self._was_above_ratio = is_above

    def _report_sacrificed(self, now_ms: int) -> None:
        """Warn that files were deleted before they expired, with one warning per interval."""
        since_ms = self._sacrificed_logged_ms
        is_due = has_passed(SACRIFICED_REMIND_MS, since_ms=since_ms, now_ms=now_ms)
        if not (self._sacrificed_count and is_due):
            return
        self._parts.log.warning(
            "files.sacrificed",
            count=self._sacrificed_count,
            bytes=self._sacrificed_count * self._commit_log.files.file_size,
            used_percent=self.used_percent,
            advice="above diskSpaceCleanForciblyRatio, the oldest files are deleted before"
            " fileReservedTime, with messages that nobody has read: free space, or use a larger"
            " disk; cleanFileForciblyEnable=false refuses new messages instead",
        )
        self._sacrificed_count, self._sacrificed_logged_ms = 0, now_ms

    def _minimums(self, plan: _Plan | None) -> list[tuple[ConsumeQueue, int]]:
        """Find the new first offset of each queue; blocks."""
        first = self._commit_log.min_offset if plan is None else plan.first
        queues = list(self._parts.queues.queues.values())
        return [(queue, queue.first_at(first)) for queue in queues]

    def _take_minimums(
        self,
        plan: _Plan | None,
        minimums: list[tuple[ConsumeQueue, int]] | None,
        error: Exception | None,
    ) -> None:
        """Forget the files of the plan, and the entries of queues and index that point before the
        start of the log. If queues cannot be read, a full disk still needs the deletion.
        """
        if minimums is None:
            self.note_failed("trim", error)
        self._plan = None
        if plan is not None:
            if not self._is_valid(plan):
                return  # the next round makes a new plan
            self._forget_files(plan)
        log_first = self._commit_log.min_offset
        for queue, queue_offset in minimums or ():
            self._doomed += queue.trim(queue_offset, log_first)
        self._doomed += self._parts.index.remove_before(log_first)

    def note_failed(self, name: str, error: Exception | None) -> None:
        """Log that a step failed; the next round retries it."""
        self._parts.log.warning("cleaning.failed", step=name, error=str(error))

    def _note_removed(self, error: Exception | None) -> None:
        if error is not None:
            self.note_failed("remove", error)
