# SPDX-License-Identifier: Apache-2.0
"""Recovery: bring log, queues and index into agreement when a store opens.

The log is the source of truth. Queues and index are truncated to the last checkpoint and rebuilt
from there, so recovery time is bounded by the amount of data since that checkpoint.

Two decisions are tables whose rows each have a test (docs/protocol/store.md#recovery):
`choose_start` (start.py) selects the first record that may be incomplete, `judge_stop` (log_end.py)
decides what to do at the first offset without a valid record.
"""

from typing import Final, NamedTuple

from cometmq.remoting.message.record import Scan
from cometmq.store.log.damage import DamagedRange
from cometmq.store.log.log_scanner import LogScanner
from cometmq.store.parts import Parts
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.queue_files import FILLER_SIZE
from cometmq.store.queues.unsaved_queues import UnsavedQueues
from cometmq.store.recovery.log_end import LogEnd
from cometmq.store.recovery.replay import Replay
from cometmq.store.recovery.start import LastRun, Start, StartReason, choose_start
from cometmq.store.recovery.tail_check import TailCheck
from cometmq.store.recovery.trust import find_floors
from cometmq.store.settings import CQ_ENTRY_BYTES
from cometmq.store.writing.append import UNQUEUED


class Recovered(NamedTuple):
    """The result of recovery."""

    start: Start
    end: int
    record_count: int
    last_timestamp: int
    was_clean: bool
    has_cut_records: bool = False
    """Whether whole records are missing from the end; an incomplete last record does not count."""

    damaged: tuple[DamagedRange, ...] = ()
    """Damaged records after the last checkpoint, which readers must not get."""


def recover(
    parts: Parts, last_run: LastRun, log_end: LogEnd, marks_begin: int
) -> tuple[Recovered, UnsavedQueues]:
    """Recover all parts; raise CorruptStore if starting would lose messages. Also return the queues
    with entries that the next checkpoint must write or sync.

    The log may have marks of trimmed queues from `marks_begin` on.
    """
    gaps = _without_lost_files(parts)
    start = choose_start(parts, last_run)
    parts.log.info(
        "recovery.started", physical_offset=start.offset, reason=start.reason.value,
        was_clean=last_run.was_clean,
    )  # fmt: skip
    if start.reason is StartReason.DAMAGED_BEFORE_PROGRESS:
        log_end.refuse_damage(start.offset)
    find_floors(parts, marks_begin, start.offset)
    deleted, unsaved = parts.deletions.ends(), UnsavedQueues()
    timestamp = last_run.checkpoint.log_timestamp
    replay, check = Replay(parts, unsaved, deleted, timestamp), None
    for topic, end in deleted.items():
        replay.drop_topic(topic, end)
    _cut_derived(parts, last_run, start)
    if _is_unsealed(start, last_run) and parts.settings.check_crc_on_recover:
        check = replay.check = TailCheck(
            parts.queues,
            replay.dispatcher,
            start.offset,
            begins_at_zero=not parts.commit_log.files.first,
            deleted=deleted,
        )
    end = replay.run(start.offset)
    log_end.settle(end)
    gaps |= replay.dispatcher.gaps
    head = Start(parts.commit_log.files.first, StartReason.QUEUES_LOST)
    if gaps and start.offset != head.offset:
        names = sorted(f"{queue.topic}/{queue.queue_id}" for queue in gaps)
        parts.log.warning("queues.rebuilt", count=len(names), first=names[0])
        _cut_derived(parts, last_run, head)
        replay = Replay(parts, unsaved, deleted, timestamp)
        replay.run(head.offset)
    dispatcher = replay.dispatcher
    recovered = Recovered(
        start, end, dispatcher.record_count, dispatcher.store_timestamp, last_run.was_clean,
        log_end.has_cut_records, () if check is None else check.damaged,
    )  # fmt: skip
    return recovered, unsaved


def _is_unsealed(start: Start, last_run: LastRun) -> bool:
    """Return whether the replay reads only records that no checkpoint covers, and the queues are
    complete before them.
    """
    is_first_life = not start.offset and not last_run.checkpoint.log_timestamp
    return start.reason is StartReason.PROGRESS or (
        start.reason is StartReason.CHECKPOINT and is_first_life
    )


def _cut_derived(parts: Parts, last_run: LastRun, start: Start) -> None:
    """Drop all entries of records at or after the start; the replay creates them again."""
    if start.reason is not StartReason.PROGRESS:  # for PROGRESS, counting the entries did this
        for queue in parts.queues.queues.values():
            queue.recover(parts.commit_log.files.first, start.offset)
    name, count = "", 0
    if start.reason is StartReason.PROGRESS and last_run.progress is not None:
        name, count = last_run.progress.index_name, last_run.progress.index_count
    parts.index.recover(
        name=name,
        written_count=count,
        offset_end=start.offset,
        was_clean=last_run.was_clean,
    )


HEAD_BYTES_MAX: Final = 64 << 20
"""Number of bytes at the head of the log that are searched, for all queues together; this takes 0.3
s. A queue whose first file begins late in the log usually has not lost one, because its earlier
files have expired.
"""


def _without_lost_files(parts: Parts) -> set[ConsumeQueue]:
    """Remove the files of queues that have lost one; return these queues."""
    headless = _headless(parts)
    found = set()
    for queue in parts.queues.queues.values():
        files = queue.files
        is_headless = queue in headless
        if is_headless or files.has_gap:
            name = f"{queue.topic}/{queue.queue_id}"
            lost = files.first - files.file_size if is_headless else files.end
            parts.log.warning("queue.file_lost", queue=name, path=files.path(lost))
            parts.disk.remove_tree(files.folder)
            files.files, files.first, files.has_gap = [], 0, False
            found.add(queue)
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
