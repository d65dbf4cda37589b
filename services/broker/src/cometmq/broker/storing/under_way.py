# SPDX-License-Identifier: Apache-2.0
"""The sizes of large requests that take their time, bounded in total for all connections.

A client may close its connection and send the next one on another, so what a connection has in
flight does not bound them.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from cometmq.broker.limits import BATCH_BYTES, Room
from cometmq.runtime.incremental import IncrementalRunner
from cometmq.runtime.limits import Limit


class UnderWay:
    """The requests of one kind that wait or are being served, in the unit of their limit."""

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self.size = 0

    @contextmanager
    def counting(self, size: int, room: Room) -> Iterator[None]:
        """Count a request while it is served; raise LimitReached if there is no room for it."""
        bound = room.limits.maximum(self._limit)
        if self.size + size > bound:
            detail = f"{self.size} of at most {bound} are waiting; try again later"
            raise room.limits.refusal(self._limit, detail, room.peer)
        self.size += size
        try:
            yield
        finally:
            self.size -= size


class LargeBatches(UnderWay):
    """Batches of many messages, which are decoded and stored in steps, one batch at a time."""

    def __init__(self) -> None:
        super().__init__(BATCH_BYTES)
        self.runner = IncrementalRunner()
