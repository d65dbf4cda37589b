# SPDX-License-Identifier: Apache-2.0
"""Finds consume queues that have lost files before the last one; the log proves their entries.

A lost last file shows in the number of entries (`start.py`).
"""

from cometmq.store.log.log_scanner import LogScanner
from cometmq.store.parts import Parts
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.queue_files import FILLER_SIZE
from cometmq.store.settings import CQ_ENTRY_BYTES
from cometmq.store.writing.append import UNQUEUED


def cut_at_lost_files(parts: Parts) -> list[ConsumeQueue]:
    """Remove the files behind lost ones; return the queues, which are to be rebuilt."""
    found = []
    for queue in parts.queues.queues.values():
        files = queue.files
        is_headless = _lacks_head(parts, queue)
        if not is_headless and not files.behind_gap:
            continue
        name = f"{queue.topic}/{queue.queue_id}"
        lost = files.first - files.file_size if is_headless else files.end
        parts.log.warning("queue.file_lost", queue=name, path=files.path(lost))
        files.remove_behind_gap()
        if is_headless:
            files.remove_from(files.first)
            files.first = 0
        found.append(queue)
    return found


def _lacks_head(parts: Parts, queue: ConsumeQueue) -> bool:
    """Return whether the log has a message of a queue that precedes its first file.

    Files whose messages have all expired are deleted, so the log usually begins behind the first
    entry of the first file that is left. If not, its head is read.
    """
    log, first = parts.commit_log.files, queue.files.first // CQ_ENTRY_BYTES
    if not first or not queue.files.files:
        return False
    end, size, _ = queue.files.entry(first)
    if size in {0, FILLER_SIZE} or not log.first <= end < log.end:
        return False
    name = queue.topic, queue.queue_id
    return any(
        (scan.topic, scan.queue_id) == name
        and not scan.sys_flag & UNQUEUED
        and scan.queue_offset < first
        and not any(
            scan.queue_offset < floor.queue_offset and scan.physical_offset < floor.place
            for floor in queue.floors
        )
        for scan in LogScanner(log, log.first, check_crc=False, end=end)
    )
