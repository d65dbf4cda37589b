# SPDX-License-Identifier: Apache-2.0
"""Build records and place them: from puts to a batch that one write stores.

A put only stages: the record gets its place and its final bytes, its queue entry and its result
are made ready. `take` hands all of it over; the store writes it, and then either publishes the
batch or takes everything back with `undo`. So nothing is visible that the disk refused.

Hot path: `put` once per message (budget 1.7 us with the record); bench/micro/bench_append.py.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from cometmq.remoting.message.ids import offset_message_id
from cometmq.remoting.message.record import (
    BLANK_BYTES_MIN,
    TOPIC_BYTES_MAX,
    NewMessage,
    encode_blank,
    encode_record,
    record_size,
)
from cometmq.store.commit_log import CommitLog
from cometmq.store.consume_queue import ConsumeQueue
from cometmq.store.queue_table import QueueTable
from cometmq.store.results import PutDone, PutResult, PutStatus
from cometmq.store.settings import StoreSettings

PROPERTIES_CHARS_MAX: Final = 32767
UNQUEUED: Final = 0x4  # PREPARED and ROLLBACK (4 and 12) have no place in a queue
ROLLBACK: Final = 0xC

KeyedRecord: TypeAlias = tuple[str, tuple[str, ...], int, int]
"""What the index needs: topic, keys, physical offset, store timestamp."""


class Batch(NamedTuple):
    """Everything staged between two commits."""

    start: int
    end: int
    segments: list[tuple[int, list[bytes]]]  # one per file: offset and the bytes for it
    touched: list[ConsumeQueue]
    keyed: list[KeyedRecord]
    results: list[tuple[PutDone, bool, PutResult]]
    store_timestamp: int
    message_count: int


class Appender:
    """Stages messages; the only place that gives out physical and queue offsets."""

    __slots__ = (
        "_body_bytes_max",
        "_clock_ms",
        "_end",
        "_file_end",
        "_file_size",
        "_is_indexing",
        "_keyed",
        "_log",
        "_message_count",
        "_now_ms",
        "_queues",
        "_records",
        "_results",
        "_segments",
        "_table",
        "_touched",
        "refusal",
    )

    def __init__(
        self,
        settings: StoreSettings,
        log: CommitLog,
        table: QueueTable,
        clock_ms: Callable[[], int],
    ) -> None:
        """Begin with nothing staged; `refusal` answers every put while it is set."""
        self._log = log
        self._table = table
        self._queues = table.queues
        self._clock_ms = clock_ms
        self._file_size = log.files.file_size
        self._is_indexing = settings.message_index_enable
        self._now_ms = 0
        self.refusal: PutStatus | None = None
        self.apply(settings)
        self._clear()

    def apply(self, settings: StoreSettings) -> None:
        """Follow changed settings."""
        self._body_bytes_max = settings.max_message_size

    def _clear(self) -> None:
        self._records: list[bytes] = []
        self._segments: list[tuple[int, list[bytes]]] = []
        self._touched: list[ConsumeQueue] = []
        self._keyed: list[KeyedRecord] = []
        self._results: list[tuple[PutDone, bool, PutResult]] = []
        self._message_count = 0
        self._end = -1
        self._file_end = -1

    @property
    def staged_bytes(self) -> int:
        """Bytes that the next commit will write."""
        return self._end - self._log.end if self._segments else 0

    def put(self, message: NewMessage, done: PutDone) -> None:
        """Stage one message, or answer at once why not."""
        status = self._refuse(message)
        if status is not None:
            done(PutResult(status))
            return
        if not self._segments:
            self._begin()
        now_ms = self._now_ms
        is_queued = not message.sys_flag & UNQUEUED
        try:
            queue = self._queues.get((message.topic, message.queue_id))
            if queue is None:
                queue = self._table.create(message.topic, message.queue_id)
            queue_offset = queue.next_offset if is_queued else 0
            record = encode_record(message, queue_offset, self._end, now_ms)
            if self._end + len(record) + BLANK_BYTES_MIN > self._file_end:
                if len(record) > self._file_size - BLANK_BYTES_MIN:
                    done(PutResult(PutStatus.MESSAGE_ILLEGAL))
                    return
                self._roll()
                record = encode_record(message, queue_offset, self._end, now_ms)
        except (ValueError, struct.error):
            done(PutResult(_status_of_unencodable(message)))
            return
        offset = self._end
        self._place(message, record, queue if is_queued else None)
        message_id = offset_message_id(message.store_host, offset)
        result = PutResult(PutStatus.PUT_OK, offset, len(record), queue_offset, now_ms, message_id)
        self._results.append((done, message.wait, result))

    def put_batch(self, messages: Sequence[NewMessage], done: PutDone) -> None:
        """Stage messages of one queue as a unit: all in one file, with consecutive offsets."""
        assert messages
        status = next(filter(None, map(self._refuse, messages)), None)
        if status is None:
            try:
                result = self._stage_batch(messages)
            except (ValueError, struct.error):
                status = next(
                    filter(None, map(_status_of_unencodable, messages)), PutStatus.MESSAGE_ILLEGAL
                )
            else:
                self._results.append((done, messages[0].wait, result))
                return
        done(PutResult(status))

    def _stage_batch(self, messages: Sequence[NewMessage]) -> PutResult:
        size = sum(map(record_size, messages))
        if size > self._file_size - BLANK_BYTES_MIN:
            raise ValueError("a batch must fit into one file")
        if not self._segments:
            self._begin()
        if self._end + size + BLANK_BYTES_MIN > self._file_end:
            self._roll()
        first = messages[0]
        queue = self._queues.get((first.topic, first.queue_id))
        if queue is None:
            queue = self._table.create(first.topic, first.queue_id)
        records = _encode_batch(messages, queue.next_offset, self._end, self._now_ms)
        result = PutResult(PutStatus.PUT_OK, self._end, size, queue.next_offset, self._now_ms)
        message_ids = []
        for message, record in zip(messages, records, strict=True):
            message_ids.append(offset_message_id(message.store_host, self._end))
            self._place(message, record, queue)
        result.message_id = ",".join(message_ids)
        return result

    def _refuse(self, message: NewMessage) -> PutStatus | None:
        if self.refusal is not None:
            return self.refusal
        if (
            len(message.body) > self._body_bytes_max
            or not 0 < len(message.topic) <= TOPIC_BYTES_MAX
            or len(message.properties) > PROPERTIES_CHARS_MAX
            or message.queue_id < 0
        ):
            return PutStatus.MESSAGE_ILLEGAL
        return None

    def _begin(self) -> None:
        """Start a batch at the end of the log, at a time that never runs backwards."""
        end = self._end = self._log.end
        files = self._log.files
        self._file_end = end + self._file_size - (end - files.first) % self._file_size
        self._records = []
        self._segments.append((end, self._records))
        self._now_ms = max(self._now_ms, self._clock_ms())

    def _roll(self) -> None:
        """Close the current file and go on in the next one."""
        self._records.append(encode_blank(self._file_end - self._end))
        self._end = self._file_end
        self._file_end += self._file_size
        self._records = []
        self._segments.append((self._end, self._records))

    def _place(self, message: NewMessage, record: bytes, queue: ConsumeQueue | None) -> None:
        offset = self._end
        size = len(record)
        self._records.append(record)
        self._end = offset + size
        self._message_count += 1
        if queue is not None:
            if not queue.is_touched:
                self._touched.append(queue)
            delay_ms = queue.delay_ms
            queue.stage(
                offset, size, message.tag_code if delay_ms is None else self._now_ms + delay_ms
            )
        if message.keys and self._is_indexing and message.sys_flag & ROLLBACK != ROLLBACK:
            self._keyed.append((message.topic, message.keys, offset, self._now_ms))

    def take(self) -> Batch | None:
        """Hand over what is staged; None if nothing is."""
        if not self._segments:
            return None
        batch = Batch(
            self._log.end,
            self._end,
            self._segments,
            self._touched,
            self._keyed,
            self._results,
            self._now_ms,
            self._message_count,
        )
        self._clear()
        return batch


def undo(batch: Batch) -> None:
    """Take back the queue offsets of a batch that was not written."""
    for queue in batch.touched:
        queue.unstage()


def _encode_batch(
    messages: Sequence[NewMessage], queue_offset: int, physical_offset: int, now_ms: int
) -> list[bytes]:
    records = []
    for index, message in enumerate(messages):
        record = encode_record(message, queue_offset + index, physical_offset, now_ms)
        physical_offset += len(record)
        records.append(record)
    return records


def _status_of_unencodable(message: NewMessage) -> PutStatus:
    if len(message.properties.encode("utf-8", "replace")) > PROPERTIES_CHARS_MAX:
        return PutStatus.PROPERTIES_SIZE_EXCEEDED
    return PutStatus.MESSAGE_ILLEGAL
