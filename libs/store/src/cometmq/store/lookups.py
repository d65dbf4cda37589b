# SPDX-License-Identifier: Apache-2.0
"""Find messages by physical offset, by time and by key.

Sends and pulls do not use this module. Its reads may have to wait for the disk, so each search is a
`Lookup` (`reads.py`).
"""

from collections.abc import Callable
from itertools import chain, pairwise
from typing import Final, TypeAlias

from cometmq.remoting.errors import CorruptRecord
from cometmq.remoting.message.flags import SysFlag
from cometmq.remoting.message.record import MessageRecord, decode_record
from cometmq.remoting.message.record_layout import RECORD_BYTES_MIN
from cometmq.remoting.types import Buffer
from cometmq.store.log.commit_log import LogRead, LogView
from cometmq.store.parts import Parts
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.queue_files import ENTRY, FILLER_SIZE
from cometmq.store.queues.queue_reader import QueueRow
from cometmq.store.queues.record_check import Place, body_end, is_at, place_at, topic_at
from cometmq.store.reads import Lookup, Pause
from cometmq.store.results import BoundaryType, QueryResult

_SIZE_BYTES: Final = 4
_FIRST_BYTES: Final = 1_024  # covers most records with one read
_HEAD_BYTES: Final = 76  # includes the store timestamp even after the longest host
_TOPIC_FIELD_BYTES: Final = 32 << 10  # the longest has two bytes for its length
_AROUND_BODY_BYTES: Final = 128 << 10  # more than all other parts of a record
DAMAGED_COUNT_MAX: Final = 1_000
"""Number of damaged messages that a search by time skips to find an intact one; a damaged block
usually holds fewer.
"""
CANDIDATES_COUNT_MAX: Final = 10_000  # per query, because many messages may share a key
QUERY_BYTES_MAX: Final = 16 << 20
"""Size of found messages after which a query ends: no answer can hold more."""


SAMPLE_COUNT: Final = 16
Run: TypeAlias = tuple[int, int]
"""A run: the first and the end offset of a part of a queue in which store times do not decrease."""


class Lookups:
    """Searches over a store's log, queues and index."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._commit_log = parts.commit_log
        self._queues = parts.queues
        self._index = parts.index

    def read_record(self, physical_offset: int) -> Lookup[MessageRecord | None]:
        """Find the record that begins exactly at this offset, which may come from a client; None if
        there is none.
        """
        record = yield from self.stored_record(physical_offset)
        return None if record is None or self._queues.floors.hides_record(record) else record

    def stored_record(self, physical_offset: int) -> Lookup[MessageRecord | None]:
        """Find a record even if its message has been deleted."""
        data = yield from self._stored_bytes(physical_offset)
        return None if data is None else _decoded(data, physical_offset)

    def record_bytes(self, physical_offset: int) -> Lookup[bytes | None]:
        """Find the bytes of the record that begins at this offset. If none begins there, the result
        is None or other bytes: the caller must check the record.
        """
        data = yield from self._stored_bytes(physical_offset)
        if data is None or not self._queues.floors:
            return data
        record = _decoded(data, physical_offset)
        is_hidden = record is not None and self._queues.floors.hides_record(record)
        return None if is_hidden else data

    def _stored_bytes(self, physical_offset: int) -> Lookup[bytes | None]:
        """Find the bytes of a record, without reading all that a message's body claims to be one.

        A client may choose an offset inside a body, where the size is any number up to that of a
        file (1 GiB). So the first bytes must name the offset, and a size that no message may have
        now must be that of the queue's entry.
        """
        log = self._commit_log.view()
        if not log.first <= physical_offset <= log.end - RECORD_BYTES_MIN:
            return None
        data = yield _log_read(log, physical_offset, _FIRST_BYTES)
        if not data:  # a later record may be damaged
            data = yield _log_read(log, physical_offset, RECORD_BYTES_MIN)
        place = place_at(data)
        if place is None or place[3] != physical_offset:
            return None
        size = place[0]
        read = _log_read(log, physical_offset, size)
        if not RECORD_BYTES_MIN <= size == read.size or log.is_damaged(physical_offset, size):
            return None
        if size > self._parts.settings.max_message_size + _AROUND_BODY_BYTES:
            has_entry = yield from self._has_entry(log, data, place)
            if not has_entry:
                return None
        if size > len(data):
            data = yield read
        return bytes(data[:size])

    def _has_entry(self, log: LogView, head: Buffer, place: Place) -> Lookup[bool]:
        """Return whether the entry of the record at this place has its offset and size."""
        size, queue_id, queue_offset, physical_offset = place
        end = body_end(head)
        if end is None or end >= size:
            return False
        rest = yield _log_read(log, physical_offset + end, min(size - end, _TOPIC_FIELD_BYTES))
        queue = self._queues.get(topic_at(head, rest), queue_id)
        row = None if queue is None else (yield from _row_of(queue, queue_offset))
        return row is not None and row[:2] == (physical_offset, size)

    def newest_record(self) -> Lookup[MessageRecord | None]:
        """Find the last message in the log that a queue refers to; None if there is none."""
        newest = -1
        for queue in list(self._queues.queues.values()):
            place = yield from _place_of(queue, queue.max_offset - 1)
            newest = max(newest, place)
        return (yield from self.read_record(newest))

    def read_span(self, physical_offset: int, size: int) -> Lookup[Buffer | None]:
        """Find the bytes of a range of the log that lies within one file.

        Return None if readers may not have the whole range.
        """
        log = self._commit_log.view()
        if not log.first <= physical_offset <= log.end - size:
            return None
        read = _log_read(log, physical_offset, size)
        if read.size < size or log.is_damaged(physical_offset, size):
            return None
        data = yield read
        return data if len(data) == size else None

    def place(self, topic: str, queue_id: int, offset: int) -> Lookup[int]:
        """Find a message's physical offset; -1 if the message does not exist."""
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return -1
        return (yield from _place_of(queue, offset))

    def store_time(self, topic: str, queue_id: int, offset: int) -> Lookup[int]:
        """Find a message's store time; -1 if the message does not exist."""
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return -1
        return (yield from self._time_of(queue, offset))

    def _time_of(self, queue: ConsumeQueue, offset: int) -> Lookup[int]:
        """Find a message's store time; -1 if the message does not exist.

        A search by time needs times in order. A message whose record or entry is damaged therefore
        has the time of the next intact one, or else of one before it, so that the search skips
        neither a message whose entry will be repaired, nor one after the damage.
        """
        stop = min(queue.max_offset, offset + DAMAGED_COUNT_MAX)
        first = max(queue.min_offset, offset - DAMAGED_COUNT_MAX)
        for nearest in chain(range(offset, stop), range(offset - 1, first - 1, -1)):
            row = yield from _row_of(queue, nearest)
            if row is None or (row[1] == FILLER_SIZE and nearest == offset):
                return -1
            physical_offset, size, _ = row
            if 0 <= physical_offset < self._commit_log.view().first and size >= RECORD_BYTES_MIN:
                return -1  # it has expired
            place = size, queue.queue_id, nearest, physical_offset
            stored_ms = yield from self._stored_at(place)
            if stored_ms >= 0:
                return stored_ms
        return -1

    def _stored_at(self, place: Place) -> Lookup[int]:
        """Find the store time of the record at this place, without its body, which may be large; -1
        if that is another record, or none.
        """
        log, physical_offset = self._commit_log.view(), place[3]
        if not log.first <= physical_offset <= log.end - RECORD_BYTES_MIN:
            return -1
        if log.is_damaged(physical_offset, _HEAD_BYTES):
            return -1
        head = yield _log_read(log, physical_offset, _HEAD_BYTES)
        if len(head) < _HEAD_BYTES or not is_at(memoryview(head), place):
            return -1
        has_long_host = int.from_bytes(head[36:40], "big") & SysFlag.BORN_HOST_V6
        at = 68 if has_long_host else 56
        return int.from_bytes(head[at : at + 8], "big", signed=True)

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: BoundaryType | None = None
    ) -> Lookup[int]:
        """Find the offset of the message stored nearest to a time; on a tie, the older one. For a
        time after all store times, that is the last message.

        With a boundary (5.x), LOWER finds the first message stored at or after the time, and UPPER
        the last message stored at or before it.
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None or queue.max_offset == queue.min_offset:
            return 0 if queue is None else queue.min_offset
        runs = yield from self._runs(queue)
        if boundary is BoundaryType.UPPER:
            for first, end in reversed(runs):
                behind = yield from self._first_in(queue, timestamp + 1, first, end)
                if behind > first:
                    return behind - 1
            return queue.min_offset
        # A message of a later run may be nearer. But a group that is moved there, or a reader that
        # begins there, would skip messages of the first run that were stored after the time.
        for first, end in runs:
            behind = yield from self._first_in(queue, timestamp, first, end)
            if behind == end:
                continue
            if boundary is BoundaryType.LOWER:
                return behind
            before = max(first, behind - 1)
            earlier_ms = yield from self._time_of(queue, before)
            later_ms = yield from self._time_of(queue, behind)
            is_nearer = abs(earlier_ms - timestamp) <= abs(later_ms - timestamp)
            return before if is_nearer else behind
        return queue.max_offset - (boundary is not BoundaryType.LOWER)

    def _runs(self, queue: ConsumeQueue) -> Lookup[list[Run]]:
        """Divide a queue into runs: at the offsets where store times decrease, because the clock
        was set back.

        A binary search needs times in order, so each run is searched by itself. To find the runs,
        samples are compared: evenly spaced ones, and closer ones near the end. A decrease between
        two samples, as after a clock that was wrong for a moment, is not found; the search may then
        return an earlier offset.
        """
        first, end = queue.min_offset, queue.max_offset
        last = end - 1
        places = {first + (last - first) * i // SAMPLE_COUNT for i in range(SAMPLE_COUNT + 1)}
        places |= {last - (1 << bit) + 1 for bit in range((end - first).bit_length())}
        times: list[tuple[int, int]] = []
        for place in sorted(places):
            stored_ms = yield from self._time_of(queue, place)
            if stored_ms >= 0:
                times.append((place, stored_ms))
        begins = [first]
        for (low, low_ms), (high, high_ms) in pairwise(times):
            if high_ms < low_ms:
                begins.append((yield from self._begin_of_run(queue, low, low_ms, high)))
        return list(pairwise([*begins, end]))

    def _begin_of_run(self, queue: ConsumeQueue, low: int, low_ms: int, high: int) -> Lookup[int]:
        """Find an offset at which times decrease, between `low` and `high`, whose times are in the
        wrong order.
        """
        while high - low > 1:
            middle = (low + high) // 2
            stored_ms = yield from self._time_of(queue, middle)
            if stored_ms >= low_ms:
                low, low_ms = middle, stored_ms
            else:
                high = middle
        return high

    def _first_in(self, queue: ConsumeQueue, timestamp: int, low: int, high: int) -> Lookup[int]:
        """Find the first message of a run stored at or after a time; the run's end if none is."""
        while low < high:
            middle = (low + high) // 2
            stored_ms = yield from self._time_of(queue, middle)
            if stored_ms < timestamp:
                low = middle + 1
            else:
                high = middle
        return low

    def query(
        self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int
    ) -> Lookup[QueryResult]:
        """Find the newest messages with this key; return them oldest first.

        A result that exceeds QUERY_BYTES_MAX lacks older messages.
        """
        count_max = min(count_max, self._parts.settings.max_msgs_num_batch)
        found: dict[int, MessageRecord] = {}
        found_bytes = 0

        def take(record: MessageRecord) -> bool:
            nonlocal found_bytes
            if record.physical_offset not in found:
                found[record.physical_offset] = record
                found_bytes += record.size
            return len(found) < count_max and found_bytes <= QUERY_BYTES_MAX

        if count_max > 0:
            yield from self.visit(topic, key, begin_ms, end_ms, take)
        return QueryResult(
            [found[offset] for offset in sorted(found)],
            self._index.end_timestamp,
            self._index.end_offset,
        )

    def visit(
        self,
        topic: str,
        key: str,
        begin_ms: int,
        end_ms: int,
        take: Callable[[MessageRecord], bool],
        *,
        has_time: Callable[[], bool] = lambda: True,
    ) -> Lookup[bool]:
        """Pass the messages with this key to `take`, newest first, until it returns False.

        The index holds only hashes, so each candidate's key is compared. Return False if `take`
        may lack messages: there were too many candidates, the time ran out, or one is damaged. A
        message may be passed twice.
        """
        is_whole = True
        checked_count = taken_bytes = 0

        def is_wanted(record: MessageRecord) -> bool:
            has_key = key == record.unique_key or key in record.keys
            return (
                has_key and record.topic == topic and begin_ms <= record.store_timestamp <= end_ms
            )

        def check(offset: int) -> Lookup[bool]:
            nonlocal is_whole, checked_count, taken_bytes
            checked_count += 1
            record = yield from self.read_record(offset)
            if record is None:
                is_damaged = yield from self.is_damaged(offset)
                is_whole = is_whole and not is_damaged
            elif is_wanted(record):
                taken_bytes += record.size
                if not take(record):
                    return False
                yield Pause(taken_bytes)
            if checked_count < CANDIDATES_COUNT_MAX and has_time():
                return True
            is_whole = False
            return False

        yield from self._index.visit(topic, key, begin_ms, end_ms, check)
        return is_whole

    def is_damaged(self, physical_offset: int) -> Lookup[bool]:
        """Find out whether a record would begin here if part of it were not damaged."""
        log = self._commit_log.view()
        if not log.has_damage or not log.first <= physical_offset <= log.end - RECORD_BYTES_MIN:
            return False
        data = yield _log_read(log, physical_offset, _SIZE_BYTES)
        size = int.from_bytes(data, "big", signed=True)
        return log.is_damaged(physical_offset, max(size, _SIZE_BYTES))


def _decoded(data: bytes, physical_offset: int) -> MessageRecord | None:
    try:
        record = decode_record(data)
    except CorruptRecord:
        return None
    return record if record.physical_offset == physical_offset else None


def _log_read(log: LogView, offset: int, count: int) -> LogRead:
    """Return the read of a range of the log, shortened at the end of the log and of the file."""
    position = (offset - log.first) % log.file_size
    return LogRead(log, offset, min(count, log.file_size - position, log.end - offset))


def _place_of(queue: ConsumeQueue, offset: int) -> Lookup[int]:
    """Find an entry's physical offset; -1 for a filler entry or an offset outside the queue."""
    row = yield from _row_of(queue, offset)
    return -1 if row is None or row[1] in {0, FILLER_SIZE} else row[0]


def _row_of(queue: ConsumeQueue, offset: int) -> Lookup[QueueRow | None]:
    """Find an entry; None for an offset outside the queue."""
    if not queue.min_offset <= offset < queue.max_offset:
        return None
    data = yield from queue.plan(offset, 1).entries()
    if not data:
        return None
    physical_offset, size, code = ENTRY.unpack(data)
    return physical_offset, size, code
