# SPDX-License-Identifier: Apache-2.0
"""Half messages that were just stored: most are ended at once, and need not be read again (pure).

It only saves work: what is not here is in the log.
"""

from collections import OrderedDict
from typing import Final

import msgspec

from cometmq.remoting.message.record import NewMessage

COUNT_MAX: Final = 4_096
BODY_BYTES_MAX: Final = 2_048  # with the properties some 12 MB in all


class RecentHalf(msgspec.Struct, gc=False):
    """A stored half message; whoever takes it may change its message."""

    group: str
    """The producer group."""
    place: tuple[str, int]
    """The topic and queue that it is for."""
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    message: NewMessage

    def to_new_message(self) -> NewMessage:
        """Return the message as one to be stored again."""
        return self.message


class RecentHalves:
    """The newest of them."""

    def __init__(self, *, count_max: int = COUNT_MAX) -> None:
        """Start with none."""
        self._count_max = count_max
        self._halves: OrderedDict[int, RecentHalf] = OrderedDict()

    def __len__(self) -> int:
        """How many there are."""
        return len(self._halves)

    def add(self, half: RecentHalf) -> None:
        """Keep one, and drop the oldest if there are too many; large bodies are not kept."""
        if len(half.message.body) > BODY_BYTES_MAX:
            return
        self._halves[half.physical_offset] = half
        if len(self._halves) > self._count_max:
            self._halves.popitem(last=False)

    def take(self, physical_offset: int) -> RecentHalf | None:
        """Return the one at an offset of the log, and forget it."""
        return self._halves.pop(physical_offset, None)
