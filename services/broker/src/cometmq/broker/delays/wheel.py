# SPDX-License-Identifier: Apache-2.0
"""Takes over the timer messages that a broker of RocketMQ 5 has not delivered yet.

RocketMQ 5 keeps them in one queue of `rmq_sys_wheel_timer`, and in a wheel and a log beside it. The
queue is served here as a level of its own, `WHEEL`: each pending message moves once to a delay
level, which delivers it as any timed message (`timed.py`). `timercheck` tells which ones RocketMQ
has delivered: those that it had read from the queue, and whose second it has passed. What it
delivered after the file was written, or this broker moved before a crash, is found by unique key.

Recalled messages are followed by one that names their key. A message beyond the wheel's window was
stored again; only its last copy counts.

Compatibility: as in 5.5.0 (TimerMessageStore, TimerCheckpoint). Once all are moved, `timercheck`
says so, and wheel and log are removed, so that RocketMQ 5 delivers none of them again. It delivers
those that still wait in a delay level as RocketMQ 4.9 does, at the end of that level.
"""

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from cometmq.broker.delays.due_runs import Due, DueBatch, Skip
from cometmq.broker.delays.level import Level
from cometmq.broker.delays.timed import hop
from cometmq.broker.messages import again
from cometmq.remoting.message.new_message import NewMessage
from cometmq.remoting.message.properties import (
    TIME_DIGITS_MAX,
    PropertyKey,
    timed_ms,
    without_property,
)
from cometmq.remoting.message.record import MessageRecord
from cometmq.remoting.names import SCHEDULE_TOPIC, WHEEL_TOPIC
from cometmq.store.delay_levels import DelayLevels
from cometmq.store.message_store import MessageStore
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.queue_files import ENTRY, FILLER_SIZE
from cometmq.store.reads import Lookup

BATCH_COUNT_MAX: Final = 128
QUERY_COUNT_MAX: Final = 32
EARLY_MS: Final = 5_000
"""RocketMQ 5 delivers up to a second early; its clock may have been a little ahead of this one."""
_FOREVER_MS: Final = (1 << 63) - 1
_DELETES: Final = "TIMER_DEL_UNIQKEY"
_ROLLS: Final = "TIMER_ROLL_TIMES"
_OWN: Final = (_ROLLS, "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS")
_UNITS_MS: Final = {"TIMER_DELAY_SEC": 1_000, "TIMER_DELAY_MS": 1}
_CHECK: Final = struct.Struct(">4q")
_CHECK_BYTES: Final = 4_096


Read: TypeAlias = Callable[[int, int, int], Lookup[MessageRecord | Skip]]
"""Returns the record of an entry: its queue offset, its physical offset and its size."""


class TimerCheck(NamedTuple):
    """The beginning of RocketMQ 5's file `timercheck`."""

    read_ms: int = 0
    """Messages due before this time are delivered, if they were read from the queue."""
    log_position: int = 0
    queue_offset: int = 0
    """Messages before this offset of the queue are in the wheel, or delivered."""
    master_queue_offset: int = 0


class WheelFiles:
    """The files of the wheel in a store's folder."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)
        self._check = self._root / "config" / "timercheck"

    def read(self) -> TimerCheck:
        """Return the check of the last broker of RocketMQ 5; zeros if there was none."""
        try:
            data = self._check.read_bytes()
        except FileNotFoundError:
            return TimerCheck()
        return TimerCheck(*_CHECK.unpack(data[: _CHECK.size].ljust(_CHECK.size, b"\0")))

    def note_taken(self, end: int, now_ms: int) -> None:
        """Tell RocketMQ 5 that the messages before this offset of the queue need no delivery.

        This blocks. Raise OSError if the disk refuses it.
        """
        if not self._check.exists():
            return
        data = self._check.read_bytes().ljust(_CHECK_BYTES, b"\0")
        new = self._check.with_name("timercheck.tmp")
        with new.open("wb") as file:
            file.write(_CHECK.pack(*TimerCheck(now_ms, 0, end, end)) + data[_CHECK.size :])
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._check)
        for path in self._others():
            path.unlink(missing_ok=True)

    def _others(self) -> Iterator[Path]:
        yield from self._root.glob("timerwheel*")
        yield from (self._root / "timerlog").glob("*")


class Marks(NamedTuple):
    """What later messages of the queue say about earlier ones."""

    recalled: set[str]
    """Unique keys, alone or behind a topic and `+`."""
    rolled: dict[tuple[str, int], int]
    """How often the message with this key and time was stored again."""


class Wheel:
    """Finds the pending messages of the queue, each with the message to store."""

    def __init__(
        self,
        store: MessageStore,
        levels: DelayLevels,
        files: WheelFiles,
        *,
        taken: Callable[[int], None] = lambda _end: None,
        host: bytes,
    ) -> None:
        """`taken` is called with the end of the queue, once none of its messages is pending."""
        self._taken = taken
        self._store = store
        self._levels = levels
        self._host = host
        queue = store.reader.queue(WHEEL_TOPIC, 0)
        self.end = 0 if queue is None else queue.max_offset
        """The end of the queue at the start; nobody may add to it here."""
        self._check = files.read() if self.end else TimerCheck()
        self._marks: Marks | None = None
        self.is_noted = not self.end

    def note(self) -> None:
        """Note that the saved position has reached the end."""
        self.is_noted = True
        self._taken(self.end)

    def find(
        self, queue: ConsumeQueue, level: Level, due: list[Due], read: Read
    ) -> Lookup[DueBatch]:
        """Find the next messages of the queue, as `Finder.find` does."""
        offset = level.offset
        if self._marks is None:
            self._marks = yield from self._read_marks(queue, offset, read)
        count = min(level.read_end - offset, BATCH_COUNT_MAX)
        data = yield from queue.plan(offset, count).entries()
        finished = offset
        for at, (physical_offset, size, _) in enumerate(ENTRY.iter_unpack(data), offset):
            finished = max(finished, level.ahead.get(at, (0, 0))[0])
            if at < finished:
                continue
            message: NewMessage | Skip = Skip.FILLER
            if size != FILLER_SIZE:
                record = yield from read(at, physical_offset, size)
                if isinstance(record, Skip):
                    message = record
                else:
                    message = yield from self._message(record, self._marks, level.read_ms)
            due.append(Due(at, physical_offset, message, None))
        return DueBatch(due, is_behind=count == BATCH_COUNT_MAX)

    def _read_marks(self, queue: ConsumeQueue, offset: int, read: Read) -> Lookup[Marks]:
        marks = Marks(set(), {})
        while offset < self.end:
            data = yield from queue.plan(offset, min(self.end - offset, BATCH_COUNT_MAX)).entries()
            if not data:
                break
            for at, (physical_offset, size, _) in enumerate(ENTRY.iter_unpack(data), offset):
                record: MessageRecord | Skip = Skip.FILLER
                if size != FILLER_SIZE:
                    record = yield from read(at, physical_offset, size)
                if not isinstance(record, Skip):
                    _note(marks, record)
            offset += len(data) // ENTRY.size
        return marks

    def _message(
        self, record: MessageRecord, marks: Marks, now_ms: int
    ) -> Lookup[NewMessage | Skip]:
        """Return the message to store in a delay level, or why there is none."""
        properties = record.properties
        out_ms = timed_ms(properties)
        key = properties.get(PropertyKey.UNIQUE_KEY, "")
        topic = properties.get(PropertyKey.REAL_TOPIC)
        if out_ms is None or topic is None or _DELETES in properties:
            return Skip.RECALLED if _DELETES in properties else Skip.MISSING
        if key and not marks.recalled.isdisjoint((key, f"{topic}+{key}")):
            return Skip.RECALLED
        is_read = record.queue_offset < self._check.queue_offset
        is_old = _rolls(record) < marks.rolled.get((key, out_ms), 0)
        if is_old or (is_read and out_ms < self._check.read_ms):
            return Skip.COPIED
        due_ms = _due_ms(record, out_ms)
        places = [SCHEDULE_TOPIC, *([topic] if out_ms <= now_ms + EARLY_MS else [])]
        for place in places:
            if key and (yield from self._has_copy(place, key, record, {str(out_ms), str(due_ms)})):
                return Skip.COPIED
        message = again(record, record.topic, record.queue_id, host=self._host)
        for name in _OWN:
            message.properties = without_property(message.properties, name)
        hop(message, self._levels, due_ms, now_ms)
        return message

    def _has_copy(
        self, topic: str, key: str, record: MessageRecord, times: set[str]
    ) -> Lookup[bool]:
        """Return whether the log has a later copy of a message in this topic."""
        found = yield from self._store.reader.query(
            topic, key, QUERY_COUNT_MAX, record.store_timestamp - EARLY_MS, _FOREVER_MS
        )
        return any(
            copy.physical_offset > record.physical_offset
            and copy.properties.get(PropertyKey.TIMER_OUT_MS) in times
            and copy.body == record.body
            for copy in found.records
        )


def _note(marks: Marks, record: MessageRecord) -> None:
    properties = record.properties
    if key := properties.get(_DELETES):
        marks.recalled.add(key)
    rolls, out_ms = _rolls(record), timed_ms(properties)
    if rolls and out_ms is not None and (key := properties.get(PropertyKey.UNIQUE_KEY)):
        marks.rolled[key, out_ms] = max(rolls, marks.rolled.get((key, out_ms), 0))


def _rolls(record: MessageRecord) -> int:
    text = record.properties.get(_ROLLS, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= TIME_DIGITS_MAX else 0


def _due_ms(record: MessageRecord, out_ms: int) -> int:
    """Return the time that the sender asked for: RocketMQ 5 takes up to a second off."""
    properties = record.properties
    asked = properties.get(PropertyKey.TIMER_DELIVER_MS, "")
    begin_ms, unit_ms = 0, 1
    for name, its_ms in _UNITS_MS.items():
        if name in properties:
            asked, begin_ms, unit_ms = properties[name], record.store_timestamp, its_ms
            break
    if not (asked.isascii() and asked.isdecimal() and len(asked) <= TIME_DIGITS_MAX):
        return out_ms
    return min(max(out_ms, begin_ms + int(asked) * unit_ms), out_ms + 1_000)
