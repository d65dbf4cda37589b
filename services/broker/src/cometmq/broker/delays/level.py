# SPDX-License-Identifier: Apache-2.0
"""The position of one delay level, which of its messages are finished, and the positions' file."""

from collections import deque

import msgspec

from cometmq.remoting.bodies.dialect import decode_json, encode_json
from cometmq.store.json_config import JsonTable


class DelayFile(msgspec.Struct, rename="camel"):
    """The content of delayOffset.json: level -> next queue offset."""

    offset_table: dict[int, int] = {}


def delay_file(path: str) -> JsonTable[DelayFile]:
    return JsonTable(path, decode=lambda data: decode_json(DelayFile, data), encode=encode_json)


class Level:
    __slots__ = (
        "ahead",
        "has_failed",
        "is_behind",
        "is_reading",
        "is_unreadable",
        "marks",
        "number",
        "offset",
        "pending_count",
        "run",
        "saved_offset",
    )

    def __init__(self, number: int, offset: int) -> None:
        self.number = number
        self.offset = offset  # next to deliver
        self.saved_offset = offset  # the offset that may be saved
        self.pending_count = 0  # puts whose result is pending
        self.run = 0  # changes when the position is set; reads and puts of earlier runs are stale
        self.has_failed = False
        self.is_reading = False
        self.is_behind = False  # more may be due than one batch takes
        self.is_unreadable = False
        self.marks: deque[tuple[int, int]] = deque()  # end of copy in the log, offset behind it
        self.ahead: dict[int, tuple[int, int]] = {}
        """Entries that were finished while an earlier one was not: their first offset, the offset
        behind them, and the end of their copies.
        """

    def place(self, offset: int, saved_offset: int) -> None:
        """Set the position; results of reads and puts in flight will be ignored."""
        self.offset, self.saved_offset = offset, saved_offset
        self.run += 1
        self.is_behind = False
        self.marks.clear()
        self.ahead.clear()

    def fit(self, first: int, end: int) -> None:
        """Move the position into the queue, and past entries that are finished."""
        if not first <= self.offset <= end:
            self.offset = min(max(self.offset, first), end)
            self.ahead = {k: v for k, v in self.ahead.items() if k >= self.offset}
            self._catch_up()

    def finish(self, first: int, next_offset: int, copy_end: int) -> None:
        """Note that entries need no delivery any more; they may finish in any order.

        The position may be saved only when the copies are synced: otherwise a power failure could
        lose the copies and keep the position.
        """
        self.ahead[first] = next_offset, copy_end
        self._catch_up()

    def _catch_up(self) -> None:
        while (finished := self.ahead.pop(self.offset, None)) is not None:
            self.offset = finished[0]
            self.marks.append((finished[1], finished[0]))
