# SPDX-License-Identifier: Apache-2.0
"""Place messages and encode them: one batch per commit, which the store writes at once.

`put` only stages a message. `take` admits or refuses each message, assigns its physical and queue
offset, encodes its record there, and rolls over to the next file. The store writes the batch and
then either publishes it or reverts it with `Batch.undo`, so messages that the disk refused never
become visible.

A *unit* is a number of messages that are stored contiguously in one file, or not at all: those of a
batch request. A *run* (`runs.py`) is placed and encoded in one step by a source outside the store.

Hot path: `_place` runs once per commit, its loop once per message (budget 1.5 us with the record,
bench/micro/bench_append.py).
"""

import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import islice
from typing import Final, TypeAlias

import msgspec

from cometmq.remoting.message.ids import host_hex, offset_message_id
from cometmq.remoting.message.new_message import NewMessage, encode_blank, encode_record, weight_of
from cometmq.remoting.message.record_layout import BLANK_BYTES_MIN, QUEUE_ID_MAX
from cometmq.store.index.index_format import KeyedRecord, KeyedRows, Keys
from cometmq.store.layout import is_storable
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.queue_table import QueueTable
from cometmq.store.results import PutDone, PutResult, PutStatus
from cometmq.store.settings import StoreSettings
from cometmq.store.writing.marks import Mark
from cometmq.store.writing.runs import Run, RunSource

PROPERTIES_CHARS_MAX: Final = 32767
UNQUEUED: Final = 0x4  # PREPARED and ROLLBACK (4 and 12) get no queue entry
ROLLBACK: Final = 0xC

CLOCK_STEP_MS: Final = 10_000
"""If the clock steps back by less than this, store times stand still until the clock has caught up.
After a larger step, store times follow the clock, because delays and retries are measured from the
store time.
"""

UNIT_STEP_WEIGHT: Final = 2_000
"""Total weight (`weight_of`) of the messages of a unit that are checked, encoded or placed in one
step of 2 to 5 ms.
"""

KEY_BYTES: Final = 256
"""Placing and indexing a key takes at least as long as writing this number of bytes."""

_PUT_OK: Final = PutStatus.PUT_OK  # an enum's attribute costs 40 ns: bench_append.py


_NEW: Final = NewMessage  # not StoredAgain, whose body an earlier limit has admitted

_Put: TypeAlias = tuple[NewMessage | tuple[NewMessage, ...] | Run, PutDone]
_Place: TypeAlias = tuple[int, int, list[bytes], list[KeyedRecord]]
"""Where the next record is placed: its offset, the end of its file, and the lists to which the
record and its keys are appended.
"""


class Batch(msgspec.Struct, eq=False):
    """The messages of one commit, placed and encoded."""

    start: int
    end: int
    file_end: int
    store_timestamp: int
    segments: list[tuple[int, list[bytes]]]
    """The records for each file, with the physical offset of the first one."""
    message_count: int = 0
    is_large: bool = False
    """Whether the batch is a large unit, whose keys are indexed in steps."""
    touched: list[ConsumeQueue] = []
    keys: list[Keys] = []
    results: list[tuple[PutDone, bool, PutResult]] = []
    refused: list[tuple[PutDone, PutStatus]] = []

    def undo(self) -> None:
        """Release the queue offsets of the messages, because the messages were not written."""
        for queue in self.touched:
            queue.unstage()


class Appender:
    """Stages messages; only this class assigns physical and queue offsets."""

    def __init__(
        self,
        settings: StoreSettings,
        log: CommitLog,
        table: QueueTable,
        clock_ms: Callable[[], int],
    ) -> None:
        """Start with nothing staged. While `refusal` is set, every put is answered with it."""
        self._commit_log = log
        self._table = table
        self._queues = table.queues
        self._clock_ms = clock_ms
        self._file_size = log.files.file_size
        self._is_indexing = settings.message_index_enable
        self._now_ms = 0
        self._nowhere = table.nowhere
        self._pending: list[_Put] = []
        self._sources: list[RunSource] = []  # sources of the pending runs
        self.staged_bytes = 0  # bodies, properties and KEY_BYTES for each key
        self.staged_count = 0  # requests
        self.refusal: PutStatus | None = None
        self.apply(settings)

    def apply(self, settings: StoreSettings) -> None:
        """Use settings that were changed at run time."""
        self._body_bytes_max = settings.max_message_size

    def put(self, message: NewMessage, done: PutDone) -> int:
        """Stage one message for the next commit; return `staged_bytes`."""
        self._pending.append((message, done))
        self.staged_count += 1
        self.staged_bytes += (  # `_bytes_of`, without a call
            len(message.body) + len(message.properties) + KEY_BYTES * len(message.keys)
        )
        return self.staged_bytes

    def put_batch(self, messages: Sequence[NewMessage], done: PutDone) -> None:
        """Stage messages for any queues as a unit: either all are stored, contiguously, or none."""
        assert messages
        self._pending.append((tuple(messages), done))
        self.staged_count += 1
        self.staged_bytes += sum(map(_bytes_of, messages))

    def place_alone(
        self, messages: Sequence[NewMessage], done: PutDone
    ) -> Generator[None, None, Batch | None]:
        """Place a unit in steps, in a batch of its own; return None if it cannot be stored.

        The caller places nothing else before the last step.
        """
        assert messages
        if self.refusal is not None:
            done(PutResult(self.refusal))
            return None
        batch = self._begin()
        batch.is_large = True
        yield from self._placing_unit(batch, tuple(messages), done)
        batch.message_count += len(batch.results)
        for refused, status in batch.refused:
            refused(PutResult(status))
        return batch if batch.results else None

    def put_run(self, source: RunSource, first: int, count: int, staged_bytes: int) -> int:
        """Stage requests of a source; return `staged_bytes`."""
        if source not in self._sources:
            self._sources.append(source)
        last = self._pending[-1][0] if self._pending else None
        if isinstance(last, Run) and last.is_continued_by(source, first):
            last.count += count
            last.staged_bytes += staged_bytes
        else:
            run = Run(source, first, count, staged_bytes)
            self._pending.append((run, run.refuse))
        self.staged_count += count
        self.staged_bytes += staged_bytes
        return self.staged_bytes

    def take(self, bytes_max: int | None = None) -> Batch | None:
        """Place and encode the staged messages, or the oldest with at least `bytes_max` bytes;
        return None if none of them can be stored.

        Messages that cannot be stored are answered here.
        """
        pending = self._pending
        if not pending:
            return None
        self._pending = []
        sources, self._sources = self._sources, []
        if bytes_max is not None and self.staged_bytes > bytes_max:
            self._pending = self._behind(pending, bytes_max)
            self._sources = _sources_of(self._pending)
            sources = [source for source in sources if source not in self._sources]
        else:
            self.staged_bytes = self.staged_count = 0
        try:
            return self._take(pending)
        finally:
            for source in sources:
                source.release()

    def _behind(self, pending: list[_Put], bytes_max: int) -> list[_Put]:
        """Keep the first puts, at least `bytes_max` bytes of them; remove and return the others."""
        index = taken_bytes = taken_count = 0
        while taken_bytes < bytes_max and index < len(pending):
            put = pending[index][0]
            index += 1
            if isinstance(put, Run):
                taken_bytes += put.staged_bytes
                taken_count += put.count
            else:
                taken_bytes += sum(map(_bytes_of, put if isinstance(put, tuple) else (put,)))
                taken_count += 1
        behind = pending[index:]
        del pending[index:]
        self.staged_bytes = self.staged_bytes - taken_bytes if behind else 0
        self.staged_count = self.staged_count - taken_count if behind else 0
        return behind

    def take_run(self, source: RunSource, count: int) -> Batch | None:
        """Place all requests of a source, as `put_run` and `take` would; nothing else is staged."""
        try:
            if self.refusal is not None:
                source.refuse(0, count, PutResult(self.refusal))
                return None
            batch = self._begin()
            self._place_run(batch, source, 0, count)
            batch.message_count += len(batch.results)
            return batch
        finally:
            source.release()

    def _take(self, pending: list[_Put]) -> Batch | None:
        if self.refusal is not None:
            for _, done in pending:
                done(PutResult(self.refusal))
            return None
        batch = self._begin()
        first = pending[0][0]
        if len(pending) == 1 and isinstance(first, Run):  # all requests came the native way
            self._place_run(batch, first.source, first.first, first.count)
            batch.message_count += len(batch.results)
        else:
            self._place(batch, pending)
        for done, status in batch.refused:
            done(PutResult(status))
        return batch if batch.results else None

    def _begin(self) -> Batch:
        end, files = self._commit_log.end, self._commit_log.files
        now_ms = self._clock_ms()
        if now_ms > self._now_ms or self._now_ms - now_ms > CLOCK_STEP_MS:
            self._now_ms = now_ms
        file_end = end + self._file_size - (end - files.first) % self._file_size
        return Batch(end, end, file_end, self._now_ms, [(end, [])])

    def _place(self, batch: Batch, pending: Sequence[_Put]) -> None:
        queues, body_bytes_max = self._queues, self._body_bytes_max
        now_ms, results, touched = batch.store_timestamp, batch.results, batch.touched
        end, file_end, records, keyed = self._open(batch)
        store_host, host_text = b"", ""
        for message, done in pending:
            if not isinstance(message, NewMessage):
                batch.end = end
                end, file_end, records, keyed = self._place_many(batch, message, done)
                continue
            queue = queues.get((message.topic, message.queue_id)) or self._new_queue(message)
            if queue is None or (len(message.body) > body_bytes_max and type(message) is _NEW):
                batch.refused.append((done, PutStatus.MESSAGE_ILLEGAL))
                continue
            transaction = message.sys_flag & ROLLBACK
            is_queued = not transaction & UNQUEUED
            queue_offset = queue.next_offset if is_queued else 0
            try:
                record = encode_record(message, queue_offset, end, now_ms)
                size = len(record)
                if end + size + BLANK_BYTES_MIN > file_end:
                    batch.end = end
                    end, file_end, records, keyed = self._roll_for(batch, size)
                    record = encode_record(message, queue_offset, end, now_ms)
            except (ValueError, struct.error):  # only the encoder checks the bounds of every field
                batch.refused.append((done, _status_of_unencodable(message)))
                continue
            records.append(record)
            offset, end = end, end + size
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
        batch.end, batch.message_count = end, batch.message_count + len(results)

    def _open(self, batch: Batch) -> _Place:
        """Return where the next record is placed."""
        keys = batch.keys[-1] if batch.keys else None
        if not isinstance(keys, KeyedRows):
            keys = KeyedRows()
            batch.keys.append(keys)
        rows = keys.rows if self._is_indexing else []
        return batch.end, batch.file_end, batch.segments[-1][1], rows

    def _place_many(self, batch: Batch, put: tuple[NewMessage, ...] | Run, done: PutDone) -> _Place:
        if isinstance(put, Run):
            self._place_run(batch, put.source, put.first, put.count)
        else:
            for _ in self._placing_unit(batch, put, done):
                pass
        return self._open(batch)

    def _place_run(self, batch: Batch, source: RunSource, first: int, count: int) -> None:
        """Place the requests of a run, filling one file at a time."""
        end = first + count
        while first < end:
            placed = source.place(
                first,
                end - first,
                batch.end,
                batch.file_end,
                batch.store_timestamp,
                self._queues,
                self._table.create,
            )
            count, message_count, records, entries, keys, groups = placed
            if not count:
                self._roll_for(batch, 0)
                continue
            first += count
            batch.segments[-1][1].append(records)
            batch.end += len(records)
            for queue, data, entry_count in entries:
                if queue.stage_run(data, entry_count):
                    batch.touched.append(queue)
            if self._is_indexing:
                batch.keys.append(keys)
            # Of a run with batches, all further messages count with the first that wait.
            further = message_count
            for _, _, request_count in groups:
                further -= request_count
            for waits, done, request_count in groups:
                result = PutResult(_PUT_OK, store_timestamp=batch.store_timestamp)
                result.request_count = result.message_count = request_count
                if waits:
                    result.message_count += further
                    further = 0
                batch.results.append((done, waits, result))
            batch.message_count += message_count - len(groups)  # `_place` counts each result once

    def _placing_unit(
        self, batch: Batch, messages: tuple[NewMessage, ...], done: PutDone
    ) -> Generator[None, None, None]:
        """Place messages contiguously in one file; their queue offsets have the same order."""
        known: list[ConsumeQueue] = []
        for part in _parts(messages):
            if not self._admit_part(part, known):
                batch.refused.append((done, PutStatus.MESSAGE_ILLEGAL))
                return
            yield
        try:
            unit, sizes = yield from self._encoding_unit(messages, known, batch.end)
            size = sum(sizes)
            if batch.end + size + BLANK_BYTES_MIN > batch.file_end:
                self._roll_for(batch, size)
                unit, sizes = yield from self._encoding_unit(messages, known, batch.end)
        except (ValueError, struct.error):
            batch.refused.append((done, max(map(_status_of_unencodable, messages))))
            return
        _, _, records, keyed = self._open(batch)
        result = PutResult(PutStatus.PUT_OK, batch.end, size, known[0].next_offset, self._now_ms)
        message_ids: list[str] = []
        rows = zip(messages, known, sizes, strict=True)
        for part in _parts(messages):
            for message, queue, record_bytes in islice(rows, len(part)):
                offset = batch.end
                message_ids.append(offset_message_id(message.store_host, offset))
                if queue.stage(offset, record_bytes, message.tag_code, self._now_ms):
                    batch.touched.append(queue)
                for key in message.keys:
                    keyed.append((message.topic, key, offset, self._now_ms))
                batch.end = offset + record_bytes
            yield
        records += unit
        result.message_id = ",".join(message_ids)
        result.message_count = len(messages)
        batch.message_count += len(messages) - 1  # `_place` counts each result once
        batch.results.append((done, messages[0].wait, result))

    def _admit_part(self, part: Sequence[NewMessage], known: list[ConsumeQueue]) -> bool:
        """Append the queues of messages to `known`; return whether all messages are legal."""
        for message in part:
            queue = self._queues.get((message.topic, message.queue_id)) or self._new_queue(message)
            is_short = len(message.body) <= self._body_bytes_max or type(message) is not _NEW
            if queue is None or not is_short or len(message.properties) > PROPERTIES_CHARS_MAX:
                return False
            known.append(queue)
        return True

    def _encoding_unit(
        self, messages: tuple[NewMessage, ...], queues: Sequence[ConsumeQueue], offset: int
    ) -> Generator[None, None, tuple[list[bytes], list[int]]]:
        """Return the records of contiguous messages that are not staged yet, joined in pieces, and
        the size of each record.
        """
        pieces: list[bytes] = []
        sizes: list[int] = []
        next_offsets: dict[ConsumeQueue, int] = {}
        rows = zip(messages, queues, strict=True)
        for part in _parts(messages):
            records: list[bytes] = []
            for message, queue in islice(rows, len(part)):
                queue_offset = next_offsets.get(queue, queue.next_offset)
                record = encode_record(message, queue_offset, offset, self._now_ms)
                next_offsets[queue] = queue_offset + 1
                offset += len(record)
                records.append(record)
            pieces.append(b"".join(records))
            sizes += map(len, records)
            yield
        return pieces, sizes

    def _new_queue(self, message: NewMessage) -> ConsumeQueue | None:
        """Create a queue for its first message; return None if the name or id is illegal."""
        if type(message) is Mark:
            return self._nowhere
        if not 0 <= message.queue_id <= QUEUE_ID_MAX or not is_storable(message.topic):
            return None
        return self._table.create(message.topic, message.queue_id)

    def _roll_for(self, batch: Batch, size: int) -> _Place:
        """Continue in the next file; return where the next record is placed.

        If the size exceeds a file's capacity, raise ValueError and change nothing.
        """
        if size > self._file_size - BLANK_BYTES_MIN:
            raise ValueError(f"{size} bytes do not fit into one file")
        batch.segments[-1][1].append(encode_blank(batch.file_end - batch.end))
        batch.end = batch.file_end
        batch.file_end += self._file_size
        batch.segments.append((batch.end, []))
        return self._open(batch)


def _bytes_of(message: NewMessage) -> int:
    return len(message.body) + len(message.properties) + KEY_BYTES * len(message.keys)


def _sources_of(pending: list[_Put]) -> list[RunSource]:
    sources: list[RunSource] = []
    for put, _ in pending:
        if isinstance(put, Run) and put.source not in sources:
            sources.append(put.source)
    return sources


def _parts(messages: tuple[NewMessage, ...]) -> Iterator[tuple[NewMessage, ...]]:
    """Divide the messages of a unit into those of each step."""
    start = weight = 0
    for end, message in enumerate(messages, 1):
        weight += weight_of(message)
        if weight >= UNIT_STEP_WEIGHT:
            yield messages[start:end]
            start, weight = end, 0
    if start < len(messages):
        yield messages[start:]


def _status_of_unencodable(message: NewMessage) -> PutStatus:
    # RocketMQ counts characters first, and bytes only when it encodes; the answers differ.
    properties = message.properties
    if len(properties) <= PROPERTIES_CHARS_MAX < len(properties.encode("utf-8", "replace")):
        return PutStatus.PROPERTIES_SIZE_EXCEEDED
    return PutStatus.MESSAGE_ILLEGAL
