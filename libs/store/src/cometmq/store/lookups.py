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
from cometmq.store.settings import CQ_ENTRY_BYTES

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

        With a boundary (5.x): LOWER is the first message stored then or later, UPPER the last
        one stored then or earlier.
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None or queue.max_offset == queue.min_offset:
            return 0
        if boundary is BoundaryType.UPPER:
            return max(queue.min_offset, self._first_at_or_after(queue, timestamp + 1) - 1)
        if boundary is BoundaryType.LOWER:
            return self._first_at_or_after(queue, timestamp)
        return self._nearest(queue, timestamp)

    def _nearest(self, queue: ConsumeQueue, timestamp: int) -> int:
        """Search one file of the queue, as RocketMQ does.

        Of several messages with that very time any may be found; the same search finds the
        same one. The file is the first whose last message is not older than the time: its
        modification time, which RocketMQ looks at, says that only until somebody copies it.
        """
        low, high = self._file_of_time(queue, timestamp)
        before: tuple[int, int] | None = None
        after: tuple[int, int] | None = None
        while low <= high:
            middle = (low + high) // 2
            stored_ms = self._time_of(queue, middle)
            if stored_ms == timestamp:
                return middle
            if stored_ms > timestamp:
                high = middle - 1
                after = (stored_ms - timestamp, middle)
            else:
                low = middle + 1
                before = (timestamp - stored_ms, middle)
        if after is None or (before is not None and before[0] <= after[0]):
            return before[1] if before is not None else queue.min_offset
        return after[1]

    def _file_of_time(self, queue: ConsumeQueue, timestamp: int) -> tuple[int, int]:
        """Return the first and last offset of the file to search."""
        per_file = queue.files.file_size // CQ_ENTRY_BYTES
        low = queue.min_offset // per_file
        high = (queue.max_offset - 1) // per_file
        last_offset = queue.max_offset - 1
        while low < high:
            middle = (low + high) // 2
            if self._time_of(queue, (middle + 1) * per_file - 1) < timestamp:
                low = middle + 1
            else:
                high = middle
        first = max(queue.min_offset, low * per_file)
        return first, min(last_offset, (low + 1) * per_file - 1)

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
