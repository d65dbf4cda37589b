# SPDX-License-Identifier: Apache-2.0
"""Paces the ends of connections; does no I/O itself.

Ending a connection takes about 0.1 ms, and thousands may end at the same time, because of a
stranger or a network device. The loop reports all these ends in one of its turns. If they were
handled at once, 15,000 of them would hold up all other connections for more than a second.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from cometmq.remoting.transport.flow.next_turn import Abortable, NextTurn

ENDS_PER_TURN: Final = 16
_PARTS: Final = 32  # a turn ends 1/32 of what waits or more; a flood adds less in that time


class Ends(NextTurn):
    """Ends a limited number of connections in each turn of the loop, the first ones at once."""

    __slots__ = ("_left", "_waiting", "all_ended")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.all_ended = asyncio.Event()
        """Set when the last connection has been removed."""
        self._left = ENDS_PER_TURN
        self._waiting: deque[tuple[Abortable, Callable[[], None]]] = deque()

    def add(self, peer: Abortable, end: Callable[[], None]) -> None:
        """Call `end` now, or in a later turn of the loop."""
        self._schedule()
        if self._left > 0:
            self._left -= 1
            end()
        else:
            self._waiting.append((peer, end))

    def _run(self) -> None:
        waiting = self._waiting
        self._left = ENDS_PER_TURN
        if not waiting:
            return
        self._schedule()
        for _ in range(min(len(waiting), max(ENDS_PER_TURN, len(waiting) // _PARTS))):
            peer, end = waiting.popleft()
            self._left -= 1
            self._guard(peer, end, "a connection cannot be ended")
