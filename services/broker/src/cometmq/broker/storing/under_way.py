# SPDX-License-Identifier: Apache-2.0
"""Bounds the total size of large requests in progress, for all connections together.

The bounds per connection are not enough: a client may close a connection and send the next large
request on another, while the first one is still being served.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from cometmq.broker.limits import Room
from cometmq.runtime.limits import Limit
from cometmq.store.results import PutDone, PutResult


class UnderWay:
    """The total size of the requests of one kind that wait or are being served, in
    the limit's unit.
    """

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self.size = 0

    @contextmanager
    def counting(self, size: int, room: Room) -> Iterator[None]:
        """Count a request while it is served; raise LimitReached if there is no room for it."""
        self._add(size, room)
        try:
            yield
        finally:
            self._remove(size, room)

    def counted(self, size: int, room: Room, done: PutDone) -> PutDone:
        """Count a request until the returned callback, which calls `done`, is called with the
        outcome of its put; raise LimitReached if there is no room for the request.
        """
        self._add(size, room)

        def answered(result: PutResult) -> None:
            self._remove(size, room)
            done(result)

        return answered

    def check(self, size: int, room: Room) -> None:
        """Raise LimitReached if there is no room for a request, or its peer has its share."""
        bound = room.limits.maximum(self._limit)
        if self.size + size > bound:
            detail = f"{self.size} of at most {bound} are waiting; try again later"
            raise room.limits.refusal(self._limit, detail, room.peer)
        room.limits.check_share(self._limit, self.size, room.peer, size)

    def _add(self, size: int, room: Room) -> None:
        self.check(size, room)
        room.admit(self._limit, self.size, size)
        self.size += size

    def _remove(self, size: int, room: Room) -> None:
        self.size -= size
        room.limits.release(self._limit, room.peer, size)
