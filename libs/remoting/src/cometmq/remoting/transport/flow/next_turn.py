# SPDX-License-Identifier: Apache-2.0
"""Work that waits for the next turn of the loop; does no I/O itself.

Some of it concerns thousands of connections, of which a turn treats a limited number. A visit takes
1 to 2 us of processor time, so one look at the 20,000 connections of a broker would hold the loop
for 40 ms (`Walk`).
"""

import asyncio
from abc import ABC, abstractmethod
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
