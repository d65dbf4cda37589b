# SPDX-License-Identifier: Apache-2.0
"""Sends pending answers after each commit, and answers the pulls that the commit woke.

A message may wake the pulls of thousands of consumers. Each turn of the loop answers a bounded
number of them, so that other requests, above all the send itself, do not wait for every pull.
"""

import asyncio
from collections.abc import Callable

from cometmq.broker.broker import Broker
from cometmq.broker.handlers.pull import serve_arrivals


def connect_arrivals(
    broker: Broker, flush: Callable[[], None], charge: Callable[[float], None] = lambda _: None
) -> None:
    """Make commits wake held pulls and send pending answers; `flush` does the sending. `charge`
    gets the time of a commit that took long.

    The driver cannot take these callbacks in its constructor, because they need the broker, which
    holds the driver, and the server, which needs the broker.
    """
    broker.store.add_arrival_listener(broker.hold.note_arrivals)
    broker.driver.after_commit = Arrivals(broker, flush).serve
    broker.driver.took_long = charge


class Arrivals:
    """Answers woken pulls, a bounded number per turn, until none is left."""

    def __init__(self, broker: Broker, flush: Callable[[], None]) -> None:
        """`flush` sends pending answers. Create the object on the running loop."""
        self._broker = broker
        self._flush = flush
        self._loop = asyncio.get_running_loop()
        self._is_scheduled = False

    def serve(self) -> None:
        hold = self._broker.hold
        if hold.ready:
            # The send's answer leaves before the work on woken pulls begins.
            self._flush()
        if hold.ready or hold.unsure:
            serve_arrivals(self._broker)
        self._flush()
        if hold.ready and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_scheduled = False
        self.serve()
