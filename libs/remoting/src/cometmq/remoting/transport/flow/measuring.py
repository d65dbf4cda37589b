# SPDX-License-Identifier: Apache-2.0
"""Measures the output that connections hold, and then visits the connections with the most, a
limited number in each turn of the loop.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from cometmq.remoting.transport.flow.connected import Connected
from cometmq.remoting.transport.flow.next_turn import NextTurn
from cometmq.remoting.transport.flow.walk import CLOSED_PER_TURN, VISITS_PER_TURN, Walk

Sizes = list[tuple[int, Connected]]

CLOSE_COST: Final = VISITS_PER_TURN // CLOSED_PER_TURN
"""Cost of closing a connection, in visits."""


class Measuring(NextTurn):
    """Runs measurements, one at a time, in turns of the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        holders: set[Connected],
        judge: Callable[[Sizes, int], Iterator[int]],
    ) -> None:
        """Measure `holders`, and remove those that hold nothing.

        `judge` gets pairs of the bytes held and the connection, and the total size of waiting
        requests; it yields the cost of each visit that it makes.
        """
        super().__init__(loop)
        self._holders = holders
        self._judge = judge
        self._walk: Walk[Connected] = Walk(loop, holders, self._visit, self._measured)
        self._sizes: Sizes = []
        self._request_bytes = 0
        self._judging: Iterator[int] = iter(())
        self.is_running = False

    def begin(self) -> None:
        """Begin a measurement; if there are thousands of connections, it takes several turns of the
        loop.
        """
        self.is_running = True
        self._walk.begin()

    def _visit(self, peer: Connected) -> None:
        self._request_bytes += (requests := peer.intake.waiting_bytes)
        if size := peer.outlet.held_bytes:
            self._sizes.append((size, peer))
        elif not requests:
            self._holders.discard(peer)

    def _measured(self) -> None:
        self._judging = self._judge(self._sizes, self._request_bytes)
        self._sizes, self._request_bytes = [], 0
        self._run()

    def _run(self) -> None:
        left = VISITS_PER_TURN
        self.is_running = False  # unless there is more to do
        for cost in self._judging:
            left -= cost
            if left <= 0:
                self.is_running = True
                self._schedule()
                return
