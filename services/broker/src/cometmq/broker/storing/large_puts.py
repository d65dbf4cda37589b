# SPDX-License-Identifier: Apache-2.0
"""Stores puts that would block the loop for long in steps, one put at a time."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from cometmq.broker.storing.read_deadlines import OWN
from cometmq.broker.storing.store_driver import StoreDriver
from cometmq.remoting.log import NO_LOG, Log
from cometmq.remoting.message.new_message import NewMessage
from cometmq.remoting.transport.flow.fair_queue import Requester
from cometmq.remoting.transport.tasks import TaskSet
from cometmq.runtime.incremental import IncrementalRunner, Steps
from cometmq.store.results import PutDone

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
