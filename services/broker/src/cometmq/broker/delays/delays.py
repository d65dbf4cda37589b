# SPDX-License-Identifier: Apache-2.0
"""Delay levels: messages wait in SCHEDULE_TOPIC_XXXX and move to their real queue when due.

Each level is one queue in order of arrival, so only the head of the queue is examined.

Invariants: the position of a level moves past a message only once the copy in its real queue is
stored, or once the message is parked (`parking.py`) because it can never be stored there. Messages
that were stored while an earlier one failed are remembered, so no message is delivered twice. The
position is saved only once the copy is on disk and confirmed by the required replicas. After a
crash, copies that are already in the log are found by their unique key, which avoids most
duplicates.

Compatibility: delayOffset.json maps each level (queue id + 1) to the next queue offset; the due
time is the queue entry's tag code. A due time later than now + delay means that the clock was set
back, so the message is due at once. As in RocketMQ, the positions of levels that are missing in
messageDelayLevel are kept, and their messages wait until the level is back.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from cometmq.broker.delays.due_runs import (
    RUN_COUNT_MAX,
    Delivered,
    Due,
    DueBatch,
    DueRun,
    DueRuns,
    Found,
    Times,
)
from cometmq.broker.delays.level import DelayFile, Level
from cometmq.broker.delays.parking import (
    REFUSED_FOR_GOOD,
    Case,
    Destinations,
    Origin,
    Parking,
    Reason,
)
from cometmq.broker.messages import delivered
from cometmq.broker.storing.store_driver import StoreDriver
from cometmq.broker.tables.persistence import TableSaver
from cometmq.remoting.bodies.dialect import decode_json, encode_json
from cometmq.remoting.log import Log
from cometmq.remoting.message.new_message import NewMessage
from cometmq.remoting.message.properties import PropertyKey
from cometmq.remoting.message.record import MessageRecord
from cometmq.remoting.names import PARKED_TOPIC, SCHEDULE_TOPIC
from cometmq.remoting.progress import unread
from cometmq.remoting.transport.tasks import describe
from cometmq.store.delay_levels import DelayLevels
from cometmq.store.json_config import JsonTable
from cometmq.store.message_store import MessageStore
from cometmq.store.queues.consume_queue import ENTRY, FILLER_SIZE, ConsumeQueue
from cometmq.store.reads import Lookup
from cometmq.store.results import PutResult

STEP_INTERVAL_MS: Final = 100
IDLE_INTERVAL_MS: Final = 500
"""Shorter than the shortest delay (1 s), so a message is noticed before it is due."""
BATCH_COUNT_MAX: Final = 128  # of one level at a time: a backlog must not hold up senders
QUERY_COUNT_MAX: Final = 32  # messages of one key that are compared after a crash


class Delays:
    """Delivers due messages; a timer calls `step` every 100 ms while a message waits."""

    def __init__(  # noqa: PLR0913  # the collaborators, all but three by name
        self,
        store: MessageStore,
        levels: DelayLevels,
        file: JsonTable[DelayFile],
        *,
        driver: StoreDriver,
        saver: TableSaver,
        destinations: Destinations,
        parking: Parking,
        delivered: Callable[[str, int, int, int], None] = lambda *_: None,
        runs: DueRuns | None = None,
        used_levels: Iterable[int] = (),
        host: bytes,
        log: Log,
    ) -> None:
        """Start at the saved offsets; nothing is delivered before the first step.

        `delivered` is called with a topic, the level's queue id, and the number and the size of
        delivered messages. `runs` delivers plain messages natively. `used_levels` are the levels
        that have a queue, including levels that the settings lack.
        """
        loaded = file.load()
        offsets = loaded.offset_table if loaded is not None else {}
        self._store = store
        self.levels = levels
        self.file = file
        self._driver = driver
        self._saver = saver
        self._destinations = destinations
        self._parking = parking
        self._delivered = delivered
        self.runs = runs
        self._host = host
        self._log = log
        self._levels = {number: Level(number, 0) for number in range(1, levels.level_max + 1)}
        self._served = list(self._levels.values())
        for number in used_levels:
            self._level(number)
        for number, offset in offsets.items():
            self._level(number).place(offset, offset)
        self.is_dirty = False
        self.noted: Callable[[], None] | None = None
        self._noted: dict[int, int] = {}
        self._copied_until_ms = 0
        self._now_ms = 0
        self._is_stopped = False
        self._has_work = False
        self.delivered_count = 0
        self.skipped_count = 0

    def expect_copies(self, until_ms: int) -> None:
        """Expect duplicates of messages due by this time, because the last run ended in a crash."""
        self._copied_until_ms = until_ms

    def clamp(self, level: int) -> int:
        """Return the requested level, but at most the highest one."""
        return min(level, self.levels.level_max)

    def offsets(self) -> Mapping[int, int]:
        """Return the next queue offset of each level, including levels that the settings lack."""
        return {number: level.offset for number, level in self._levels.items() if level.offset}

    def waiting(self) -> Mapping[int, int]:
        """Return the number of messages that wait in each level that has been used."""
        found = {}
        for number, level in self._levels.items():
            queue = self._store.reader.queue(SCHEDULE_TOPIC, number - 1)
            if queue is not None:
                found[number] = unread(level.offset, queue.min_offset, queue.max_offset)
        return found

    def stranded(self) -> Mapping[int, int]:
        """Return the number of messages in each level that the settings lack: nobody delivers
        them.
        """
        served = self.levels.level_max
        return {n: count for n, count in self.waiting().items() if count and not 1 <= n <= served}

    def report_stranded(self) -> None:
        """Log the levels whose messages wait although no level of the settings delivers them."""
        for number, count in self.stranded().items():
            self._log.warning(
                "delay.level_missing",
                delay_level=number,  # `level` is the severity of a line
                messages=count,
                level_max=self.levels.level_max,
                action="add the level to messageDelayLevel again",
            )

    def as_table(self) -> DelayFile:
        """Return the body of the answer to GET_ALL_DELAY_OFFSET (45)."""
        return DelayFile(dict(self.offsets()))

    def adopt(self, offsets: Mapping[int, int]) -> None:
        """Adopt the master's positions; they are used once this broker becomes the master."""
        for number, offset in offsets.items():
            level = self._level(number)
            if (level.offset, level.saved_offset) != (offset, offset):
                level.place(offset, offset)
                self.is_dirty = True
                self._note(level)

    def restart(self) -> None:
        """Return to the saved positions, because a role change may have removed later copies."""
        for level in self._levels.values():
            level.place(level.saved_offset, level.saved_offset)

    def fit(self) -> None:
        """Move the positions into the queues before the broker accepts messages: one that arrives
        below a position, before the first step, would count as delivered.
        """
        for level in self._served:
            queue = self._store.reader.queue(SCHEDULE_TOPIC, level.number - 1)
            level.fit(*(0, 0) if queue is None else (queue.min_offset, queue.max_offset))

    def step(self, now_ms: int) -> None:
        """Deliver due messages, and save positions whose copies are on disk."""
        self._now_ms = now_ms
        self._has_work = False
        for level in self._served:
            if not self._is_stopped and level.pending_count == 0 and not level.is_reading:
                self._read(level)
            if level.pending_count or level.is_reading or level.marks:
                self._has_work = True
        self._mark_flushed()
        if self.is_dirty:
            self.save()

    def step_interval_ms(self) -> int:
        """Return the pause until the next step; it is longer while no message waits."""
        return STEP_INTERVAL_MS if self._has_work else IDLE_INTERVAL_MS

    def stop(self) -> None:
        """Start no more deliveries, since a backlog may be long; let deliveries in flight
        complete.
        """
        self._is_stopped = True

    def save(self) -> None:
        self._saver.request(self)

    def save_at_end(self) -> None:
        """Save the positions after the final flush of the store."""
        self._mark_flushed()
        self.save()

    def encode_for_file(self) -> bytes:
        """Return the content of the file and clear `is_dirty`."""
        self.is_dirty = False
        offsets = {number: level.saved_offset for number, level in self._levels.items()}
        return encode_json(
            DelayFile({number: offset for number, offset in offsets.items() if offset})
        )

    def _level(self, number: int) -> Level:
        """Return a level; one that the settings lack only keeps its position."""
        level = self._levels.get(number)
        if level is None:
            level = self._levels[number] = Level(number, 0)
        return level

    def _read(self, level: Level) -> None:
        """Find and deliver due messages; a lookup that must read the disk finishes in a later loop
        iteration.
        """
        queue = self._store.reader.queue(SCHEDULE_TOPIC, level.number - 1)
        if queue is None:
            return
        # Retention may have deleted entries, and positions copied from a master may be ahead of
        # this broker's own log.
        level.fit(queue.min_offset, queue.max_offset)
        if level.offset < queue.max_offset:
            self._has_work = True
        level.is_reading = True
        self._driver.reads.look_up(
            self._due(queue, level, self._now_ms),
            partial(self._deliver, level, level.run),
            partial(self._note_unreadable, level),
        )

    def _deliver(self, level: Level, run: int, due: Found) -> None:
        level.is_unreadable = level.has_failed = False
        if run != level.run:
            level.is_reading = False
            return
        level.is_behind = due.is_behind
        if isinstance(due, DueRun):
            level.pending_count += due.count
            due.done = partial(self._run_stored, level, run)
            self._driver.put_run(due, 0, due.count, due.staged_bytes)
        else:
            self._deliver_each(level, due.entries)
        level.is_reading = False
        self._continue(level)

    def _deliver_each(self, level: Level, entries: list[Due]) -> None:
        # Count the whole batch first: a put may commit at once and call `_stored`, which must not
        # treat the batch as finished and start the next one.
        level.pending_count += sum(entry.message is not None for entry in entries)
        for entry in entries:
            if entry.message is None:
                level.finish(entry.queue_offset, entry.queue_offset + 1, 0)
            elif entry.reason is not None:
                self._park(level, level.run, entry, entry.message, entry.reason)
            else:
                stored = partial(self._stored, level, level.run, entry, entry.message)
                self._driver.put(entry.message, stored)

    def _note_unreadable(self, level: Level, error: Exception) -> None:
        """Retry in the next step; the other levels continue."""
        level.is_reading = False
        if not level.is_unreadable:
            number, text = level.number, describe(error)
            self._log.error("delay.unreadable", delay_level=number, error=text)
        level.is_unreadable = True

    def _due(self, queue: ConsumeQueue, level: Level, now_ms: int) -> Lookup[Found]:
        """Find the due entries at the head of a level."""
        due_at_most = now_ms + self.levels.delay_ms(level.number)
        offset = level.offset
        if self.runs is None or level.ahead:
            data = yield from queue.plan(offset, BATCH_COUNT_MAX).entries()
        else:
            data = yield from queue.plan(offset, RUN_COUNT_MAX).entries()
            times = Times(now_ms, due_at_most, self._copied_until_ms)
            run = yield from self.runs.find(data, offset, times, self._destinations.has)
            if run is not None:
                return run
            data = data[: BATCH_COUNT_MAX * ENTRY.size]
        due: list[Due] = []
        finished = offset
        for at, (physical_offset, size, due_ms) in enumerate(ENTRY.iter_unpack(data), offset):
            # A time beyond the level's delay means that the clock was set back; as in RocketMQ,
            # such a message is delivered now.
            if now_ms < due_ms <= due_at_most:
                return DueBatch(due, is_behind=False)
            finished = max(finished, level.ahead.get(at, (0, 0))[0])
            if at < finished:
                continue
            entry = Due(at, physical_offset, None)
            if size not in {0, FILLER_SIZE}:
                entry = yield from self._entry(entry, due_ms)
            due.append(entry)
        return DueBatch(due, is_behind=len(data) == BATCH_COUNT_MAX * ENTRY.size)

    def _entry(self, entry: Due, due_ms: int) -> Lookup[Due]:
        """Return the entry with the message to store."""
        record = yield from self._store.reader.read_record(entry.physical_offset)
        if record is None:
            self._log.warning("delay.record_missing", physical_offset=entry.physical_offset)
            return entry
        message = delivered(record, host=self._host)
        queue_id = self._destinations.queue_id(message.topic, message.queue_id)
        reason = queue_id if isinstance(queue_id, Reason) else None
        place = PARKED_TOPIC, 0
        if not isinstance(queue_id, Reason):
            message.queue_id = queue_id
            place = message.topic, queue_id
        if due_ms <= self._copied_until_ms:
            is_copied = yield from self._is_copied(record, message, due_ms, place)
            if is_copied:
                self.skipped_count += 1
                return entry
        return entry._replace(message=message, reason=reason)

    def _is_copied(
        self, record: MessageRecord, message: NewMessage, due_ms: int, place: tuple[str, int]
    ) -> Lookup[bool]:
        """Return whether the log already contains the delivered or parked copy.

        Clients choose the unique key, so the queue, the retry count and the body must match too.
        Parked copies have more properties.
        """
        key = record.properties.get(PropertyKey.UNIQUE_KEY)
        if key is None:
            return False
        found = yield from self._store.reader.query(
            place[0], key, QUERY_COUNT_MAX, due_ms, self._copied_until_ms
        )
        return any(
            copy.queue_id == place[1]
            and copy.reconsume_times == record.reconsume_times
            and copy.body == record.body
            and copy.properties_text.startswith(message.properties)
            for copy in found.records
        )

    def _stored(
        self, level: Level, run: int, entry: Due, message: NewMessage, result: PutResult
    ) -> None:
        if result.status in REFUSED_FOR_GOOD and run == level.run:
            self._park(level, run, entry, message, Reason.TOO_LARGE)
            return
        level.pending_count -= 1
        if self._is_done(level, run, result):
            self.delivered_count += 1
            self._delivered(message.topic, level.number - 1, 1, result.size)
            self._finish(level, entry.queue_offset, result)

    def _park(
        self, level: Level, run: int, entry: Due, message: NewMessage, reason: Reason
    ) -> None:
        case = Case(message, Origin.DELAY, reason, entry.physical_offset)
        self._parking.park(case, partial(self._parked, level, run, entry))

    def _parked(self, level: Level, run: int, entry: Due, result: PutResult) -> None:
        level.pending_count -= 1
        if self._is_done(level, run, result):
            self._finish(level, entry.queue_offset, result)

    def _is_done(self, level: Level, run: int, result: PutResult) -> bool:
        if run != level.run:
            return False
        if not result.status.is_stored:
            level.has_failed = True  # the next step starts at the first failed message
        return result.status.is_stored

    def _finish(self, level: Level, queue_offset: int, result: PutResult) -> None:
        level.finish(queue_offset, queue_offset + 1, result.physical_offset + result.size)
        self._continue(level)

    def _run_stored(self, level: Level, run: int, part: Delivered, result: PutResult) -> None:
        level.pending_count -= part.message_count
        if not self._is_done(level, run, result):
            return
        self.delivered_count += part.message_count
        for topic, count, size in part.totals:
            self._delivered(topic, level.number - 1, count, size)
        level.finish(part.next_offset - part.message_count, part.next_offset, part.copy_end)
        self._continue(level)

    def _continue(self, level: Level) -> None:
        """Deliver the next batch of a backlog after the previous one is stored; other work runs in
        between.
        """
        is_busy = self._is_stopped or level.pending_count or level.is_reading
        if level.is_behind and not is_busy and not level.has_failed:
            self._read(level)

    def _mark_flushed(self) -> None:
        safe = min(self._store.flushed_offset, self._store.confirm_offset)
        for level in self._levels.values():
            while level.marks and level.marks[0][0] <= safe:
                level.saved_offset = level.marks.popleft()[1]
                self.is_dirty = True
                self._note(level)

    def _note(self, level: Level) -> None:
        if self.noted is None:
            return
        if not self._noted:
            self.noted()
        self._noted[level.number] = level.saved_offset

    def noted_changes(self) -> list[bytes]:
        return [encode_json(DelayFile(self._noted))]

    def whole(self) -> Iterator[bytes]:
        """Yield the positions that may be saved, in the format of `noted_changes`."""
        yield encode_json(DelayFile({n: level.saved_offset for n, level in self._levels.items()}))

    def become(self, pieces: Sequence[msgspec.Raw]) -> None:
        """Adopt all positions yielded by another broker's `whole`."""
        offsets = dict.fromkeys(self._levels, 0)
        for piece in pieces:
            offsets |= decode_json(DelayFile, bytes(piece)).offset_table
        self.adopt(offsets)

    def forget_noted(self) -> None:
        self._noted = {}

    def apply_changes(self, data: msgspec.Raw) -> None:
        """Apply a piece of `noted_changes` without noting it; call this before the first step."""
        for number, offset in decode_json(DelayFile, bytes(data)).offset_table.items():
            self._level(number).place(offset, offset)
        self.is_dirty = True
