# SPDX-License-Identifier: Apache-2.0
"""How much memory the unsent output of one connection uses, and whether its peer reads."""

from collections import deque
from typing import Final

from cometmq.remoting.transport.flow.budget import LARGE_BYTES

_NONE: Final = (-1, 0)


class Outbox:
    """Measures the memory that a transport uses for writes that are not sent completely.

    `unsent_bytes` is the number of bytes that the transport has not sent yet.
    """

    __slots__ = ("_progress", "_writes", "sent_bytes")

    def __init__(self) -> None:
        self.sent_bytes = 0
        """All bytes written so far, sent or not."""
        self._writes: deque[tuple[int, int]] = deque()  # large ones: where they end, and their size
        self._progress = _NONE

    def note(self, whole_bytes: int) -> None:
        """Note a write that `sent_bytes` already includes. Until it is sent completely, it keeps
        `whole_bytes` of memory.
        """
        if whole_bytes > LARGE_BYTES:
            self._writes.append((self.sent_bytes, whole_bytes))

    def held_bytes(self, unsent_bytes: int) -> int:
        """Return the memory that the unsent output keeps."""
        if not unsent_bytes:
            self._writes.clear()
            self._progress = _NONE
            return 0
        writes, gone = self._writes, self.sent_bytes - unsent_bytes
        while writes and writes[0][0] <= gone:
            writes.popleft()
        if not writes:
            return unsent_bytes
        end, size = writes[0]
        return unsent_bytes + max(0, gone - end + size)

    def stalled_ms(self, unsent_bytes: int, now_ms: int) -> int:
        """Return how long the peer has read nothing, measured from the first call with unsent
        output.
        """
        gone = self.sent_bytes - unsent_bytes
        if gone != self._progress[0]:
            self._progress = (gone, now_ms)
        return now_ms - self._progress[1]
