# SPDX-License-Identifier: Apache-2.0
"""Work that waits for the next turn of the loop; does no I/O itself.

Some of it concerns thousands of connections, of which a turn treats a limited number. A visit takes
1 to 2 us of processor time, so one look at the 20,000 connections of a broker would hold the loop
for 40 ms (`Walk`). Ending a connection takes about 0.1 ms, and thousands may end in the same turn,
because of a stranger or a network device; at once, 15,000 of them would hold up all other
connections for more than a second (`Ends`).
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import islice
from typing import Final

from cometmq.remoting.transport.flow.connected import Connected


class NextTurn(ABC):
    """Runs its work once in the next turn of the loop, however often it was scheduled."""

    __slots__ = ("_is_scheduled", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_scheduled = False

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._is_scheduled = False
        self._run()

    @abstractmethod
    def _run(self) -> None:
        """Do a limited part of the work; schedule the rest."""

    def _guard(self, peer: Connected, step: Callable[[], None], fault: str) -> None:
        """Serve a connection; if that fails, report the fault and end the connection."""
        try:
            step()
        except Exception as error:  # noqa: BLE001  # the other connections must get their turn
            self._loop.call_exception_handler({"message": fault, "exception": error})
            peer.abort()


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
        self._waiting: deque[tuple[Connected, Callable[[], None]]] = deque()

    def add(self, peer: Connected, end: Callable[[], None]) -> None:
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


VISITS_PER_TURN: Final = 1_000
CLOSED_PER_TURN: Final = 200
"""Number of connections that are closed in one turn of the loop: 5 ms."""


class Walk(NextTurn):
    """Visits the connections that exist when it begins, and that have not ended since."""

    __slots__ = ("_done", "_left", "_peers", "_visit")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        peers: Collection[Connected],
        visit: Callable[[Connected], None],
        done: Callable[[], None] = lambda: None,
    ) -> None:
        """Visit `peers`, the collection of live connections; call `done` after the last visit."""
        super().__init__(loop)
        self._peers = peers
        self._visit = visit
        self._done = done
        self._left: Iterator[Connected] | None = None

    def begin(self) -> None:
        """Begin a walk, unless one is running."""
        if self._left is None:
            self._left = iter(tuple(self._peers))
            self._run()

    def _run(self) -> None:
        assert self._left is not None
        count = 0
        for peer in islice(self._left, VISITS_PER_TURN):
            count += 1
            if peer in self._peers:
                self._guard(peer, partial(self._visit, peer), "a connection cannot be checked")
        if count == VISITS_PER_TURN:
            self._schedule()
        else:
            self._left = None
            self._done()
