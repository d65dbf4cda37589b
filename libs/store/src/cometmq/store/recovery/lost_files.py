# SPDX-License-Identifier: Apache-2.0
"""Finds consume queues that have lost a file other than the last one, by comparing them with the
log.

The loss of a last file is found by the number of entries (`start.py`).
"""

from typing import Final

from cometmq.remoting.message.record import Scan
from cometmq.store.log.log_scanner import LogScanner
from cometmq.store.parts import Parts
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.queue_files import FILLER_SIZE
from cometmq.store.settings import CQ_ENTRY_BYTES
from cometmq.store.writing.append import UNQUEUED

HEAD_BYTES_MAX: Final = 64 << 20
"""Number of bytes at the head of the log that are searched, for all queues together; this takes 0.3
s. A queue whose first file begins late in the log usually has not lost one, because its earlier
files have expired.
"""


def cut_at_lost_files(parts: Parts) -> list[ConsumeQueue]:
    """Remove the files after lost ones; return their queues, which the caller rebuilds."""
    headless = _headless(parts)
    found = []
    for queue in parts.queues.queues.values():
        files = queue.files
        is_headless = queue in headless
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


def _headless(parts: Parts) -> list[ConsumeQueue]:
    """Return the queues that have a message in the log that precedes their first file.

    Files are deleted when all their messages have expired, so the log usually begins after the
    first entry of a queue's first file. The other queues are compared with the head of the log,
    which is read once.
    """
    log = parts.commit_log.files
    doubtful: dict[tuple[str, int], tuple[ConsumeQueue, int]] = {}
    for queue in parts.queues.queues.values():
        first = queue.files.first // CQ_ENTRY_BYTES
        if not first or not queue.files.files:
            continue
        end, size, _ = queue.files.entry(first)
        if size not in {0, FILLER_SIZE} and log.first <= end < log.end:
            doubtful[queue.topic, queue.queue_id] = queue, end
    if not doubtful:
        return []
    end = min(max(end for _, end in doubtful.values()), log.first + HEAD_BYTES_MAX)
    found = []
    for scan in LogScanner(log, log.first, check_crc=False, end=end):
        name = scan.topic, scan.queue_id
        if name in doubtful and _precedes(scan, doubtful[name][0]):
            found.append(doubtful.pop(name)[0])
    return found


def _precedes(scan: Scan, queue: ConsumeQueue) -> bool:
    """Return whether a record belongs before the first file of its queue, and was not trimmed."""
    first = queue.files.first // CQ_ENTRY_BYTES
    if scan.sys_flag & UNQUEUED or scan.queue_offset >= first:
        return False
    return not any(
        scan.queue_offset < floor.queue_offset and scan.physical_offset < floor.place
        for floor in queue.floors
    )
