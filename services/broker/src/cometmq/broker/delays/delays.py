# SPDX-License-Identifier: Apache-2.0
"""Delay levels: messages wait in SCHEDULE_TOPIC_XXXX and move to their real queue when due.

Each level is one queue in order of arrival, so only the head of the queue is examined. To deliver a
message is to store a copy of it in its real queue. A timed message (`timed.py`) moves from level to
level.

Invariants:

- The position of a level moves past a message once its copy is stored, once the message is parked
  (`parking.py`) because its copy can never be stored, or once it counts as lost. A damaged message
  counts as lost only after a time in which another copy of the log could repair it.
- Messages that were delivered while an earlier one failed are remembered, so no
  message is delivered twice.
- The position is saved only once the copies before it are on disk and confirmed by the required
  replicas. After a crash, copies that are already in the log are found by their unique key, which
  avoids most duplicates.

Compatibility: the due time is the queue entry's tag code. A due time later than now + delay means
that the clock was set back, so the message is due at once. As in RocketMQ, messages of a level that
is missing in messageDelayLevel wait until the setting has the level again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from cometmq.broker.delays.due_runs import Delivered, Due, DueRun, Found, Skip
from cometmq.broker.delays.finder import Finder
from cometmq.broker.delays.level import WHEEL, Level, place_of
from cometmq.broker.delays.parking import REFUSED_FOR_GOOD, Case, Origin, Parking, Reason
from cometmq.broker.delays.positions import Positions, Waiting
from cometmq.broker.delays.recalled import AlreadyDue, Delayed, OnItsWay
from cometmq.broker.statistics.counters import BrokerStats
from cometmq.broker.storing.large_puts import LargePuts, has_many_keys
from cometmq.broker.tables.persistence import TableSaver
from cometmq.remoting.log import Log
from cometmq.remoting.message.new_message import NewMessage
from cometmq.remoting.names import SCHEDULE_TOPIC
from cometmq.remoting.transport.flow.fair_queue import Requester
from cometmq.remoting.transport.tasks import describe
from cometmq.runtime.incremental import Steps
from cometmq.store.results import PutResult

STEP_INTERVAL_MS: Final = 100
"""The pause while a copy is not synced yet, or before a failed delivery is tried again."""
IDLE_INTERVAL_MS: Final = 500
"""The longest pause. It is shorter than the shortest delay of a level (1 s), so each message of a
level is seen before it is due. A timed message may be due earlier, so `wake_at` announces it.
"""
BATCH_INTERVAL_MS: Final = 5
"""The shortest pause: messages that are due within it are delivered together, up to 5 ms late. A
step with a message takes about 0.2 ms.
"""
_LOST: Final = (Skip.MISSING, Skip.DAMAGED, Skip.MISPLACED)


@dataclass(slots=True)
class DeliveryCounts:
    """Numbers of messages since the start."""

    delivered: int = 0
    moved: int = 0
    """Timed messages that moved to another level."""
    skipped: int = 0
    """Messages whose copies an earlier run had stored already."""
    recalled: int = 0


class Delays:
    """Delivers due messages; a timer calls `step` when the next one is due."""

    def __init__(  # noqa: PLR0913  # the collaborators
        self,
        positions: Positions,
        finder: Finder,
        *,
        puts: LargePuts,
        saver: TableSaver,
        parking: Parking,
        stats: BrokerStats,
        wake_at: Callable[[int], None] = lambda _time_ms: None,
        repaired_count: Callable[[], int] | None = None,
        log: Log,
    ) -> None:
        """Start at the positions; nothing is delivered before the first step.

        `wake_at` is called with a time in milliseconds at which a step is due, which may have
        passed. `repaired_count` returns the number of damaged blocks that another copy of the log
        has repaired; it is None if there is no other copy.
        """
        self._store = finder.store
        self.finder = finder
        self.levels = finder.levels
        self.positions = positions
        self._puts = puts
        self._saver = saver
        self._parking = parking
        self._stats = stats
        self._repaired_count = repaired_count
        self._log = log
        self.waiting = Waiting(finder.store, finder.levels, positions, log)
        numbers = [*finder.levels.numbers, *([WHEEL] if finder.wheel.end else [])]
        self._served = [positions.level(number) for number in numbers]
        self._is_stopped = False
        self._has_work = False
        self._wake_at = wake_at
        self.counts = DeliveryCounts()

    def expect_copies(self, until_ms: int) -> None:
        """Search the log for the copy of each message due by this time: the last run crashed."""
        self.finder.copied_until_ms = until_ms

    def recall(self, found: Sequence[Delayed], unique_key: str, now_ms: int) -> None:
        """Never deliver these messages, which all have this unique key.

        Raise AlreadyDue if one of them may have been delivered, OnItsWay if a timed one is between
        two levels; nothing has changed then. Entries that even a restart would not read again are
        not recalled.
        """
        for it in found:
            if self._may_be_delivered(it, now_ms):
                raise AlreadyDue
        levels = self.positions.level
        if all(levels(it.level).is_finished(it.queue_offset) for it in found):
            raise AlreadyDue
        if any(levels(it.level).is_passing_on(it.queue_offset, it.due_ms) for it in found):
            raise OnItsWay
        for it in found:
            if it.queue_offset >= levels(it.level).saved_offset:
                self.positions.recall(it.level, it.queue_offset, unique_key)

    def _may_be_delivered(self, it: Delayed, now_ms: int) -> bool:
        """Return whether a message may have been delivered, is being delivered, or is due now.

        The clock of the level's last reads counts, too: it may have been ahead of the present one.
        """
        level = self.positions.level(it.level)
        if it.timed_ms is not None:
            return it.timed_ms <= max(now_ms, level.read_ms)
        if level.is_finished(it.queue_offset) or it.due_ms <= self.finder.copied_until_ms:
            return True
        read_ms = level.read_ms if it.queue_offset < level.read_end else now_ms
        latest_ms = min(now_ms, read_ms) + self.levels.delay_ms(it.level)
        is_early = max(now_ms, read_ms) < it.due_ms <= latest_ms
        return it.level <= self.levels.level_max and not is_early

    def fit(self) -> None:
        """Move the positions into the bounds of their queues; call this before messages are
        accepted, because a message that is stored below a position counts as delivered.
        """
        for level in self._served:
            queue = self._store.reader.queue(*place_of(level.number))
            ends = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
            self.positions.fit(level, *ends)
        self._saver.request_if_dirty(self.positions)

    def step(self, now_ms: int) -> None:
        """Deliver due messages, and save positions whose copies are on disk."""
        for level in self._served:
            if not self._is_stopped and level.pending_count == 0 and not level.is_reading:
                queue = self._store.reader.queue(*place_of(level.number))
                level.read_ms = now_ms
                level.read_end = 0 if queue is None else queue.max_offset
                if level.number == WHEEL:
                    level.read_end = min(level.read_end, self.finder.wheel.end)
                self._read(level)
        self._has_work = any(level.is_unsettled for level in self._served)
        self._mark_flushed()
        self._saver.request_if_dirty(self.positions)

    def step_interval_ms(self) -> int:
        """Return the pause until the next step, which `wake_at` may shorten."""
        return STEP_INTERVAL_MS if self._has_work else IDLE_INTERVAL_MS

    def stop(self) -> None:
        """Start no further deliveries; those in flight complete."""
        self._is_stopped = True

    def save_at_end(self) -> None:
        """Save the positions after the final flush of the store."""
        self._mark_flushed()
        self._saver.request(self.positions)

    def _read(self, level: Level) -> None:
        """Find and deliver due messages of a level, in a later turn if the disk must be read."""
        queue = self._store.reader.queue(*place_of(level.number))
        if queue is None:
            return
        # Retention may have deleted entries, and positions copied from a master may be ahead of
        # this broker's own log.
        self.positions.fit(level, queue.min_offset, queue.max_offset)
        delay_ms = self.levels.delay_ms(level.number)
        if level.offset >= level.read_end or level.is_early(level.read_ms, delay_ms):
            level.has_failed = level.is_unreadable = False
            self._expect_next(level)
            return
        level.is_reading = True
        level.next_due = None
        found: list[Due] = []
        self._puts.driver.reads.look_up(
            self.finder.find(queue, level, delay_ms, found),
            partial(self._deliver, level, level.run),
            partial(self._deliver_readable, level, level.run, found),
        )

    def _expect_next(self, level: Level) -> None:
        if level.next_due is not None:
            self._wake_at(level.next_due.due_ms)

    def _deliver(self, level: Level, run: int, due: Found) -> None:
        level.is_unreadable = level.has_failed = False
        if run != level.run:
            level.is_reading = False
            return
        level.is_behind, level.next_due = due.is_behind, due.next_due
        if isinstance(due, DueRun):
            level.pending_count += due.records.count
            due.done = partial(self._run_stored, level, run)
            self._puts.driver.put_run(due, 0, due.records.count, due.records.staged_bytes)
        else:
            self._deliver_each(level, due.entries)
        level.is_reading = False
        self._expect_next(level)
        self._continue(level)

    def _deliver_each(self, level: Level, entries: list[Due]) -> None:
        # Count the whole batch first: a put may commit at once and call `_stored`, which must not
        # treat the batch as finished and start the next one.
        level.pending_count += sum(not isinstance(entry.message, Skip) for entry in entries)
        level.pending_count += 1  # the batch itself, which may end in entries to skip
        is_damaged = any(entry.message is Skip.DAMAGED for entry in entries)
        repaired = self._repaired_count() if is_damaged and self._repaired_count else None
        misplaced = [it.queue_offset for it in entries if it.message is Skip.MISPLACED]
        queue = self._store.reader.queue(*place_of(level.number)) if misplaced else None
        awaited = list[Skip]()
        if repaired is not None and level.awaits_repair(repaired):
            awaited.append(Skip.DAMAGED)
        if queue is not None and self._store.reader.awaits_repair(queue, misplaced):
            awaited.append(Skip.MISPLACED)
        self._puts.begin(self._delivering(level, entries, awaited), Requester(level))

    def _delivering(self, level: Level, entries: list[Due], awaited: list[Skip]) -> Steps[None]:
        run = level.run
        try:
            for entry in entries:
                yield from self._delivering_one(level, run, entry, awaited)
        finally:
            level.pending_count -= 1
        if run == level.run:
            self._continue(level)

    def _delivering_one(
        self, level: Level, run: int, entry: Due, awaited: list[Skip]
    ) -> Steps[None]:
        is_large = not isinstance(entry.message, Skip) and has_many_keys(entry.message)
        if is_large:
            yield  # until it is this level's turn
        if run != level.run:  # the position was set meanwhile
            level.pending_count -= not isinstance(entry.message, Skip)
        elif entry.message in awaited:
            level.has_failed = True  # the next step looks at it again
        elif isinstance(entry.message, Skip):
            self._skip(level, entry, entry.message)
        elif entry.reason is not None:
            self._park(level, run, entry, entry.message, entry.reason)
        else:
            stored = partial(self._stored, level, run, entry, entry.message)
            if is_large:
                yield from self._puts.driver.put_large([entry.message], stored)
            else:
                self._puts.driver.put(entry.message, stored)

    def _skip(self, level: Level, entry: Due, skip: Skip) -> None:
        if skip in _LOST:
            self._log.warning("delay.record_missing", physical_offset=entry.physical_offset)
        self.counts.recalled += skip is Skip.RECALLED
        self.counts.skipped += skip is Skip.COPIED
        level.finish(entry.queue_offset, entry.queue_offset + 1, 0)

    def _deliver_readable(
        self, level: Level, run: int, entries: list[Due], error: Exception
    ) -> None:
        """Deliver the messages before one whose read failed; the next step tries it again."""
        if not level.is_unreadable:
            number, text = level.number, describe(error)
            self._log.error("delay.unreadable", delay_level=number, error=text)
        level.is_unreadable = True
        level.is_behind = False
        if run == level.run:
            self._deliver_each(level, entries)
        level.is_reading = False

    def _stored(
        self, level: Level, run: int, entry: Due, message: NewMessage, result: PutResult
    ) -> None:
        if result.status in REFUSED_FOR_GOOD and run == level.run:
            self._park(level, run, entry, message, Reason.TOO_LARGE)
            return
        level.pending_count -= 1
        if self._is_done(level, run, result):
            if message.topic == SCHEDULE_TOPIC:
                self.counts.moved += 1
                self._wake_at(message.tag_code)
                self._stats.count_delayed(message.queue_id, 1, result.size)
            else:
                self.counts.delivered += 1
            if level.number != WHEEL:
                self._stats.count_delivered(message.topic, level.number - 1, 1, result.size)
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
        self.counts.delivered += part.message_count
        for topic, count, size in part.totals:
            self._stats.count_delivered(topic, level.number - 1, count, size)
        level.finish(part.next_offset - part.message_count, part.next_offset, part.copy_end)
        self._continue(level)

    def _continue(self, level: Level) -> None:
        """Deliver the next batch of a backlog; other work runs in between."""
        if self._is_stopped or level.pending_count or level.is_reading or level.has_failed:
            return
        if level.is_behind:
            self._read(level)
        else:
            self._wake_at(0)  # for messages that were due while this level was busy

    def _mark_flushed(self) -> None:
        safe = min(self._store.upkeep.flusher.flushed_offset, self._store.commit_log.confirm_offset)
        self.positions.settle(safe)
        wheel = self.finder.wheel
        if not wheel.is_noted and self.positions.is_past(WHEEL, wheel.end - 1):
            wheel.note()
