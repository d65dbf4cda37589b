# SPDX-License-Identifier: Apache-2.0
"""A cache of recent reads, for other groups that read the same queue offsets.

The groups of a topic follow each other closely: the first one reads the files, and the others get
the same bytes.

Invariants: cached records were in memory, complete and undamaged. They are cached when an offset is
read for the second time, so a single group pays only for a dictionary lookup. A read that reached
the end of its queue is valid only until the queue grows.

Hot path: one lookup per pull (budget 0.5 us for a single group, bench/micro/bench_broker.py).
"""

from collections import OrderedDict
from typing import Final, NamedTuple, TypeAlias

from cometmq.remoting.types import Buffer
from cometmq.store.log.commit_log import LogView
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.queue_reader import ReadLimits
from cometmq.store.results import GetResult, GetStatus

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
    """The most recently read queue offsets, with the records that were read twice."""

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
