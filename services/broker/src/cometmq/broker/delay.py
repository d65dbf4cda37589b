# SPDX-License-Identifier: Apache-2.0
"""Delay levels: messages wait in SCHEDULE_TOPIC_XXXX and move to their real queue when due.

Each level is one queue in the order of arrival, so only its head is looked at.

Invariants: the position of a level passes a message only when its copy is stored, and is saved
only when the copy is on the disk. After a crash the copies that the log already holds are found
by their unique key, so that nothing is delivered twice that need not be.

Compatibility: delayOffset.json maps level (queue id + 1) to the next queue offset; the due time
is the queue entry's tag code. A due time beyond now + delay means that the clock was set back:
the message is due at once.
"""

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple, Protocol

import msgspec

from cometmq.broker.messages import delivered
from cometmq.broker.names import SCHEDULE_TOPIC
from cometmq.broker.persistence import ConfigSaver
from cometmq.remoting.bodies.dialect import decode_json, encode_json
from cometmq.remoting.errors import StoreError
from cometmq.remoting.log import Log
from cometmq.remoting.message.properties import PropertyKey
from cometmq.remoting.message.record import MessageRecord, NewMessage
from cometmq.runtime.tasks import describe
from cometmq.store.consume_queue import ENTRY, FILLER_SIZE, ConsumeQueue
from cometmq.store.delay_levels import DelayLevels
from cometmq.store.json_config import JsonTable
from cometmq.store.results import PutDone, PutResult, QueryResult
from cometmq.store.settings import CQ_ENTRY_BYTES

STEP_INTERVAL_MS: Final = 100
BATCH_COUNT_MAX: Final = 128  # of one level in one step: a backlog must not hold up senders
QUERY_COUNT_MAX: Final = 32


class DelayFile(msgspec.Struct, rename="camel"):
    """delayOffset.json: level -> next queue offset."""

    offset_table: dict[int, int] = {}


def delay_file(path: str) -> JsonTable[DelayFile]:
    """Return the table file at a path."""
    return JsonTable(path, decode=lambda data: decode_json(DelayFile, data), encode=encode_json)


class DelayStore(Protocol):
    """What delivery needs of the store."""

    @property
    def flushed_offset(self) -> int:
        """The log is on disk up to here."""

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a consume queue."""

    def read_record(self, physical_offset: int) -> MessageRecord | None:
        """Return a stored message."""

    def query(self, topic: str, key: str, count_max: int, begin: int, end: int) -> QueryResult:
        """Return messages by key."""


class Due(NamedTuple):
    """One entry of a level that must be delivered now; no message if there is none to deliver."""

    queue_offset: int
    message: NewMessage | None


class _Level:
    """Progress of one level."""

    __slots__ = ("has_failed", "is_unreadable", "marks", "offset", "pending_count", "saved_offset")

    def __init__(self, offset: int) -> None:
        self.offset = offset  # next to deliver
        self.saved_offset = offset  # what the file may say
        self.pending_count = 0  # puts whose result is not known
        self.has_failed = False
        self.is_unreadable = False
        self.marks: deque[tuple[int, int]] = deque()  # end of copy in the log, offset behind it


class DelayService:
    """Moves due messages; `step` is called every 100 ms."""

    def __init__(
        self,
        store: DelayStore,
        levels: DelayLevels,
        file: JsonTable[DelayFile],
        *,
        put: Callable[[NewMessage, PutDone], None],
        saver: ConfigSaver,
        host: bytes,
        log: Log,
    ) -> None:
        """Begin where the file says; nothing is delivered before the first step."""
        loaded = file.load()
        offsets = loaded.offset_table if loaded is not None else {}
        self._store = store
        self._delays = levels
        self._file = file
        self._put = put
        self._saver = saver
        self._host = host
        self._log = log
        self._levels = {
            level: _Level(offsets.get(level, 0)) for level in range(1, levels.level_max + 1)
        }
        self._is_dirty = False
        self._copied_until_ms = 0
        self.delivered_count = 0
        self.skipped_count = 0

    def expect_copies(self, until_ms: int) -> None:
        """After a crash: messages due up to this time may have been delivered already."""
        self._copied_until_ms = until_ms

    def clamp(self, level: int) -> int:
        """Return the level that a wish means: too high ones mean the highest."""
        return min(level, self._delays.level_max)

    def offsets(self) -> Mapping[int, int]:
        """Return level -> next queue offset."""
        return {number: level.offset for number, level in self._levels.items() if level.offset}

    def as_table(self) -> DelayFile:
        """Return the answer of code 45."""
        return DelayFile(dict(self.offsets()))

    def step(self, now_ms: int) -> None:
        """Deliver what is due, and save the positions whose copies are on disk."""
        for number, level in self._levels.items():
            if level.pending_count == 0:
                self._deliver(number, level, now_ms)
        self._mark_flushed()
        if self._is_dirty:
            self.save()

    def save(self) -> None:
        """Write the file."""
        self._is_dirty = False
        self._saver.save(self._file, self._snapshot())

    def save_at_end(self) -> None:
        """Save the positions: the store is flushed, if the disk takes anything, and will close."""
        self._mark_flushed()
        self.save()

    def _snapshot(self) -> DelayFile:
        offsets = {number: level.saved_offset for number, level in self._levels.items()}
        return DelayFile({number: offset for number, offset in offsets.items() if offset})

    def _deliver(self, number: int, level: _Level, now_ms: int) -> None:
        queue = self._store.queue(SCHEDULE_TOPIC, number - 1)
        if queue is None:
            return
        level.offset = min(max(level.offset, queue.min_offset), queue.max_offset)
        level.has_failed = False
        due = self._readable_due(queue, number, level, now_ms)
        for entry in due:
            if entry.message is not None:
                level.pending_count += 1
        for entry in due:
            if entry.message is not None:
                self._put(entry.message, partial(self._stored, level, entry.queue_offset + 1))
            elif level.pending_count == 0 and not level.has_failed:
                self._pass(level, 0, entry.queue_offset + 1)

    def _readable_due(
        self, queue: ConsumeQueue, number: int, level: _Level, now_ms: int
    ) -> list[Due]:
        """Return what is due; nothing while the disk cannot read it, which the others survive."""
        try:
            due = self._due(queue, number, level.offset, now_ms)
        except StoreError as error:
            if not level.is_unreadable:
                self._log.error("delay.unreadable", level=number, error=describe(error))
            level.is_unreadable = True
            return []
        level.is_unreadable = False
        return due

    def _due(self, queue: ConsumeQueue, number: int, offset: int, now_ms: int) -> list[Due]:
        """Return the head of a level as far as it is due."""
        data = queue.plan(offset, BATCH_COUNT_MAX).read(may_block=True) or b""
        due_at_most = now_ms + self._delays.delay_ms(number)
        due: list[Due] = []
        whole = len(data) // CQ_ENTRY_BYTES * CQ_ENTRY_BYTES
        for physical_offset, size, due_ms in ENTRY.iter_unpack(memoryview(data)[:whole]):
            if now_ms < due_ms <= due_at_most:
                break
            message = None
            if size not in {0, FILLER_SIZE}:
                message = self._message(physical_offset, due_ms)
            due.append(Due(offset, message))
            offset += 1
        return due

    def _message(self, physical_offset: int, due_ms: int) -> NewMessage | None:
        record = self._store.read_record(physical_offset)
        if record is None:
            self._log.warning("delay.record_missing", physical_offset=physical_offset)
            return None
        message = delivered(record, host=self._host)
        if message is None:
            self._log.warning("delay.topic_missing", physical_offset=physical_offset)
            return None
        if due_ms <= self._copied_until_ms and self._is_copied(record, message, due_ms):
            self.skipped_count += 1
            return None
        return message

    def _is_copied(self, record: MessageRecord, message: NewMessage, due_ms: int) -> bool:
        """Tell whether the log holds the delivered copy already.

        Clients choose the unique key, so a copy must be the same in all that it carries.
        """
        key = record.properties.get(PropertyKey.UNIQUE_KEY)
        if key is None:
            return False
        found = self._store.query(
            message.topic, key, QUERY_COUNT_MAX, due_ms, self._copied_until_ms
        )
        return any(
            copy.queue_id == message.queue_id
            and copy.reconsume_times == record.reconsume_times
            and copy.body == record.body
            and copy.properties_text == message.properties
            for copy in found.records
        )

    def _stored(self, level: _Level, next_offset: int, result: PutResult) -> None:
        level.pending_count -= 1
        if level.has_failed or not result.status.is_stored:
            level.has_failed = True  # the next step begins with the first that failed
            return
        self.delivered_count += 1
        self._pass(level, result.physical_offset + result.size, next_offset)

    def _pass(self, level: _Level, copy_end: int, next_offset: int) -> None:
        level.offset = next_offset
        level.marks.append((copy_end, next_offset))

    def _mark_flushed(self) -> None:
        flushed = self._store.flushed_offset
        for level in self._levels.values():
            while level.marks and level.marks[0][0] <= flushed:
                level.saved_offset = level.marks.popleft()[1]
                self._is_dirty = True
