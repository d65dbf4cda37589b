# SPDX-License-Identifier: Apache-2.0
"""What happens after each commit: answers leave, and held pulls get what came.

A message may wake the pulls of thousands of consumers. Some of them are answered in each turn of
the loop, so that nobody else waits for all of them, least of all the sender.
"""

import asyncio
from collections.abc import Callable

from cometmq.broker.broker import Broker
from cometmq.broker.handlers.pull import serve_arrivals


class Arrivals:
    """Answers woken pulls until none is left."""

    def __init__(self, broker: Broker, flush: Callable[[], None]) -> None:
        """Have `flush` send what was answered; on the running loop."""
        self._broker = broker
        self._flush = flush
        self._loop = asyncio.get_running_loop()
        self._is_scheduled = False

    def serve(self) -> None:
        """Answer the next of them, and let all answers leave."""
        hold = self._broker.hold
        if hold.ready:
            self._flush()
        serve_arrivals(self._broker)
        self._flush()
        if hold.ready and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_scheduled = False
        self.serve()
