# SPDX-License-Identifier: Apache-2.0
"""Find messages by physical offset, by time and by key.

Nothing here is on the path of sends or pulls; everything may wait for the disk.
"""

from typing import Final

from cometmq.remoting.errors import CorruptRecord
from cometmq.remoting.message.flags import SysFlag
from cometmq.remoting.message.record import RECORD_BYTES_MIN, MessageRecord, decode_record
from cometmq.store.consume_queue import ConsumeQueue
from cometmq.store.parts import Parts
from cometmq.store.results import BoundaryType, QueryResult

_HEAD_BYTES: Final = 76  # up to the store timestamp behind the longest host
CANDIDATES_COUNT_MAX: Final = 10_000  # of one query: keys that many messages share stay bounded


class Lookups:
    """Searches over the parts of a store."""

    __slots__ = ("_commit_log", "_index", "_queues")

    def __init__(self, parts: Parts) -> None:
        """Look into these parts."""
        self._commit_log = parts.commit_log
        self._queues = parts.queues
        self._index = parts.index

    def read_record(self, physical_offset: int) -> MessageRecord | None:
        """Return the record at an offset; None unless one begins exactly there."""
        log = self._commit_log
        if not log.min_offset <= physical_offset <= log.end - RECORD_BYTES_MIN:
            return None
        size = int.from_bytes(log.read(physical_offset, 4), "big", signed=True)
        file_size = log.files.file_size
        left_in_file = file_size - (physical_offset - log.min_offset) % file_size
        if not RECORD_BYTES_MIN <= size <= min(left_in_file, log.end - physical_offset):
            return None
        try:
            record = decode_record(log.read(physical_offset, size))
        except CorruptRecord:
            return None
        return record if record.physical_offset == physical_offset else None

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Return when a message was stored; -1 if it is not there."""
        queue = self._queues.get(topic, queue_id)
        return -1 if queue is None else self._time_of(queue, offset)

    def _time_of(self, queue: ConsumeQueue, offset: int) -> int:
        entry = queue.entry(offset)
        if entry is None:
            return -1
        return self._stored_at(entry.physical_offset)

    def _stored_at(self, physical_offset: int) -> int:
        """Read the time alone: bodies may be large."""
        log = self._commit_log
        if not log.min_offset <= physical_offset <= log.end - RECORD_BYTES_MIN:
            return -1
        head = log.read(physical_offset, _HEAD_BYTES)
        if int.from_bytes(head[28:36], "big") != physical_offset:
            return -1
        has_long_host = int.from_bytes(head[36:40], "big") & SysFlag.BORN_HOST_V6
        at = 68 if has_long_host else 56
        return int.from_bytes(head[at : at + 8], "big", signed=True)

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: BoundaryType | None
    ) -> int:
        """Return the offset of the message stored nearest to a time, the older one in doubt.

        Of several messages with that very time LOWER is the first, UPPER the last; with a
        boundary and no such message, LOWER is the next newer one, UPPER the next older one.
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None or queue.max_offset == queue.min_offset:
            return 0
        first = self._first_at_or_after(queue, timestamp)
        if boundary is BoundaryType.UPPER:
            return max(queue.min_offset, self._first_at_or_after(queue, timestamp + 1) - 1)
        if boundary is BoundaryType.LOWER:
            return first
        if first == queue.min_offset:
            return first
        if first == queue.max_offset:
            return first - 1
        after = self._time_of(queue, first)
        before = self._time_of(queue, first - 1)
        return first if after - timestamp < timestamp - before else first - 1

    def _first_at_or_after(self, queue: ConsumeQueue, timestamp: int) -> int:
        """Return the first offset stored at that time or later; the maximum without one."""
        low, high = queue.min_offset, queue.max_offset
        while low < high:
            middle = (low + high) // 2
            if self._time_of(queue, middle) < timestamp:
                low = middle + 1
            else:
                high = middle
        return low

    def query(
        self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int
    ) -> QueryResult:
        """Return the newest messages that hold a key, the oldest of them first.

        The index knows hashes only, so each candidate is checked.
        """
        found: dict[int, MessageRecord] = {}
        candidates = self._index.candidates(topic, key, begin_ms, end_ms)
        for _, offset in zip(range(CANDIDATES_COUNT_MAX), candidates, strict=False):
            if len(found) >= count_max:
                break
            record = self.read_record(offset)
            if record is None or record.topic != topic:
                continue
            has_key = key == record.unique_key or key in record.keys
            if has_key and begin_ms <= record.store_timestamp <= end_ms:
                found[offset] = record
        return QueryResult(
            [found[offset] for offset in sorted(found)],
            self._index.end_timestamp,
            self._index.end_offset,
        )
