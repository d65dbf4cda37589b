# SPDX-License-Identifier: Apache-2.0
"""Serve pulls: find the queue, apply RocketMQ's and the caller's limits, and reuse recent reads.

Hot path: `get` runs once per pull, on top of `read_queue` (bench/micro/bench_broker.py).
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from cometmq.remoting.log import Log
from cometmq.remoting.types import Buffer
from cometmq.store.disk import Descriptor, DiskFile
from cometmq.store.log.commit_log import CommitLog, LogView
from cometmq.store.log.verified import ChecksumPlace
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.matching_reader import WHOLE_BLOCK, BlockSize, RecordTest, read_matching
from cometmq.store.queues.queue_reader import ReadLimits, read_queue
from cometmq.store.queues.queue_table import QueueTable
from cometmq.store.queues.record_check import queue_offset_of
from cometmq.store.queues.suspect_entries import SuspectEntries
from cometmq.store.reads import Lookup
from cometmq.store.results import Counters, GetResult, GetStatus, TagFilter
from cometmq.store.settings import StoreSettings

PLACES_MAX: Final = 256
BYTES_MAX: Final = 2 << 20
BODY_BYTES_MAX: Final = 128 << 10
_PHYSICAL_OFFSET: Final = slice(28, 36)  # of a record


_Key: TypeAlias = tuple[ConsumeQueue, int, int, int]
"""The queue and its `life`, the offset, and the maximum number of records."""


class _Kept(NamedTuple):
    body: bytes
    record_count: int
    next_offset: int
    physical_offset: int  # where the first record lies
    is_full: bool  # the answer had no room for further records


class RecentReads:
    """The most recently read queue offsets, with the records that were read twice: the groups of a
    topic follow each other closely, and the others get the same bytes.

    Invariants: cached records were in memory, complete and undamaged. A single group pays only for
    a dictionary lookup (0.5 us). A read that reached the end of its queue is valid only until the
    queue grows.
    """

    __slots__ = ("_bytes", "_places")

    def __init__(self) -> None:
        self._places: OrderedDict[_Key, _Kept | None] = OrderedDict()
        self._bytes = 0

    def find(
        self, queue: ConsumeQueue, offset: int, log: LogView, limits: ReadLimits
    ) -> GetResult | None:
        """Return the cached result of a read, its records in one buffer; None if there is none."""
        kept = self._places.get((queue, queue.life, offset, limits.count_max))
        if (
            kept is None
            or offset < queue.min_offset
            or not (kept.is_full or kept.next_offset == queue.max_offset)
            or kept.physical_offset < max(log.first, log.end - limits.memory_bytes)
        ):
            return None
        return GetResult(
            GetStatus.FOUND,
            kept.next_offset,
            queue.min_offset,
            queue.max_offset,
            [kept.body],
            kept.record_count,
            len(kept.body),
        )

    def note(self, queue: ConsumeQueue, offset: int, limits: ReadLimits, result: GetResult) -> None:
        """Remember the first read of an offset; cache the records of the second."""
        key = (queue, queue.life, offset, limits.count_max)
        places = self._places
        if key not in places:
            places[key] = None
        elif (
            result.status is GetStatus.FOUND
            and not result.suggest_slave
            and not (result.damaged or result.doubts)
            and result.bytes <= BODY_BYTES_MAX
        ):
            self._keep(key, result)
        while len(places) > PLACES_MAX or self._bytes > BYTES_MAX:
            _, oldest = places.popitem(last=False)
            self._bytes -= _size(oldest)

    def _keep(self, key: _Key, result: GetResult) -> None:
        body = b"".join(result.records)
        kept = _Kept(
            body,
            result.count,
            result.next_offset,
            int.from_bytes(_head(result.records[0])[_PHYSICAL_OFFSET], "big"),
            result.next_offset < result.max_offset,
        )
        self._bytes += len(body) - _size(self._places[key])
        self._places[key] = kept

    def clear(self) -> None:
        """Drop everything, because the log was truncated or the settings changed."""
        self._places.clear()
        self._bytes = 0


def _head(record: Buffer) -> bytes:
    return bytes(record[: _PHYSICAL_OFFSET.stop])


def _size(kept: _Kept | None) -> int:
    return 0 if kept is None else len(kept.body)


TOLD_COUNT_MAX: Final = 20_000
"""Maximum number of lost messages that are remembered, so that each is logged once."""

LogPlace: TypeAlias = tuple[DiskFile, Descriptor, int, int, ChecksumPlace | None]
"""Where native code can read bytes of the log: a file, its open descriptor, the descriptor's
number, a position in the file, and where the checksums of the block are.
"""


class Pulls:
    """Serves and counts the pulls of one store."""

    def __init__(
        self,
        settings: StoreSettings,
        commit_log: CommitLog,
        queues: QueueTable,
        *,
        counters: Counters,
        memory_bytes: int,
        log: Log,
    ) -> None:
        """Start with no cached reads; `memory_bytes` is the size of the machine's memory."""
        self._commit_log = commit_log
        self._queues = queues
        self._counters = counters
        self._memory_bytes = memory_bytes
        self._log = log
        self._recent = RecentReads()
        self._told: set[tuple[str, int, int]] = set()
        self._limits = ReadLimits.of(settings, memory_bytes)
        self._limits_by_count: dict[int, ReadLimits] = {}
        self.suspects = SuspectEntries()
        """The damaged entries that readers have found; `EntryRepair` examines them."""
        self.version = 0
        """A counter that changes whenever bytes that were read earlier may be outdated or
        damaged.
        """

    @property
    def limits(self) -> ReadLimits:
        """The limits of a read, as configured."""
        return self._limits

    @property
    def table(self) -> QueueTable:
        """The queues that pulls read."""
        return self._queues

    def count(self, get_count: int, message_count: int) -> None:
        """Count pulls that a reader outside the store has served."""
        self._counters.get_count += get_count
        self._counters.get_message_count += message_count

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        count_max: int,
        accept: TagFilter | None = None,
        bytes_max: int | None = None,
        *,
        joined: bool = False,
    ) -> GetResult:
        """Return messages of a queue, starting at this offset; see `GetResult` for cold reads.

        `joined` allows one buffer with all records, for callers that concatenate them anyway.
        """
        self._counters.get_count += 1
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0)
        limits = self._limits_by_count.get(count_max) or self._limits_of(count_max)
        if bytes_max is not None:
            limits = limits.narrowed(max(1, count_max), bytes_max)
        log = self._commit_log.view()
        # Only plain reads are cached, because filters and custom limits make results unique.
        is_shared = joined and accept is None and bytes_max is None
        result = self._recent.find(queue, offset, log, limits) if is_shared else None
        if result is None:
            result = read_queue(queue, offset, log, accept, limits)
            if result.loader is not None:
                self._counters.cold_get_count += 1
            elif is_shared:
                self._recent.note(queue, offset, limits, result)
        if result.damaged or result.doubts:
            result = self.settled(queue, offset, result)
        self._counters.get_message_count += result.count
        return result

    def find(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        count_max: int,
        test: RecordTest,
        block: BlockSize = WHOLE_BLOCK,
    ) -> Lookup[GetResult]:
        """Find messages of a queue whose records pass a test, starting at this offset.

        `block` is the number of records tested per read.
        """
        self._counters.get_count += 1
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0)
        limits = self._limits_by_count.get(count_max) or self._limits_of(count_max)
        log = self._commit_log.view()
        result = yield from read_matching(queue, offset, log, test, limits, block)
        if result.damaged or result.doubts:
            result = self.settled(queue, offset, result, by_tag=False)
        self._counters.get_message_count += result.count
        return result

    def _limits_of(self, count_max: int) -> ReadLimits:
        most = max(self._limits.count_max, self._limits.disk_count_max)
        count = min(max(1, count_max), most)
        limits = self._limits_by_count.get(count)
        if limits is None:
            limits = self._limits_by_count[count] = self._limits.narrowed(count, None)
        return limits

    def settled(
        self, queue: ConsumeQueue, offset: int, result: GetResult, *, by_tag: bool = True
    ) -> GetResult:
        """Return the answer to a reader that has met damage: up to the first entry that may still
        be repaired. It leaves out what is lost.

        `by_tag` says that a filter may have skipped entries without looking at their records.
        """
        suspects = {*result.damaged, *result.doubts}
        if by_tag:  # a page that changed may begin within the tag code of the entry before
            torn = {it - 1 for it in result.damaged if it > offset}
            suspects |= torn.difference(map(queue_offset_of, result.records))
        awaited = self.suspects.first_awaited(queue, sorted(suspects))
        lost = [it for it in result.damaged if awaited is None or it < awaited]
        self._note_lost(queue, lost)
        return result if awaited is None else _ended_at(awaited, offset, result, lost)

    def _note_lost(self, queue: ConsumeQueue, offsets: Sequence[int]) -> None:
        """Log that a reader has left messages out, but each of them only once."""
        topic, queue_id = queue.topic, queue.queue_id
        new = [it for it in offsets if (topic, queue_id, it) not in self._told]
        if not new:
            return
        if len(self._told) + len(new) > TOLD_COUNT_MAX:
            self._told.clear()
        self._told.update((topic, queue_id, it) for it in new)
        self._counters.damaged_count += len(new)
        self._log.error(
            "records.damaged", topic=topic, queue_id=queue_id, queue_offset=new[0], count=len(new),
            action="cometmq store verify",
        )  # fmt: skip

    def apply(self, settings: StoreSettings) -> None:
        """Use settings that were changed at run time."""
        self._limits = ReadLimits.of(settings, self._memory_bytes)
        self._limits_by_count.clear()
        self.forget()

    def forget(self) -> None:
        """Drop the cached reads, because the log was truncated or is damaged."""
        self.version += 1
        self._recent.clear()
        self.suspects.forget()
        self._commit_log.verified.forget()


def _ended_at(awaited: int, offset: int, result: GetResult, lost: list[int]) -> GetResult:
    """Return the part of an answer before an entry that readers must not pass yet."""
    records = [it for it in result.records if queue_offset_of(it) < awaited]
    return msgspec.structs.replace(
        result,
        status=GetStatus.FOUND if records else GetStatus.MESSAGE_WAS_REMOVING,
        next_offset=awaited,
        records=records,
        count=len(records),
        bytes=sum(map(len, records)),
        damaged=lost,
        doubts=(),
        awaits_repair=awaited == offset,
    )


def read_log(view: LogView, start: int, known: int, count: int) -> LogPlace | Buffer | None:
    """Return the log's bytes from `start` + `known` to `start` + `count`, all from one file. None
    if they are not in memory or are damaged.

    `start` begins a block that has a checksum. If native code can read the bytes, return their
    place instead of the bytes themselves.
    """
    file, position = view.locate(start)
    descriptor = file.descriptor()
    if descriptor is None:
        return view.read(start + known, count - known, may_block=False)
    verified = view.verified
    sealed = None if verified is None else verified.place(start, position, count)
    return file, descriptor, descriptor.number, position + known, sealed


def read_entries(queue: ConsumeQueue, queue_offset: int, count: int) -> Buffer | None:
    """Return the bytes of entries; None if they are not in memory."""
    return queue.plan(queue_offset, count).read(may_block=False)
