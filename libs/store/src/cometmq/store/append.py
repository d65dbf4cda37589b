# SPDX-License-Identifier: Apache-2.0
"""Build records and place them: from puts to a batch that one write stores.

A put is only remembered. `take` builds everything that was put since the last commit: each record
gets its place and its final bytes, its queue entry and its result. The store writes that, and
then either publishes the batch or takes everything back with `undo`. So nothing is visible that
the disk refused.

Hot path: `_stage` once per commit, its loop once per message (budget 1.5 us with the record);
bench/micro/bench_append.py.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from cometmq.remoting.message.ids import host_hex, offset_message_id
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
from cometmq.store.index_file import KeyedRecord
from cometmq.store.layout import is_topic
from cometmq.store.queue_table import QueueTable
from cometmq.store.results import PutDone, PutResult, PutStatus
from cometmq.store.settings import StoreSettings

PROPERTIES_CHARS_MAX: Final = 32767
UNQUEUED: Final = 0x4  # PREPARED and ROLLBACK (4 and 12) have no place in a queue
ROLLBACK: Final = 0xC

CLOCK_STEP_MS: Final = 10_000
"""A clock that goes back less is waited for; one that was set back is followed, for delays and
retries count from the store time."""

_PUT_OK: Final = PutStatus.PUT_OK  # the attribute of an enum takes 40 ns: bench_append.py


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
        "_now_ms",
        "_pending",
        "_queues",
        "_records",
        "_results",
        "_segments",
        "_staged_count",
        "_table",
        "_touched",
        "refusal",
        "staged_bytes",
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
        self._pending: list[tuple[NewMessage | tuple[NewMessage, ...], PutDone]] = []
        self.staged_bytes = 0  # bodies and properties only
        self.refusal: PutStatus | None = None
        self.apply(settings)

    def apply(self, settings: StoreSettings) -> None:
        """Follow changed settings."""
        self._body_bytes_max = settings.max_message_size

    def put(self, message: NewMessage, done: PutDone) -> int:
        """Remember one message for the next commit; return `staged_bytes`."""
        self._pending.append((message, done))
        self.staged_bytes += len(message.body) + len(message.properties)
        return self.staged_bytes

    def put_batch(self, messages: Sequence[NewMessage], done: PutDone) -> None:
        """Remember messages, of any queues, that are stored side by side or not at all."""
        assert messages
        self._pending.append((tuple(messages), done))
        self.staged_bytes += sum(len(m.body) + len(m.properties) for m in messages)

    def take(self) -> Batch | None:
        """Build what was put; None if nothing was, or nothing of it can be stored.

        What cannot be stored is answered here.
        """
        pending = self._pending
        if not pending:
            return None
        self._pending = []
        self.staged_bytes = 0
        if self.refusal is not None:
            for _, done in pending:
                done(PutResult(self.refusal))
            return None
        self._begin()
        self._stage(pending)
        return self._finish()

    def _begin(self) -> None:
        """Start a batch at the end of the log, at a time that runs back only with the clock."""
        end = self._end = self._log.end
        files = self._log.files
        self._file_end = end + self._file_size - (end - files.first) % self._file_size
        self._records: list[bytes] = []
        self._segments: list[tuple[int, list[bytes]]] = [(end, self._records)]
        self._touched: list[ConsumeQueue] = []
        self._keyed: list[KeyedRecord] = []
        self._results: list[tuple[PutDone, bool, PutResult]] = []
        self._staged_count = 0
        now_ms = self._clock_ms()
        if now_ms > self._now_ms or self._now_ms - now_ms > CLOCK_STEP_MS:
            self._now_ms = now_ms

    def _finish(self) -> Batch | None:
        """Hand the batch over; nothing here keeps its bytes and answers alive."""
        batch = Batch(
            self._log.end,
            self._end,
            self._segments,
            self._touched,
            self._keyed,
            self._results,
            self._now_ms,
            self._staged_count,
        )
        self._records, self._segments, self._touched = [], [], []
        self._keyed, self._results = [], []
        return batch if batch.results else None

    def _stage(self, pending: list[tuple[NewMessage | tuple[NewMessage, ...], PutDone]]) -> None:
        """Stage one after the other what was put."""
        queues, body_bytes_max, now_ms = self._queues, self._body_bytes_max, self._now_ms
        keyed = self._keyed if self._is_indexing else []
        results, touched = self._results, self._touched
        store_host, host_text = b"", ""
        for message, done in pending:
            if isinstance(message, tuple):
                self._stage_batch(message, done)
                continue
            queue = queues.get((message.topic, message.queue_id)) or self._new_queue(message)
            if (
                queue is None
                or len(message.body) > body_bytes_max
                or len(message.properties) > PROPERTIES_CHARS_MAX
            ):
                done(PutResult(PutStatus.MESSAGE_ILLEGAL))
                continue
            sys_flag = message.sys_flag
            queue_offset = 0 if sys_flag & UNQUEUED else queue.next_offset
            offset = self._end
            try:
                record = encode_record(message, queue_offset, offset, now_ms)
                size = len(record)
                if offset + size + BLANK_BYTES_MIN > self._file_end:
                    offset = self._roll_for(size)
                    record = encode_record(message, queue_offset, offset, now_ms)
            except (ValueError, struct.error):
                done(PutResult(_status_of_unencodable(message)))
                continue
            self._records.append(record)
            self._end = offset + size
            if not sys_flag & UNQUEUED and queue.stage(offset, size, message.tag_code, now_ms):
                touched.append(queue)
            if sys_flag & ROLLBACK != ROLLBACK:
                for key in message.keys:
                    keyed.append((message.topic, key, offset, now_ms))
            if message.store_host is not store_host:
                store_host = message.store_host
                host_text = host_hex(store_host)
            message_id = "%s%016X" % (host_text, offset)  # noqa: UP031  # see ids.py
            result = PutResult(_PUT_OK, offset, size, queue_offset, now_ms, message_id)
            results.append((done, message.wait, result))
            self._staged_count += 1

    def _stage_batch(self, messages: tuple[NewMessage, ...], done: PutDone) -> None:
        """Stage messages as a unit: side by side in one file, those of a queue in their order."""
        queues = [
            self._queues.get((message.topic, message.queue_id)) or self._new_queue(message)
            for message in messages
        ]
        known = [queue for queue in queues if queue is not None]
        is_legal = len(known) == len(messages) and all(
            len(message.body) <= self._body_bytes_max
            and len(message.properties) <= PROPERTIES_CHARS_MAX
            for message in messages
        )
        if not is_legal:
            done(PutResult(PutStatus.MESSAGE_ILLEGAL))
            return
        try:
            size = sum(map(record_size, messages))
            if self._end + size + BLANK_BYTES_MIN > self._file_end:
                self._roll_for(size)
            records = _encode_batch(messages, known, self._end, self._now_ms)
        except (ValueError, struct.error):
            done(PutResult(max(map(_status_of_unencodable, messages))))
            return
        result = PutResult(PutStatus.PUT_OK, self._end, size, known[0].next_offset, self._now_ms)
        result.message_id = ",".join(self._place_batch(messages, records, known))
        self._results.append((done, messages[0].wait, result))

    def _place_batch(
        self, messages: tuple[NewMessage, ...], records: list[bytes], queues: list[ConsumeQueue]
    ) -> list[str]:
        """Place encoded records; return their ids."""
        message_ids = []
        now_ms = self._now_ms
        for message, record, queue in zip(messages, records, queues, strict=True):
            offset = self._end
            message_ids.append(offset_message_id(message.store_host, offset))
            if queue.stage(offset, len(record), message.tag_code, now_ms):
                self._touched.append(queue)
            if self._is_indexing:
                self._keyed += [(message.topic, key, offset, now_ms) for key in message.keys]
            self._end = offset + len(record)
        self._records += records
        self._staged_count += len(records)
        return message_ids

    def _new_queue(self, message: NewMessage) -> ConsumeQueue | None:
        """Make the queue of its first message; None if it cannot have one."""
        if message.queue_id < 0 or len(message.topic) > TOPIC_BYTES_MAX:
            return None
        if not is_topic(message.topic):
            return None
        return self._table.create(message.topic, message.queue_id)

    def _roll_for(self, size: int) -> int:
        """Close the current file; return the begin of the next one.

        Raise ValueError for a size that fits into no file.
        """
        if size > self._file_size - BLANK_BYTES_MIN:
            raise ValueError(f"{size} bytes do not fit into one file")
        self._records.append(encode_blank(self._file_end - self._end))
        self._end = self._file_end
        self._file_end += self._file_size
        self._records = []
        self._segments.append((self._end, self._records))
        return self._end


def undo(batch: Batch) -> None:
    """Take back the queue offsets of a batch that was not written."""
    for queue in batch.touched:
        queue.unstage()


def _encode_batch(
    messages: Sequence[NewMessage],
    queues: Sequence[ConsumeQueue],
    physical_offset: int,
    now_ms: int,
) -> list[bytes]:
    records = []
    next_offsets: dict[ConsumeQueue, int] = {}
    for message, queue in zip(messages, queues, strict=True):
        queue_offset = next_offsets.get(queue, queue.next_offset)
        record = encode_record(message, queue_offset, physical_offset, now_ms)
        next_offsets[queue] = queue_offset + 1
        physical_offset += len(record)
        records.append(record)
    return records


def _status_of_unencodable(message: NewMessage) -> PutStatus:
    if len(message.properties.encode("utf-8", "replace")) > PROPERTIES_CHARS_MAX:
        return PutStatus.PROPERTIES_SIZE_EXCEEDED
    return PutStatus.MESSAGE_ILLEGAL
