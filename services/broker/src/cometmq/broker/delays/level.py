# SPDX-License-Identifier: Apache-2.0
"""The state of one delay level: its position and the entries finished beyond it; and the format of
the file with all positions.

An entry is finished when it needs no delivery any more: it is delivered, parked, recalled or lost.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from cometmq.broker.delays.recalled import RecalledTable
from cometmq.remoting.bodies.dialect import decode_file, encode_json
from cometmq.remoting.names import SCHEDULE_TOPIC, WHEEL_TOPIC
from cometmq.store.json_config import JsonTable

WHEEL: Final = 0
"""The number of the level of RocketMQ 5's pending timer messages (`wheel.py`)."""
REPAIR_STEPS_MAX: Final = 300
"""How many steps (30 s) damaged messages of a level wait for their repair from another copy of the
log. Each repaired block restarts the count. Meanwhile, the level delivers only the other messages
of the same batch.
"""


class DelayFile(msgspec.Struct, rename="camel"):
    """The content of delayOffset.json: level -> next queue offset.

    Compatibility: RocketMQ ignores the recalled messages, so its brokers deliver them.
    """

    offset_table: dict[int, int] = {}
    recalled: RecalledTable | msgspec.UnsetType = msgspec.UNSET
    wheel: int | msgspec.UnsetType = msgspec.UNSET
    """The position of the level WHEEL; RocketMQ would make a queue for a level 0 in the table."""


def delay_table(offsets: Mapping[int, int], recalled: RecalledTable) -> DelayFile:
    table = {number: offset for number, offset in offsets.items() if number != WHEEL}
    return DelayFile(table, recalled or msgspec.UNSET, offsets.get(WHEEL) or msgspec.UNSET)


def offsets_of(table: DelayFile) -> dict[int, int]:
    """Return the next queue offset of each level, that of WHEEL included."""
    wheel = {} if isinstance(table.wheel, msgspec.UnsetType) else {WHEEL: table.wheel}
    return {**table.offset_table, **wheel}


def place_of(number: int) -> tuple[str, int]:
    """Return topic and id of the queue of a level."""
    return (WHEEL_TOPIC, 0) if number == WHEEL else (SCHEDULE_TOPIC, number - 1)


def recalled_of(table: DelayFile) -> RecalledTable:
    return {} if isinstance(table.recalled, msgspec.UnsetType) else table.recalled


def delay_file(path: str) -> JsonTable[DelayFile]:
    return JsonTable(path, decode=lambda data: decode_file(DelayFile, data), encode=encode_json)


class NextDue(NamedTuple):
    """The first entry of a level that was not due when it was read."""

    queue_offset: int
    due_ms: int


@dataclass(slots=True, eq=False)
class Level:
    number: int
    offset: int  # next to deliver
    saved_offset: int = 0  # the offset that may be saved
    pending_count: int = 0  # puts whose result is pending
    run: int = 0  # changes when the position is set; reads and puts of earlier runs are stale
    has_failed: bool = False
    is_reading: bool = False
    read_ms: int = 0  # the clock by which the last reads found what is due
    read_end: int = 0  # the end of the queue at that time; the clock says nothing of later ones
    is_behind: bool = False  # more may be due than one batch takes
    next_due: NextDue | None = None  # None: unknown
    is_unreadable: bool = False
    repaired_count: int = -1  # blocks of the log that had been repaired at the last wait
    waits_left: int = 0  # steps that damaged messages may still wait for their repair
    marks: deque[tuple[int, int]] = field(default_factory=deque)
    """The end of a copy in the log, and the offset behind its message."""
    ahead: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Entries that were finished while an earlier one was not: first offset -> the offset after
    the last one, and the end of their copies in the log.
    """

    def __post_init__(self) -> None:
        self.saved_offset = self.offset

    def place(self, offset: int, saved_offset: int) -> None:
        """Set the position; results of reads and puts in flight will be ignored."""
        self.offset, self.saved_offset = offset, saved_offset
        self.run += 1
        self.is_behind = False
        self.next_due = None
        self.marks.clear()
        self.ahead.clear()

    def fit(self, first: int, end: int) -> bool:
        """Move the position into the queue, and past entries that are finished.

        Return whether the position that may be saved is lower now. A message that arrives below
        that position would count as delivered after a restart.
        """
        if self.offset > end:
            is_lower = self.saved_offset > end
            self.place(end, min(self.saved_offset, end))
            return is_lower
        if self.offset < first:
            self.offset = first
            self.ahead = {
                max(k, first): (behind, copy_end)
                for k, (behind, copy_end) in self.ahead.items()
                if behind > first
            }
            self._catch_up()
        return False

    def is_early(self, now_ms: int, delay_ms: int) -> bool:
        """Return whether the next entry is known to be due later.

        An entry whose due time is further away than the level's delay is due now: the clock was set
        back after it was stored.
        """
        following = self.next_due
        if following is None or following.queue_offset != self.offset:
            return False
        return now_ms < following.due_ms <= now_ms + delay_ms

    @property
    def is_unsettled(self) -> bool:
        """Whether the level waits for a read, a put, a sync or a retry."""
        is_busy = self.is_reading or self.pending_count > 0 or bool(self.marks)
        return is_busy or self.has_failed or self.is_unreadable

    def awaits_repair(self, repaired_count: int) -> bool:
        """Count a step of waiting for repair; return False after REPAIR_STEPS_MAX steps."""
        if repaired_count != self.repaired_count:
            self.repaired_count, self.waits_left = repaired_count, REPAIR_STEPS_MAX
        self.waits_left = max(0, self.waits_left - 1)
        return self.waits_left > 0

    def is_finished(self, offset: int) -> bool:
        """Return whether an entry needs no delivery any more."""
        return offset < self.offset or any(
            first <= offset < behind for first, (behind, _) in self.ahead.items()
        )

    def is_passing_on(self, offset: int, due_ms: int) -> bool:
        """Return whether an entry of a timed message may be on its way to another level."""
        is_read = offset < self.read_end and due_ms <= self.read_ms
        is_busy = self.is_reading or self.pending_count > 0
        return is_busy and is_read and not self.is_finished(offset)

    def finish(self, first: int, next_offset: int, copy_end: int) -> None:
        """Note that the entries from `first` up to `next_offset` are finished, in any order.

        `copy_end` is the end of their copies in the log. The position after them may be saved only
        when the log is synced up to there: otherwise a power failure could lose the copies.
        """
        self.ahead[first] = next_offset, copy_end
        self._catch_up()

    def _catch_up(self) -> None:
        while (finished := self.ahead.pop(self.offset, None)) is not None:
            self.offset = finished[0]
            self.marks.append((finished[1], finished[0]))
