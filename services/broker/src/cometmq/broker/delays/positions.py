# SPDX-License-Identifier: Apache-2.0
"""The positions of the delay levels and the recalled messages: a journaled, replicated table.

A position is saved and journaled only as far as `settle` allows.

Compatibility: delayOffset.json maps each level (queue id + 1) to the next queue offset. As in
RocketMQ, the positions of levels that are missing in messageDelayLevel are kept.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from cometmq.broker.delays.level import DelayFile, Level, delay_table, offsets_of, recalled_of
from cometmq.broker.delays.recalled import Recalled
from cometmq.remoting.bodies.dialect import decode_file, encode_json
from cometmq.remoting.log import Log
from cometmq.remoting.names import SCHEDULE_TOPIC
from cometmq.remoting.progress import waiting
from cometmq.store.delay_levels import DelayLevels
from cometmq.store.json_config import JsonTable
from cometmq.store.message_store import MessageStore


class Positions:
    """How far each level is delivered, and which of its messages are recalled."""

    def __init__(self, file: JsonTable[DelayFile], numbers: Iterable[int]) -> None:
        """Start at the saved positions.

        `numbers` are the levels of the settings and those that have a queue.
        """
        loaded = file.load()
        self.file = file
        self.recalled = Recalled()
        self.levels = {number: Level(number, 0) for number in numbers}
        if loaded is not None:
            self.recalled.update(recalled_of(loaded))
            for number, offset in offsets_of(loaded).items():
                self.level(number).place(offset, offset)
        self.is_dirty = False
        self.noted: Callable[[], None] | None = None
        self._noted: dict[int, int] = {}

    def level(self, number: int) -> Level:
        """Return a level; one that the settings lack is not delivered, but keeps its position."""
        level = self.levels.get(number)
        if level is None:
            level = self.levels[number] = Level(number, 0)
        return level

    def is_past(self, number: int, queue_offset: int) -> bool:
        """Return whether an entry is below the saved position: no restart would read it."""
        return queue_offset < self.level(number).saved_offset

    def offsets(self) -> Mapping[int, int]:
        """Return the next queue offset of each level, including levels that the settings lack."""
        return {number: level.offset for number, level in self.levels.items() if level.offset}

    def recall(self, number: int, queue_offset: int, unique_key: str) -> None:
        """Note that the message of an entry is recalled; an empty key undoes this."""
        self._announce()
        change = self.recalled.put if self.noted is None else self.recalled.note
        change(number, queue_offset, unique_key)
        self.is_dirty = True

    def fit(self, level: Level, first: int, end: int) -> None:
        """Move the position of a level into its queue, and forget recalls of messages that the log
        has lost: other messages will have their places.
        """
        if level.fit(first, end):
            self.is_dirty = True
            self._note(level)
        while (lost := self.recalled.first(level.number, end)) is not None:
            self.recall(level.number, lost, "")

    def settle(self, safe: int) -> None:
        """Advance the positions that may be saved: the log is safe up to this physical offset, and
        so are the delivered messages that end there or before.
        """
        for level in self.levels.values():
            while level.marks and level.marks[0][0] <= safe:
                level.saved_offset = level.marks.popleft()[1]
                self.recalled.drop_below(level.number, level.saved_offset)
                self.is_dirty = True
                self._note(level)

    def restart(self) -> None:
        """Return to the saved positions, because a role change may have removed later copies."""
        for level in self.levels.values():
            level.place(level.saved_offset, level.saved_offset)

    def as_table(self) -> DelayFile:
        """Return the body of the answer to GET_ALL_DELAY_OFFSET (45)."""
        return delay_table(dict(self.offsets()), self.recalled.as_table())

    def adopt(self, table: DelayFile) -> None:
        """Adopt the master's positions and recalls, for when this broker is the master."""
        for number, offset in offsets_of(table).items():
            level = self.level(number)
            if (level.offset, level.saved_offset) != (offset, offset):
                level.place(offset, offset)
                self.is_dirty = True
                self._note(level)
        for place in self.recalled.changes_to(recalled_of(table)):
            self.recall(*place)

    def encode_for_file(self) -> bytes:
        """Return the content of the file and clear `is_dirty`."""
        self.is_dirty = False
        offsets = {number: level.saved_offset for number, level in self.levels.items()}
        used = {number: offset for number, offset in offsets.items() if offset}
        return encode_json(delay_table(used, self.recalled.as_table()))

    def _note(self, level: Level) -> None:
        if self.noted is not None:
            self._announce()
            self._noted[level.number] = level.saved_offset

    def _announce(self) -> None:
        if self.noted is not None and not (self._noted or self.recalled.noted):
            self.noted()

    def noted_changes(self) -> list[bytes]:
        return [encode_json(delay_table(self._noted, self.recalled.noted))]

    def forget_noted(self) -> None:
        self._noted, self.recalled.noted = {}, {}

    def apply_changes(self, data: msgspec.Raw) -> None:
        """Apply a piece of `noted_changes` without noting it; call this before the first step."""
        table = decode_file(DelayFile, bytes(data))
        self.recalled.update(recalled_of(table))
        for number, offset in offsets_of(table).items():
            self.level(number).place(offset, offset)
            self.recalled.drop_below(number, offset)
        self.is_dirty = True

    def whole(self) -> Iterator[bytes]:
        """Yield the positions that may be saved, in the format of `noted_changes`."""
        offsets = {n: level.saved_offset for n, level in self.levels.items()}
        yield encode_json(delay_table(offsets, self.recalled.as_table()))

    def become(self, pieces: Sequence[msgspec.Raw]) -> None:
        """Adopt everything yielded by another broker's `whole`."""
        offsets, recalled = dict.fromkeys(self.levels, 0), Recalled()
        for piece in pieces:
            table = decode_file(DelayFile, bytes(piece))
            offsets |= offsets_of(table)
            recalled.update(recalled_of(table))
        self.adopt(delay_table(offsets, recalled.as_table()))


@dataclass(slots=True)
class Waiting:
    """Counts the messages that wait in each delay level ever used, without recalled ones."""

    store: MessageStore
    levels: DelayLevels
    positions: Positions
    log: Log

    def counts(self) -> Mapping[int, int]:
        """Return the number of waiting messages in each level that has been used."""
        found = {}
        recalled = self.positions.recalled
        for number, level in self.positions.levels.items():
            queue = self.store.reader.queue(SCHEDULE_TOPIC, number - 1)
            if queue is not None:
                ends = queue.min_offset, queue.max_offset
                found[number] = waiting(level.offset, *ends, recalled.offsets(number))
        return found

    def stranded(self) -> Mapping[int, int]:
        """Return the number of undelivered messages in each level that the settings lack."""
        served = self.levels.level_max
        return {n: count for n, count in self.counts().items() if count and not 1 <= n <= served}

    def report_stranded(self) -> None:
        """Warn of each level that has messages but is missing in the settings."""
        for number, count in self.stranded().items():
            self.log.warning(
                "delay.level_missing",
                delay_level=number,  # `level` is the severity of a line
                messages=count,
                level_max=self.levels.level_max,
                action="add the level to messageDelayLevel again",
            )
