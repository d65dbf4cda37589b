# SPDX-License-Identifier: Apache-2.0
"""Large puts: those that would block the loop for long are stored in steps, one at a time, and the
total size of large requests is bounded.

The bounds per connection are not enough: a client may close a connection and send the next large
request on another, while the first one is still being served.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from cometmq.broker.limits import Room
from cometmq.broker.storing.read_turns import OWN
from cometmq.broker.storing.store_driver import StoreDriver
from cometmq.remoting.log import NO_LOG, Log
from cometmq.remoting.message.new_message import NewMessage
from cometmq.remoting.transport.flow.fair_queue import Requester
from cometmq.remoting.transport.tasks import TaskSet
from cometmq.runtime.incremental import IncrementalRunner, Steps
from cometmq.runtime.limits import Limit
from cometmq.store.results import PutDone, PutResult


class UnderWay:
    """The size of all requests of one kind that wait or are served, in the limit's unit."""

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


KEYS_AT_ONCE: Final = 256
"""A message with more keys is stored in steps. Each key takes 3 us, so hundreds of such messages
would block the loop for seconds.
"""


def has_many_keys(message: NewMessage) -> bool:
    """Return whether the message has so many keys that it must be stored in steps."""
    return len(message.keys) > KEYS_AT_ONCE


class LargePuts:
    """Stores large puts; requesters and the broker itself take turns."""

    def __init__(self, driver: StoreDriver, log: Log = NO_LOG) -> None:
        self.driver = driver
        self.runner = IncrementalRunner()
        self._tasks = TaskSet(log)

    def put(
        self,
        messages: Sequence[NewMessage],
        done: PutDone,
        requester: Callable[[], Requester] = lambda: OWN,
    ) -> None:
        """Store messages that the broker itself has made; the caller limits how many puts wait.

        `requester` is called only for a large put: most puts are small, and it decodes a header.
        """
        if any(map(has_many_keys, messages)):
            self.start(self.driver.put_large(messages, done), requester())
        elif len(messages) == 1:
            self.driver.put(messages[0], done)
        else:
            self.driver.put_batch(messages, done)

    def begin(self, work: Steps[None], requester: Requester) -> None:
        """Run the first step at once; `requester` takes turns with others for the further steps."""
        if next(work, work) is not work:
            self.start(work, requester)

    def start(self, work: Steps[None], requester: Requester) -> None:
        """Queue all steps; `requester` takes turns with others."""
        self._tasks.spawn(self.runner.run(work, requester), name="large-put")

    async def drain(self) -> None:
        """Wait until all started puts are written."""
        while len(self._tasks):  # noqa: ASYNC110  # its steps run in the same turns
            await asyncio.sleep(0)
