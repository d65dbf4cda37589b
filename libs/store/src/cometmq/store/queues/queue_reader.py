# SPDX-License-Identifier: Apache-2.0
"""Read messages of a queue: read its entries, filter them, and fetch the records in few reads.

A read consists of an immutable plan and a function that runs it. On the loop, the function reads
only from memory. If that is not enough, the caller gets a cold result, and a worker thread runs the
same function again with permission to block.

Hot path: `read_queue` runs once per pull (budget 25 us for 32 messages,
bench/micro/bench_consume_queue.py).
"""

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from itertools import repeat
from typing import Final, NamedTuple, TypeAlias

from cometmq.remoting.message.record_layout import RECORD_BYTES_MIN
from cometmq.remoting.types import Buffer
from cometmq.store.log.commit_log import LogView
from cometmq.store.queues.consume_queue import ConsumeQueue, QueuePlan
from cometmq.store.queues.queue_files import ENTRY, FILLER_SIZE
from cometmq.store.queues.record_check import (
    HEAD_BYTES,
    Place,
    is_at,
    matching,
    matching_places,
    queue_offset_of,
)
from cometmq.store.results import GetResult, GetStatus, TagFilter
from cometmq.store.settings import StoreSettings

SCAN_COUNT_MIN: Final = 800  # entries that a filtered read examines, as in RocketMQ
GAP_BYTES_MAX: Final = 8192  # copying that many takes 0.3 us, a second read 1 us
SPAN_BYTES_MAX: Final = 1 << 20
_EXTENDED_TAG_MAX: Final = -2147483649  # smaller tag codes are addresses of extended entries

QueueRow: TypeAlias = tuple[int, int, int]
"""Physical offset, size, tag code."""


class ReadLimits(NamedTuple):
    """Limits of one read: for records in memory, and for those on disk."""

    count_max: int
    bytes_max: int
    disk_count_max: int
    disk_bytes_max: int
    memory_bytes: int  # older messages are assumed to be on disk

    @classmethod
    def of(cls, settings: StoreSettings, memory_bytes: int) -> "ReadLimits":
        """Return RocketMQ's limits as configured."""
        return cls(
            settings.max_transfer_count_on_message_in_memory,
            settings.max_transfer_bytes_on_message_in_memory,
            settings.max_transfer_count_on_message_in_disk,
            settings.max_transfer_bytes_on_message_in_disk,
            memory_bytes * settings.access_message_in_memory_max_ratio // 100,
        )

    def narrowed(self, count_max: int, bytes_max: int | None) -> "ReadLimits":
        """Return these limits, lowered to those of the reader."""
        count, count_bytes, disk_count, disk_bytes, memory_bytes = self
        wanted = count_bytes if bytes_max is None else bytes_max
        return ReadLimits(  # positional: 1 us less than `_replace`
            min(count, count_max),
            min(count_bytes, wanted),
            min(disk_count, count_max),
            min(disk_bytes, wanted),
            memory_bytes,
        )


class ReadPlan(NamedTuple):
    """The inputs of one read, fixed at the time of the request."""

    queue_id: int
    topic: bytes  # see `topic_field`; empty if this process has made all entries
    queue_offset: int
    min_offset: int
    max_offset: int
    entries: QueuePlan
    log: LogView
    accept: TagFilter | None
    limits: ReadLimits


class _Selection(NamedTuple):
    wanted: list[Place]
    scanned_count: int
    bytes: int
    last_offset: int
    status: GetStatus
    is_ordered: bool = False  # all offsets lie between the first and the last
    damaged: Sequence[int] = ()  # queue offsets of entries that no record can match
    doubts: Sequence[int] = ()  # of entries that seem to have expired


def read_queue(
    queue: ConsumeQueue,
    queue_offset: int,
    log: LogView,
    accept: TagFilter | None,
    limits: ReadLimits,
) -> GetResult:
    """Return the records from this offset onwards, or a status with the offset to continue at."""
    status, next_offset = locate(queue, queue_offset)
    if status is not GetStatus.FOUND:
        return GetResult(status, next_offset, queue.min_offset, queue.max_offset)
    scan_count = limits.count_max if accept is None else max(SCAN_COUNT_MIN, limits.count_max)
    plan = ReadPlan(
        queue.queue_id,
        b"" if queue_offset >= queue.loaded_end else queue.topic_field,
        queue_offset,
        queue.min_offset,
        queue.max_offset,
        queue.plan(queue_offset, scan_count),
        log,
        accept,
        limits,
    )
    result = _run(plan, may_block=False)
    if result is not None:
        return result
    return GetResult(
        GetStatus.FOUND,
        queue_offset,
        plan.min_offset,
        plan.max_offset,
        loader=partial(_load, plan),
    )


def locate(queue: ConsumeQueue, queue_offset: int) -> tuple[GetStatus, int]:
    """Check an offset against a queue; return the status and the offset to continue at."""
    if queue.max_offset == 0:
        return GetStatus.NO_MESSAGE_IN_QUEUE, 0
    if queue_offset < queue.min_offset:
        return GetStatus.OFFSET_TOO_SMALL, queue.min_offset
    if queue_offset == queue.max_offset:
        return GetStatus.OFFSET_OVERFLOW_ONE, queue_offset
    if queue_offset > queue.max_offset:
        return GetStatus.OFFSET_OVERFLOW_BADLY, queue.max_offset
    return GetStatus.FOUND, queue_offset


def _load(plan: ReadPlan) -> GetResult:
    result = _run(plan, may_block=True)
    assert result is not None
    return result


def _run(plan: ReadPlan, *, may_block: bool) -> GetResult | None:
    entries = plan.entries.read(may_block=may_block)
    if entries is None:
        return None
    selection = _select(entries, plan)
    records = _read_records(selection, plan, may_block=may_block)
    if records is None:
        return None
    next_offset = plan.queue_offset + selection.scanned_count
    damaged = selection.damaged
    if len(records) < len(selection.wanted):
        read = set(map(queue_offset_of, records))
        damaged = sorted([*damaged, *(it[2] for it in selection.wanted if it[2] not in read)])
    return GetResult(
        selection.status if records or not damaged else GetStatus.MESSAGE_WAS_REMOVING,
        next_offset,
        plan.min_offset,
        plan.max_offset,
        records,
        len(records),
        sum(map(len, records)) if damaged else selection.bytes,
        plan.log.end - selection.last_offset > plan.limits.memory_bytes,
        damaged=damaged,
        doubts=selection.doubts,
    )


def _select(entries: Buffer, plan: ReadPlan) -> _Selection:
    """Select entries until the answer is full; the first match may exceed the byte limit."""
    count = len(entries) // ENTRY.size
    if plan.accept is None and 0 < count <= plan.limits.count_max:
        selection = _select_all(entries, count, plan)
        if selection is not None:
            return selection
    # A filter usually needs few of its 800 entries, so this is 3x faster than unpacking all.
    return _select_some(ENTRY.iter_unpack(memoryview(entries)[: count * ENTRY.size]), plan)


@lru_cache(maxsize=64)
def _places(count: int) -> struct.Struct:
    """Return a struct that unpacks `count` offsets and sizes at once, twice as fast as one by
    one.
    """
    return struct.Struct(">" + "qi8x" * count)


def _select_all(entries: Buffer, count: int, plan: ReadPlan) -> _Selection | None:
    """Select all entries if each is valid and the answer has room, as in most hot reads."""
    log, limits = plan.log, plan.limits
    numbers = _places(count).unpack_from(entries)
    offsets, sizes = numbers[::2], numbers[1::2]
    first, last, total = offsets[0], offsets[-1], sum(sizes)
    queue_offset = plan.queue_offset
    # If any entry is cold, removed, unordered or a filler, `_select_some` judges them one by one.
    if (
        first < max(log.first, log.end - limits.memory_bytes)
        or last + sizes[-1] > log.end
        or total > limits.bytes_max  # also excludes fillers
        or min(sizes) < RECORD_BYTES_MIN
        or offsets != tuple(sorted(offsets))
    ):
        return None
    queue_offsets = range(queue_offset, queue_offset + count)
    wanted = list(zip(sizes, repeat(plan.queue_id), queue_offsets, offsets))
    return _Selection(wanted, count, total, last, GetStatus.FOUND, is_ordered=True)


def _select_some(rows: Iterable[QueueRow], plan: ReadPlan) -> _Selection:
    log_first, log_end, accept, limits = plan.log.first, plan.log.end, plan.accept, plan.limits
    memory_start = log_end - limits.memory_bytes
    wanted: list[Place] = []
    damaged: list[int] = []
    doubts: list[int] = []
    scanned = total = 0
    last_offset = log_end
    status = GetStatus.NO_MATCHED_MESSAGE
    for offset, size, tag_code in rows:
        # The limits apply from the second record on, so a single large message is deliverable.
        if wanted:
            in_memory = offset >= memory_start
            count_max = limits.count_max if in_memory else limits.disk_count_max
            bytes_max = limits.bytes_max if in_memory else limits.disk_bytes_max
            if len(wanted) >= count_max or total + size > bytes_max:
                break
        queue_offset = plan.queue_offset + scanned
        scanned += 1
        if not log_first <= offset <= log_end - size or size < RECORD_BYTES_MIN:
            status = GetStatus.MESSAGE_WAS_REMOVING
            # The record of an intact entry is in the log, or has expired, like all before it.
            is_expired = 0 <= offset < log_first and size >= RECORD_BYTES_MIN and not wanted
            if size != FILLER_SIZE:
                (doubts if is_expired else damaged).append(queue_offset)
            continue
        last_offset = offset
        if accept is not None and tag_code > _EXTENDED_TAG_MAX and not accept(tag_code):
            continue
        wanted.append((size, plan.queue_id, queue_offset, offset))
        total += size
    status = GetStatus.FOUND if wanted else status
    return _Selection(wanted, scanned, total, last_offset, status, damaged=damaged, doubts=doubts)


def _read_records(selection: _Selection, plan: ReadPlan, *, may_block: bool) -> list[Buffer] | None:
    """Return the records; adjacent records are slices of one read."""
    records: list[Buffer] = []
    rest, log = selection.wanted, plan.log
    if log.has_damage:
        rest = [place for place in rest if not log.is_damaged(place[3], place[0])]
        # Do not read across the damage: the disk may fail to read it.
        selection = selection._replace(is_ordered=False)
    while rest:
        span_end = _dense_end(rest, selection, log)
        if span_end:
            part, rest = rest, []
        else:
            stop, span_end = _span(rest, log)
            part, rest = rest[:stop], rest[stop:]
        found = _read_span(part, span_end, plan, may_block=may_block)
        if found is None:
            return None
        records += found
    return records


def _read_span(
    part: list[Place], end: int, plan: ReadPlan, *, may_block: bool
) -> Sequence[Buffer] | None:
    """Read adjacent records at once; leave out those that are damaged."""
    log, start = plan.log, part[0][3]
    if len(part) == 1 and not _may_read(part[0], log, may_block=may_block):
        return ()
    data = log.read(start, end - start, may_block=may_block)
    if data is None:
        return None
    if len(data) == end - start:
        if plan.topic:
            return matching(data, start, part, plan.topic)
        return matching_places(data, start, part)
    if len(part) > 1 and log.is_damaged(start, end - start):
        return _read_each(part, plan, may_block=may_block)
    return ()  # damaged, or the file has become shorter


def _read_each(part: list[Place], plan: ReadPlan, *, may_block: bool) -> list[Buffer] | None:
    """Read the records of a span in which a block is damaged, one by one."""
    records: list[Buffer] = []
    for place in part:
        size, _, _, offset = place
        if plan.log.is_damaged(offset, size):
            continue
        data = plan.log.read(offset, size, may_block=may_block)
        if data is None:
            return None
        if len(data) == size:
            records += matching(data, offset, [place], plan.topic)
    return records


def _may_read(place: Place, log: LogView, *, may_block: bool) -> bool:
    """Return whether an entry may have the right size; large ones are compared with their record.

    The size of a damaged entry may be anything up to the rest of the log.
    """
    size, _, _, offset = place
    if size > log.file_size - (offset - log.first) % log.file_size:
        return False  # no record crosses the end of a file
    if size <= SPAN_BYTES_MAX:
        return True
    head = log.read(offset, HEAD_BYTES, may_block=may_block)
    return head is None or is_at(memoryview(head), place)


def _dense_end(rest: list[Place], selection: _Selection, log: LogView) -> int:
    """Return the end of one read that fetches all records; 0 if several reads are better.

    One read must stay within one file, and copy few bytes between the records.
    """
    if not selection.is_ordered:
        return 0
    first, end = rest[0][3], rest[-1][3] + rest[-1][0]
    most = min(selection.bytes + GAP_BYTES_MAX * len(rest), SPAN_BYTES_MAX)
    in_file = (first - log.first) % log.file_size
    return end if end - first <= most and in_file + end - first <= log.file_size else 0


def _span(wanted: list[Place], log: LogView) -> tuple[int, int]:
    size, _, _, first = wanted[0]
    file_end = first - (first - log.first) % log.file_size + log.file_size
    bytes_end = min(first + SPAN_BYTES_MAX, file_end)
    end = first + size
    stop = 1
    for size, _, _, offset in wanted[1:]:
        if not 0 <= offset - end <= GAP_BYTES_MAX or offset + size > bytes_end:
            break
        end = offset + size
        stop += 1
    return stop, end
