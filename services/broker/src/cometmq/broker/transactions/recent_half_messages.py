# SPDX-License-Identifier: Apache-2.0
"""A cache of recently stored half messages (pure).

Most half messages end soon, and are then found here; any other can be read from the log.
"""

from collections import OrderedDict
from typing import Final

import msgspec

from cometmq.remoting.message.new_message import NewMessage

COUNT_MAX: Final = 4_096
BODY_BYTES_MAX: Final = 2_048  # with the properties about 12 MB in all


class RecentHalf(msgspec.Struct, gc=False):
    """A stored half message; the caller of `take` may change its message."""

    group: str
    """The producer group."""
    place: tuple[str, int]
    """The real topic and queue of the message."""
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    message: NewMessage

    def to_new_message(self) -> NewMessage:
        return self.message


def is_kept(message: NewMessage) -> bool:
    """Return whether a half message is small enough to be kept in memory."""
    return len(message.body) <= BODY_BYTES_MAX


class RecentHalves:
    def __init__(self, *, count_max: int = COUNT_MAX) -> None:
        self._count_max = count_max
        self._halves: OrderedDict[int, RecentHalf] = OrderedDict()
        self.clear_count = 0
        """How often `clear` was called. The native lane compares it, to forget its
        own half messages.
        """

    def __len__(self) -> int:
        return len(self._halves)

    def add(self, half: RecentHalf) -> None:
        """Keep a half message unless its body is large; above the limit, drop the oldest one."""
        if not is_kept(half.message):
            return
        self._halves[half.physical_offset] = half
        if len(self._halves) > self._count_max:
            self._halves.popitem(last=False)

    def clear(self) -> None:
        """Forget all half messages, because the log was truncated and will reuse their offsets."""
        self._halves.clear()
        self.clear_count += 1

    def take(self, physical_offset: int) -> RecentHalf | None:
        """Remove and return the half message at a log offset."""
        return self._halves.pop(physical_offset, None)
