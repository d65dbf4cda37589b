# SPDX-License-Identifier: Apache-2.0
"""What was just read from the queues, for other groups that read the same.

Groups of one topic follow each other closely: the first reads the files, the others get the bytes.

Invariants: what is kept was in memory, complete and undamaged; it is kept when the same place is
read for the second time, so a group alone pays for a look only. A place that had room for more is
good while its queue does not grow.

Hot path: once per pull (budget 0.5 us for a group alone); bench/micro/bench_broker.py.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from cometmq.remoting.types import Buffer
from cometmq.store.commit_log import LogView
from cometmq.store.consume_queue import ConsumeQueue
from cometmq.store.queue_reader import ReadLimits
from cometmq.store.results import GetResult, GetStatus

PLACES_MAX: Final = 256
BYTES_MAX: Final = 2 << 20
BODY_BYTES_MAX: Final = 128 << 10
_PHYSICAL_OFFSET: Final = slice(28, 36)  # of a record


class _Kept(NamedTuple):
    """The records of one place, side by side."""

    body: bytes
    record_count: int
    next_offset: int
    physical_offset: int  # of the first one
    is_full: bool  # there were more than one answer takes


class RecentReads:
    """Places of queues that were read last; those read once have nothing but their name."""

    __slots__ = ("_bytes", "_places")

    def __init__(self) -> None:
        """Know no place."""
        self._places: OrderedDict[tuple[ConsumeQueue, int, int], _Kept | None] = OrderedDict()
        self._bytes = 0

    def find(
        self, queue: ConsumeQueue, offset: int, log: LogView, limits: ReadLimits
    ) -> GetResult | None:
        """Return what a read would find, its records in one piece; None if that is not known."""
        kept = self._places.get((queue, offset, limits.count_max))
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
        """Remember a place, or what was found there if it is read again."""
        key = (queue, offset, limits.count_max)
        places = self._places
        if key not in places:
            places[key] = None
        elif (
            result.status is GetStatus.FOUND
            and not result.suggest_slave
            and not result.damaged_count
            and result.bytes <= BODY_BYTES_MAX
        ):
            self._keep(key, result)
        while len(places) > PLACES_MAX or self._bytes > BYTES_MAX:
            _, oldest = places.popitem(last=False)
            self._bytes -= _size(oldest)

    def _keep(self, key: tuple[ConsumeQueue, int, int], result: GetResult) -> None:
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
        """Forget all: the log was cut."""
        self._places.clear()
        self._bytes = 0


def _head(record: Buffer) -> bytes:
    return bytes(record[: _PHYSICAL_OFFSET.stop])


def _size(kept: _Kept | None) -> int:
    return 0 if kept is None else len(kept.body)
