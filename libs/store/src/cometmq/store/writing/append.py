# SPDX-License-Identifier: Apache-2.0
"""Place messages and encode them: one batch per commit, which the store writes at once.

`put` only stages a message. `take` works in two halves. The first, `_place`, decides: it admits or
refuses each message, assigns physical and queue offsets, and rolls over to the next file. The
second, `encode_records`, is a pure function from placed messages to bytes. A run (`runs.py`) is
placed and encoded in one step by its source. The store writes the batch and then either publishes
it or reverts it with `Batch.undo`, so messages that the disk refused never become visible.

Hot path: `_place` and `encode_records` once per commit, their loops once per message (budget
1.5 us together); bench/micro/bench_append.py.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Final, TypeAlias

from cometmq.remoting.message.ids import host_hex, offset_message_id
from cometmq.remoting.message.new_message import (
    NewMessage,
    Placed,
    encode_blank,
    encode_record,
    encode_records,
    record_size,
)
from cometmq.remoting.message.record_layout import BLANK_BYTES_MIN, TOPIC_BYTES_MAX
from cometmq.store.index.keys import KeyedRecord, KeyedRows, Keys
from cometmq.store.layout import is_topic
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.queue_table import QueueTable
from cometmq.store.results import PutDone, PutResult, PutStatus
from cometmq.store.settings import StoreSettings
from cometmq.store.writing.runs import Run, RunSource

PROPERTIES_CHARS_MAX: Final = 32767
UNQUEUED: Final = 0x4  # PREPARED and ROLLBACK (4 and 12) get no queue entry
ROLLBACK: Final = 0xC

CLOCK_STEP_MS: Final = 10_000
"""If the clock steps back by less than this, store times stand still until the clock has caught up.
After a larger step, store times follow the clock, because delays and retries are measured from the
store time.
"""

_PUT_OK: Final = PutStatus.PUT_OK  # an enum's attribute costs 40 ns: bench_append.py


_Put: TypeAlias = tuple[NewMessage | tuple[NewMessage, ...] | Run, PutDone]


class Batch:
    """The messages of one commit: `Appender` places them, then fills `segments`."""

    __slots__ = (
        "end",
        "file_end",
        "keys",
        "message_count",
        "placed",
        "refused",
        "results",
        "segments",
        "start",
        "store_timestamp",
        "touched",
    )

    def __init__(self, start: int, file_end: int, store_timestamp: int) -> None:
        self.start = self.end = start
        self.file_end = file_end
        self.store_timestamp = store_timestamp
        self.message_count = 0
        self.placed: list[tuple[int, list[Placed] | bytes]] = [(start, [])]
        """Contiguous messages, or the records of a run, each group with its physical offset."""
        self.segments: list[tuple[int, list[bytes]]] = []  # the records of each file
        self.touched: list[ConsumeQueue] = []
        self.keys: list[Keys] = [KeyedRows()]
        self.results: list[tuple[PutDone, bool, PutResult]] = []
        self.refused: list[tuple[PutDone, PutStatus]] = []

    def encode(self) -> None:
        """Fill `segments`; raise ValueError or struct.error if a message cannot be encoded."""
        end, records = self.start, list[bytes]()
        self.segments = [(end, records)]
        for offset, placed in self.placed:
            if offset != end:  # the next file
                records.append(encode_blank(offset - end))
                records = []
                self.segments.append((offset, records))
            if isinstance(placed, bytes):
                more = [placed]
            else:
                more = encode_records(placed, self.store_timestamp)
            records += more
            end = offset + sum(map(len, more))

    def undo(self) -> None:
        """Release the queue offsets of the messages, because the messages were not written."""
        for queue in self.touched:
            queue.unstage()


class Appender:
    """Stages messages; the only place that assigns physical and queue offsets."""

    __slots__ = (
        "_body_bytes_max",
        "_clock_ms",
        "_file_size",
        "_is_indexing",
        "_log",
        "_now_ms",
        "_pending",
        "_queues",
        "_source",
        "_table",
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
        """Start with nothing staged; while `refusal` is set, it is the answer to every put."""
        self._log = log
        self._table = table
        self._queues = table.queues
        self._clock_ms = clock_ms
        self._file_size = log.files.file_size
        self._is_indexing = settings.message_index_enable
        self._now_ms = 0
        self._pending: list[_Put] = []
        self._source: RunSource | None = None  # of the pending runs
        self.staged_bytes = 0  # bodies and properties only
        self.refusal: PutStatus | None = None
        self.apply(settings)

    def apply(self, settings: StoreSettings) -> None:
        """Adopt changed settings."""
        self._body_bytes_max = settings.max_message_size

    def put(self, message: NewMessage, done: PutDone) -> int:
        """Stage one message for the next commit; return `staged_bytes`."""
        self._pending.append((message, done))
        self.staged_bytes += len(message.body) + len(message.properties)
        return self.staged_bytes

    def put_batch(self, messages: Sequence[NewMessage], done: PutDone) -> None:
        """Stage messages for any queues as a unit: all are stored contiguously, or none is."""
        assert messages
        self._pending.append((tuple(messages), done))
        self.staged_bytes += sum(len(m.body) + len(m.properties) for m in messages)

    def put_run(self, source: RunSource, first: int, count: int, staged_bytes: int) -> int:
        """Stage requests of a source; only one source exists at a time; return `staged_bytes`."""
        assert self._source is None or self._source is source
        self._source = source
        last = self._pending[-1][0] if self._pending else None
        if isinstance(last, Run) and last.first + last.count == first:
            last.count += count
        else:
            run = Run(source, first, count)
            self._pending.append((run, run.refuse))
        self.staged_bytes += staged_bytes
        return self.staged_bytes

    def take(self) -> Batch | None:
        """Place and encode the staged messages; return None if none of them can be stored.

        Messages that cannot be stored are answered here.
        """
        pending = self._pending
        if not pending:
            return None
        self._pending = []
        self.staged_bytes = 0
        source, self._source = self._source, None
        try:
            return self._take(pending)
        finally:
            if source is not None:
                source.release()

    def _take(self, pending: list[_Put]) -> Batch | None:
        if self.refusal is not None:
            for _, done in pending:
                done(PutResult(self.refusal))
            return None
        batch = self._place(pending)
        try:
            batch.encode()
        except (ValueError, struct.error):
            # Only the encoder knows the bounds of all fields. Checking them in `_place` would
            # cost every good message 0.2 us, so a bad one costs its batch a second pass instead.
            batch.undo()
            batch = self._place(_refuse_unencodable(pending))
            batch.encode()
        for done, status in batch.refused:
            done(PutResult(status))
        return batch if batch.results else None

    def _begin(self) -> Batch:
        end, files = self._log.end, self._log.files
        now_ms = self._clock_ms()
        if now_ms > self._now_ms or self._now_ms - now_ms > CLOCK_STEP_MS:
            self._now_ms = now_ms
        file_end = end + self._file_size - (end - files.first) % self._file_size
        return Batch(end, file_end, self._now_ms)

    def _place(self, pending: Sequence[_Put]) -> Batch:
        batch = self._begin()
        puts = iter(pending)
        put = next(puts, None)
        while put is not None:
            message, done = put
            if isinstance(message, NewMessage):
                put = self._place_messages(batch, chain((put,), puts))
                continue
            if isinstance(message, Run):
                self._place_run(batch, message)
            else:
                self._place_unit(batch, message, done)
            put = next(puts, None)
        batch.message_count += len(batch.results)
        return batch

    def _place_messages(self, batch: Batch, puts: Iterator[_Put]) -> _Put | None:
        """Place single messages; return the first put that is not a single message, or None."""
        queues, body_bytes_max = self._queues, self._body_bytes_max
        now_ms, results, touched = batch.store_timestamp, batch.results, batch.touched
        placed, keyed = self._open(batch)
        end, file_end = batch.end, batch.file_end
        store_host, host_text = b"", ""
        other: _Put | None = None
        for message, done in puts:
            if not isinstance(message, NewMessage):
                other = message, done
                break
            queue = queues.get((message.topic, message.queue_id)) or self._new_queue(message)
            if queue is None or len(message.body) > body_bytes_max:
                batch.refused.append((done, PutStatus.MESSAGE_ILLEGAL))
                continue
            try:
                size = record_size(message)
                if end + size + BLANK_BYTES_MIN > file_end:
                    self._roll_for(batch, size)
                    placed, end, file_end = self._open(batch)[0], batch.end, batch.file_end
            except ValueError:
                batch.refused.append((done, _status_of_unencodable(message)))
                continue
            offset, end = end, end + size
            transaction = message.sys_flag & ROLLBACK
            is_queued = not transaction & UNQUEUED
            queue_offset = queue.next_offset if is_queued else 0
            placed.append((message, queue_offset, offset))
            if is_queued and queue.stage(offset, size, message.tag_code, now_ms):
                touched.append(queue)
            if transaction != ROLLBACK:
                for key in message.keys:
                    keyed.append((message.topic, key, offset, now_ms))
            if message.store_host is not store_host:
                store_host = message.store_host
                host_text = host_hex(store_host)
            message_id = "%s%016X" % (host_text, offset)  # noqa: UP031  # see ids.py
            result = PutResult(_PUT_OK, offset, size, queue_offset, now_ms, message_id)
            results.append((done, message.wait, result))
        batch.end = end
        return other

    def _open(self, batch: Batch) -> tuple[list[Placed], list[KeyedRecord]]:
        """Return the lists to which the next message and its keys are appended."""
        placed = batch.placed[-1][1]
        if isinstance(placed, bytes):
            placed = []
            batch.placed.append((batch.end, placed))
        if not self._is_indexing:
            return placed, []
        keys = batch.keys[-1]
        if not isinstance(keys, KeyedRows):
            keys = KeyedRows()
            batch.keys.append(keys)
        return placed, keys.rows

    def _place_run(self, batch: Batch, run: Run) -> None:
        """Place the requests of a run, as many at once as a file has room for."""
        first, end = run.first, run.first + run.count
        while first < end:
            placed = run.source.place(
                first, end - first, batch.end, batch.file_end, batch.store_timestamp, self._queue_of
            )
            count, message_count, records, entries, keys, groups = placed
            if not count:
                self._roll_for(batch, 0)
                continue
            first += count
            batch.placed.append((batch.end, records))
            batch.end += len(records)
            for queue, data, entry_count in entries:
                if queue.stage_run(data, entry_count):
                    batch.touched.append(queue)
            if self._is_indexing:
                batch.keys.append(keys)
            for waits, done, request_count in groups:
                result = PutResult(_PUT_OK, store_timestamp=batch.store_timestamp)
                result.request_count = request_count
                batch.results.append((done, waits, result))
            batch.message_count += message_count - len(groups)  # `_place` counts each result once

    def _queue_of(self, topic: str, queue_id: int) -> ConsumeQueue:
        return self._queues.get((topic, queue_id)) or self._table.create(topic, queue_id)

    def _place_unit(self, batch: Batch, messages: tuple[NewMessage, ...], done: PutDone) -> None:
        """Place messages contiguously in one file, and in the same order in their queues."""
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
            batch.refused.append((done, PutStatus.MESSAGE_ILLEGAL))
            return
        try:
            sizes = [record_size(message) for message in messages]
            size = sum(sizes)
            if batch.end + size + BLANK_BYTES_MIN > batch.file_end:
                self._roll_for(batch, size)
        except ValueError:
            batch.refused.append((done, max(map(_status_of_unencodable, messages))))
            return
        placed, keyed = self._open(batch)
        first = known[0].next_offset
        result = PutResult(PutStatus.PUT_OK, batch.end, size, first, self._now_ms)
        message_ids = []
        for message, queue, record_bytes in zip(messages, known, sizes, strict=True):
            offset = batch.end
            message_ids.append(offset_message_id(message.store_host, offset))
            placed.append((message, queue.next_offset, offset))
            if queue.stage(offset, record_bytes, message.tag_code, self._now_ms):
                batch.touched.append(queue)
            keyed += [(message.topic, key, offset, self._now_ms) for key in message.keys]
            batch.end = offset + record_bytes
        result.message_id = ",".join(message_ids)
        batch.message_count += len(messages) - 1  # `_place` counts each result once
        batch.results.append((done, messages[0].wait, result))

    def _new_queue(self, message: NewMessage) -> ConsumeQueue | None:
        """Create a queue for its first message; return None if the name or id is illegal."""
        if message.queue_id < 0 or len(message.topic) > TOPIC_BYTES_MAX:
            return None
        if not is_topic(message.topic):
            return None
        return self._table.create(message.topic, message.queue_id)

    def _roll_for(self, batch: Batch, size: int) -> None:
        """Continue in the next file.

        Raise ValueError, without changes, for a size that exceeds a file's capacity.
        """
        if size > self._file_size - BLANK_BYTES_MIN:
            raise ValueError(f"{size} bytes do not fit into one file")
        batch.end = batch.file_end
        batch.file_end += self._file_size
        batch.placed.append((batch.end, []))


def _refuse_unencodable(pending: Sequence[_Put]) -> list[_Put]:
    """Refuse the puts whose messages cannot be encoded; return the others."""
    kept: list[_Put] = []
    for put in pending:
        if isinstance(put[0], Run):  # its source takes only what a record can hold
            kept.append(put)
            continue
        messages = put[0] if isinstance(put[0], tuple) else (put[0],)
        try:
            for message in messages:
                encode_record(message, 0, 0, 0)
        except (ValueError, struct.error):
            put[1](PutResult(max(map(_status_of_unencodable, messages))))
        else:
            kept.append(put)
    return kept


def _status_of_unencodable(message: NewMessage) -> PutStatus:
    # RocketMQ checks characters first and bytes when it encodes, with different answers.
    properties = message.properties
    if len(properties) <= PROPERTIES_CHARS_MAX < len(properties.encode("utf-8", "replace")):
        return PutStatus.PROPERTIES_SIZE_EXCEEDED
    return PutStatus.MESSAGE_ILLEGAL
