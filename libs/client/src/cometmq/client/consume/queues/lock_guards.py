# SPDX-License-Identifier: Apache-2.0
"""Lock checks that decide whether an orderly consumer may continue with a queue."""

import asyncio
from collections.abc import Awaitable, Callable, Collection

from cometmq.client.cluster.instance import RETRY_SOON_MS
from cometmq.client.consume.queues.locks import QueueLocks
from cometmq.client.consume.queues.process_queue import ProcessQueue
from cometmq.remoting.bodies.queues import MessageQueue


class AlwaysOurs:
    """Used by broadcasting consumers: queues are not shared, so no lock is needed."""

    def is_valid(self, queue: MessageQueue) -> bool:
        """Return True, because every queue counts as locked."""
        del queue
        return True

    async def recovers(self, process_queue: ProcessQueue) -> bool:
        """Required by the protocol, but never called, because every queue counts as locked."""
        del process_queue
        return True


class LockGuards:
    """Used by group members: a queue may be consumed while its lock is valid."""

    def __init__(
        self,
        locks: QueueLocks,
        *,
        begin_anew: Callable[[Collection[MessageQueue]], Awaitable[None]],
        retry_ms: int = RETRY_SOON_MS,
    ) -> None:
        """`begin_anew` restarts lost queues at their committed offsets."""
        self._locks = locks
        self._begin_anew = begin_anew
        self._retry_ms = retry_ms

    def is_valid(self, queue: MessageQueue) -> bool:
        """Return whether the lock is certainly valid."""
        return self._locks.is_valid(queue)

    async def recovers(self, process_queue: ProcessQueue) -> bool:
        """Lock a queue again after its lock expired; return False if another member has locked
        it since.
        """
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
