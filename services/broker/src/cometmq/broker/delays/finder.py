# SPDX-License-Identifier: Apache-2.0
"""Finds the due messages at the head of a delay level.

A lookup may be abandoned while it reads the disk, so it changes nothing; the caller counts the
messages when it delivers them. After a crash, copies that are already in the log are found by their
unique key.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from cometmq.broker.delays.due_runs import RUN_COUNT_MAX, Due, DueBatch, DueRuns, Found, Skip, Times
from cometmq.broker.delays.level import WHEEL, Level, NextDue, place_of
from cometmq.broker.delays.parking import Destinations, Reason
from cometmq.broker.delays.recalled import Recalled
from cometmq.broker.delays.timed import is_later_hop, next_hop
from cometmq.broker.delays.wheel import Wheel
from cometmq.broker.messages import delivered
from cometmq.remoting.message.new_message import NewMessage
from cometmq.remoting.message.properties import PropertyKey, timed_ms
from cometmq.remoting.message.record import MessageRecord
from cometmq.remoting.names import PARKED_TOPIC, SCHEDULE_TOPIC
from cometmq.store.delay_levels import DelayLevels
from cometmq.store.message_store import MessageStore
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.queue_files import ENTRY, FILLER_SIZE
from cometmq.store.reads import Lookup

BATCH_COUNT_MAX: Final = 128  # of one level at a time: a backlog must not hold up senders
QUERY_COUNT_MAX: Final = 32  # messages of one key that are compared after a crash


class Entry(NamedTuple):
    """An entry of a level's queue."""

    level_number: int
    queue_offset: int
    physical_offset: int
    size: int
    due_ms: int

    def fits(self, record: MessageRecord) -> bool:
        """Return whether this is the record for which the entry stands."""
        place = record.topic, record.queue_id, record.queue_offset, record.size
        return place == (*place_of(self.level_number), self.queue_offset, self.size)


@dataclass(slots=True)
class Finder:
    """Finds due messages: plain ones as a native run, all others one by one."""

    store: MessageStore
    recalled: Recalled
    destinations: Destinations
    levels: DelayLevels
    wheel: Wheel
    host: bytes
    runs: DueRuns | None = None  # None: Python delivers plain messages, too
    copied_until_ms: int = 0
    """Messages due by this time may have been delivered before a crash."""

    def find(
        self, queue: ConsumeQueue, level: Level, delay_ms: int, due: list[Due]
    ) -> Lookup[Found]:
        """Find the due entries at the head of a level.

        Entries that Python delivers are added to `due` one by one, so that they can be delivered if
        the read of a later one fails. Messages stored after the level's clock was read are left
        out: by that clock, they would be due later than their delay allows.
        """
        if level.number == WHEEL:
            return (yield from self.wheel.find(queue, level, due, self._wheel_record))
        now_ms, due_at_most = level.read_ms, level.read_ms + delay_ms
        offset, count = level.offset, max(0, level.read_end - level.offset)
        recalled = self.recalled.first(level.number, offset)
        if self.runs is None or level.ahead or level.is_unreadable or recalled == offset:
            data = yield from queue.plan(offset, min(count, BATCH_COUNT_MAX)).entries()
        else:
            data = yield from queue.plan(offset, min(count, RUN_COUNT_MAX)).entries()
            times = Times(now_ms, due_at_most, self.copied_until_ms)
            plain = data if recalled is None else data[: (recalled - offset) * ENTRY.size]
            run = yield from self.runs.find(
                plain, level.number, offset, times, self.destinations.has
            )
            if run is not None:
                return run
            data = data[: BATCH_COUNT_MAX * ENTRY.size]
        finished = offset
        for at, (physical_offset, size, due_ms) in enumerate(ENTRY.iter_unpack(data), offset):
            # A time beyond the level's delay means that the clock was set back; as in RocketMQ,
            # such a message is delivered now.
            if now_ms < due_ms <= due_at_most:
                return DueBatch(due, is_behind=False, next_due=NextDue(at, due_ms))
            finished = max(finished, level.ahead.get(at, (0, 0))[0])
            if at < finished:
                continue
            message: NewMessage | Skip = Skip.FILLER
            reason: Reason | None = None
            if size != FILLER_SIZE:
                entry = Entry(level.number, at, physical_offset, size, due_ms)
                message, reason = yield from self._message(entry, now_ms)
            due.append(Due(at, physical_offset, message, reason))
        return DueBatch(due, is_behind=len(data) == BATCH_COUNT_MAX * ENTRY.size)

    def _message(
        self, entry: Entry, now_ms: int
    ) -> Lookup[tuple[NewMessage | Skip, Reason | None]]:
        """Find the message to store, and the reason if it is to be parked."""
        due_ms = entry.due_ms
        record = yield from self._record(entry)
        if isinstance(record, Skip):
            return record, None
        recalled_key = self.recalled.key_at(entry.level_number, entry.queue_offset)
        if recalled_key and record.properties.get(PropertyKey.UNIQUE_KEY) == recalled_key:
            return Skip.RECALLED, None
        if timed_ms(record.properties) is not None:
            if due_ms <= self.copied_until_ms and (yield from self._has_hopped(record, due_ms)):
                return Skip.COPIED, None
            hop = next_hop(record, self.levels, now_ms, host=self.host)
            if hop is not None:
                return hop, None
        message = delivered(record, host=self.host)
        queue_id = self.destinations.queue_id(message.topic, message.queue_id)
        reason = queue_id if isinstance(queue_id, Reason) else None
        place = PARKED_TOPIC, 0
        if not isinstance(queue_id, Reason):
            message.queue_id = queue_id
            place = message.topic, queue_id
        if due_ms <= self.copied_until_ms:
            is_copied = yield from self._is_copied(record, message, due_ms, place)
            if is_copied:
                return Skip.COPIED, None
        return message, reason

    def _wheel_record(
        self, queue_offset: int, physical_offset: int, size: int
    ) -> Lookup[MessageRecord | Skip]:
        return self._record(Entry(WHEEL, queue_offset, physical_offset, size, 0))

    def _record(self, entry: Entry) -> Lookup[MessageRecord | Skip]:
        """Find the record for which an entry stands."""
        reader, physical_offset = self.store.reader, entry.physical_offset
        record = yield from reader.read_record(physical_offset)
        if record is not None:
            return record if entry.fits(record) else Skip.MISPLACED
        is_damaged = yield from reader.is_damaged(physical_offset)
        if is_damaged:
            return Skip.DAMAGED
        first, end = reader.bounds
        return Skip.MISPLACED if first <= physical_offset < end or not entry.size else Skip.MISSING

    def _has_hopped(self, record: MessageRecord, due_ms: int) -> Lookup[bool]:
        """Return whether the log already contains the next hop of a timed message."""
        key = record.properties.get(PropertyKey.UNIQUE_KEY)
        if key is None:
            return False
        found = yield from self.store.reader.query(
            SCHEDULE_TOPIC, key, QUERY_COUNT_MAX, due_ms, self.copied_until_ms
        )
        return any(is_later_hop(copy, record) for copy in found.records)

    def _is_copied(
        self, record: MessageRecord, message: NewMessage, due_ms: int, place: tuple[str, int]
    ) -> Lookup[bool]:
        """Return whether the log already contains the delivered or parked copy of a record.

        Clients choose the unique key, so the queue, the retry count and the body must match, too.
        The properties may differ, because a parked copy has more.
        """
        key = record.properties.get(PropertyKey.UNIQUE_KEY)
        if key is None:
            return False
        found = yield from self.store.reader.query(
            place[0], key, QUERY_COUNT_MAX, due_ms, self.copied_until_ms
        )
        return any(
            copy.queue_id == place[1]
            and copy.reconsume_times == record.reconsume_times
            and copy.body == record.body
            and copy.properties_text.startswith(message.properties)
            for copy in found.records
        )
