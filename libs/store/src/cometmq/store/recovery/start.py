# SPDX-License-Identifier: Apache-2.0
"""Chooses where recovery starts: at the first record that may be incomplete."""

from enum import StrEnum
from typing import NamedTuple

from cometmq.store.log.checksums import spans
from cometmq.store.log.log_scanner import file_of_time, find_record, first_record, follow_headers
from cometmq.store.parts import Parts
from cometmq.store.queues.consume_queue import last_entry
from cometmq.store.recovery.checkpoint import Checkpoint, Progress


class StartReason(StrEnum):
    """Why recovery starts at its offset."""

    EMPTY_LOG = "empty-log"
    PROGRESS = "progress"
    QUEUES_LOST = "queues-lost"
    INDEX_LOST = "index-lost"
    QUEUE_END = "queue-end"
    CHECKPOINT = "checkpoint"
    DAMAGED_BEFORE_PROGRESS = "damaged-before-progress"


class Start(NamedTuple):
    """The first record that may be incomplete, and the reason."""

    offset: int
    reason: StartReason


class LastRun(NamedTuple):
    """The state in which the last program left the store."""

    checkpoint: Checkpoint
    progress: Progress | None
    was_clean: bool

    @property
    def own_offset(self) -> int | None:
        """The offset up to which this program has saved the queues; None if another program has
        used the store since.
        """
        if self.progress is not None:
            return self.progress.offset
        return None if self.checkpoint.log_timestamp else 0


def choose_start(parts: Parts, last_run: LastRun) -> Start:
    """Choose the first record that may be incomplete.

    | log | progress | headers before it | queues, index | last stop | start at |
    |---|---|---|---|---|---|
    | empty | - | - | - | - | 0: all derived data is dropped |
    | yes | yes | whole | complete | - | the progress |
    | yes | yes | whole | entries or files missing | - | the log's first record |
    | yes | yes | damaged, but located | complete | crash | the progress: readers leave it out |
    | yes | yes | damaged | - | crash | the verify offset: the scan finds the damage |
    | yes | none | - | - | clean | the end of the newest record in a queue |
    | yes | none | - | - | crash | the newest file that the checkpoint covers |
    """
    files = parts.commit_log.files
    if not files.files:
        return Start(0, StartReason.EMPTY_LOG)
    progress = last_run.progress
    if progress is not None and files.first <= progress.offset <= files.end:
        verify = max(progress.verify_offset, files.first)
        # Only after a crash: a clean stop has synced everything before the progress.
        if (
            not last_run.was_clean
            and follow_headers(files, verify, progress.offset) != progress.offset
            and not _is_located(parts, verify, progress.offset)
        ):
            return Start(verify, StartReason.DAMAGED_BEFORE_PROGRESS)
        if not _has_all_entries(parts, progress, was_clean=last_run.was_clean):
            return Start(files.first, StartReason.QUEUES_LOST)
        if not _has_index(parts, progress):
            return Start(files.first, StartReason.INDEX_LOST)
        return Start(progress.offset, StartReason.PROGRESS)
    if last_run.was_clean:
        return Start(_queue_end(parts), StartReason.QUEUE_END)
    return Start(file_of_time(files, last_run.checkpoint.min_timestamp), StartReason.CHECKPOINT)


def _is_located(parts: Parts, begin: int, end: int) -> bool:
    """Return whether checksums show which bytes of a range are damaged, and whole records follow
    all damage; blocks.
    """
    files = parts.commit_log.files
    checks = [parts.checksums.check(span) for span in spans(files, begin, end)]
    if any(it.unknown for it in checks) or not any(it.damaged for it in checks):
        return False
    while (at := follow_headers(files, begin, end)) < end:
        found = find_record(files, at + 1)
        if found is None or found.physical_offset >= end:
            return False
        begin = found.physical_offset
    return at == end


def _has_all_entries(parts: Parts, progress: Progress, *, was_clean: bool) -> bool:
    queues, log_first = parts.queues.queues.values(), parts.commit_log.files.first
    for queue in queues:
        if was_clean:
            queue.measure(log_first, progress.offset)
        else:
            queue.recover(log_first, progress.offset)
    count = sum(queue.max_offset for queue in queues)
    return count == progress.entry_count


def _has_index(parts: Parts, progress: Progress) -> bool:
    """Return whether the newest index file still exists; older ones may have expired."""
    if not progress.index_name or not parts.settings.message_index_enable:
        return True
    return any(file.name == progress.index_name for file in parts.index.files)


def _queue_end(parts: Parts) -> int:
    """Return the end of the newest record that any queue refers to, if the record is valid."""
    files = parts.commit_log.files
    end = files.first
    for queue in parts.queues.queues.values():
        queue.measure(files.first, files.end)
        entry = last_entry(queue)
        if entry is not None and entry.physical_offset + entry.size > end:
            scan = first_record(files, entry.physical_offset)
            # An entry alone proves nothing: the log must hold a record of that size at that
            # offset.
            if scan is not None and scan.size == entry.size:
                end = entry.physical_offset + entry.size
    return end
