# SPDX-License-Identifier: Apache-2.0
"""Recovery: bring log, queues and index into agreement when a store opens.

The log is the source of truth. Queues and index are truncated to the last checkpoint and rebuilt
from there, so recovery time is bounded by the amount of data since that checkpoint.

Two decisions are tables whose rows each have a test (docs/protocol/store.md#recovery):
`choose_start` (start.py) selects the first record that may be incomplete, `judge_stop` (log_end.py)
decides what to do at the first offset without a valid record.
"""

from typing import NamedTuple

from cometmq.store.log.damage import DamagedRange
from cometmq.store.parts import Parts
from cometmq.store.recovery.known_floors import find_floors
from cometmq.store.recovery.log_end import LogEnd
from cometmq.store.recovery.lost_files import cut_at_lost_files
from cometmq.store.recovery.replay import Replay
from cometmq.store.recovery.spills import Unsynced
from cometmq.store.recovery.start import LastRun, Start, StartReason, choose_start
from cometmq.store.recovery.tail_check import TailCheck


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

    unsynced: tuple[Unsynced, ...] = ()
    """Entries of queues that were written, and that the next checkpoint must sync."""


def recover(parts: Parts, last_run: LastRun, log_end: LogEnd, marks_begin: int) -> Recovered:
    """Recover all parts; raise CorruptStore if starting would lose messages.

    The log may have marks of trimmed queues from `marks_begin` on.
    """
    cut = cut_at_lost_files(parts)
    start = choose_start(parts, last_run)
    parts.log.info(
        "recovery.started", physical_offset=start.offset, reason=start.reason.value,
        was_clean=last_run.was_clean,
    )  # fmt: skip
    if start.reason is StartReason.DAMAGED_BEFORE_PROGRESS:
        log_end.refuse_damage(start.offset)
    find_floors(parts, marks_begin, start.offset)
    deleted = parts.deletions.ends()
    replay = Replay(parts, deleted, last_run.checkpoint.log_timestamp)
    dispatcher, check = replay.dispatcher, None
    for topic, end in deleted.items():
        replay.drop_topic(topic, end)
    _cut_derived(parts, last_run, start)
    if start.offset != parts.commit_log.files.first:  # otherwise all queues are rebuilt
        dispatcher.gaps.update(cut)
    if _is_unsealed(start, last_run) and parts.settings.check_crc_on_recover:
        check = replay.check = TailCheck(
            parts.queues,
            dispatcher,
            start.offset,
            begins_at_zero=not parts.commit_log.files.first,
            deleted=deleted,
        )
    end = replay.run(start.offset)
    log_end.settle(end)
    replay.fill_gaps()
    return Recovered(
        start, end, dispatcher.record_count, dispatcher.store_timestamp, last_run.was_clean,
        log_end.has_cut_records, () if check is None else check.damaged,
        tuple(replay.unsynced()),
    )  # fmt: skip


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
