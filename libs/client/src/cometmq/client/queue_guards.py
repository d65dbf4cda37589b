# SPDX-License-Identifier: Apache-2.0
"""Whether an orderly consumer may go on with a queue."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from functools import partial

from cometmq.client.background import described
from cometmq.client.instance import RETRY_SOON_MS
from cometmq.client.offsets import OffsetStore
from cometmq.client.process_queue import ProcessQueue
from cometmq.client.queue_locks import QueueLocks
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.log import Log


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
        offsets: OffsetStore,
        *,
        begin_anew: Callable[[Collection[MessageQueue]], Awaitable[None]],
        log: Log,
        retry_ms: int = RETRY_SOON_MS,
    ) -> None:
        """Have queues that were lost `begin_anew` at their committed offsets."""
        self._locks = locks
        self._offsets = offsets
        self._begin_anew = begin_anew
        self._log = log
        self._retry_ms = retry_ms

    def is_valid(self, queue: MessageQueue) -> bool:
        """Whether the lock is certainly ours."""
        return self._locks.is_valid(queue)

    async def recovers(self, process_queue: ProcessQueue) -> bool:
        """Lock a queue again whose lock ran out; False if another member had it meanwhile."""
        queue = process_queue.queue
        is_unchanged = partial(self._is_unchanged, process_queue)
        while not (process_queue.is_dropped or process_queue.is_leaving):
            is_ours = await self._locks.recover(queue, is_unchanged)
            if is_ours:
                return True
            if is_ours is not None:
                await self._begin_anew([queue])
                return False
            await asyncio.sleep(self._retry_ms / 1000)
        return False

    async def _is_unchanged(self, process_queue: ProcessQueue) -> bool | None:
        """Whether nobody has consumed from a queue meanwhile; None if that is not known now."""
        queue = process_queue.queue
        try:
            stored = await self._offsets.read(queue)
        except Exception as error:  # noqa: BLE001  # a store may be foreign code
            self._log.warning(
                "offset.unknown",
                topic=queue.topic,
                queue_id=queue.queue_id,
                error=described(error),
            )
            return None
        return stored is None or stored <= process_queue.committable
