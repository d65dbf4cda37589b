# SPDX-License-Identifier: Apache-2.0
"""The sizes of large requests that take their time, bounded in total for all connections.

A client may close its connection and send the next one on another, so what a connection has in
flight does not bound them.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from cometmq.broker.limits import Room
from cometmq.runtime.limits import Limit
from cometmq.store.results import PutDone, PutResult


class UnderWay:
    """The requests of one kind that wait or are being served, in the unit of their limit."""

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self.size = 0

    @contextmanager
    def counting(self, size: int, room: Room) -> Iterator[None]:
        """Count a request while it is served; raise LimitReached if there is no room for it."""
        self.check(size, room)
        self.size += size
        try:
            yield
        finally:
            self.size -= size

    def counted(self, size: int, room: Room, done: PutDone) -> PutDone:
        """Count a request until its put is answered by the function that this returns; raise
        LimitReached if there is no room for it.
        """
        self.check(size, room)
        self.size += size

        def answered(result: PutResult) -> None:
            self.size -= size
            done(result)

        return answered

    def check(self, size: int, room: Room) -> None:
        """Raise LimitReached if there is no room for a request."""
        bound = room.limits.maximum(self._limit)
        if self.size + size > bound:
            detail = f"{self.size} of at most {bound} are waiting; try again later"
            raise room.limits.refusal(self._limit, detail, room.peer)
