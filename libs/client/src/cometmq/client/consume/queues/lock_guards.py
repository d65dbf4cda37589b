# SPDX-License-Identifier: Apache-2.0
"""Whether an orderly consumer may go on with a queue."""

import asyncio
from collections.abc import Awaitable, Callable, Collection

from cometmq.client.cluster.instance import RETRY_SOON_MS
from cometmq.client.consume.queues.locks import QueueLocks
from cometmq.client.consume.queues.process_queue import ProcessQueue
from cometmq.remoting.bodies.queues import MessageQueue


class AlwaysOurs:
    """Of a broadcasting consumer: nobody else competes for its queues."""

    def is_valid(self, queue: MessageQueue) -> bool:
        """Say yes."""
        del queue
        return True

    async def recovers(self, process_queue: ProcessQueue) -> bool:
        """Say yes, although nobody asks."""
        del process_queue
        return True


class LockGuards:
    """Of a member of a group: a queue is ours while its lock is."""

    def __init__(
        self,
        locks: QueueLocks,
        *,
        begin_anew: Callable[[Collection[MessageQueue]], Awaitable[None]],
        retry_ms: int = RETRY_SOON_MS,
    ) -> None:
        """Have queues that were lost `begin_anew` at their committed offsets."""
        self._locks = locks
        self._begin_anew = begin_anew
        self._retry_ms = retry_ms

    def is_valid(self, queue: MessageQueue) -> bool:
        """Whether the lock is certainly ours."""
        return self._locks.is_valid(queue)

    async def recovers(self, process_queue: ProcessQueue) -> bool:
        """Lock a queue again whose lock ran out; False if another member had it meanwhile."""
        queue = process_queue.queue
        while not (process_queue.is_dropped or process_queue.is_leaving):
            is_ours = await self._locks.recover(queue)
            if is_ours:
                return True
            if is_ours is not None:
                if not process_queue.is_dropped:
                    await self._begin_anew([queue])
                return False
            await asyncio.sleep(self._retry_ms / 1000)
        return False
