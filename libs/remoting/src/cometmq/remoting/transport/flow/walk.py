# SPDX-License-Identifier: Apache-2.0
"""Visits all connections, a limited number of them in each turn of the loop.

A visit takes 1 to 2 us of CPU time, so one look at the 20,000 connections of a broker would hold
the loop for 40 ms.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import islice
from typing import Final, Generic, TypeVar

from cometmq.remoting.transport.flow.next_turn import Abortable, NextTurn

PeerT = TypeVar("PeerT", bound=Abortable)

VISITS_PER_TURN: Final = 1_000
CLOSED_PER_TURN: Final = 200
"""Number of connections that are closed in one turn of the loop: 5 ms."""


class Walk(NextTurn, Generic[PeerT]):
    """Visits the connections that exist when it begins, and that have not ended since."""

    __slots__ = ("_done", "_left", "_peers", "_visit")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        peers: Collection[PeerT],
        visit: Callable[[PeerT], None],
        done: Callable[[], None] = lambda: None,
    ) -> None:
        """Visit `peers`, the collection of live connections; call `done` after the last visit."""
        super().__init__(loop)
        self._peers = peers
        self._visit = visit
        self._done = done
        self._left: Iterator[PeerT] | None = None

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
