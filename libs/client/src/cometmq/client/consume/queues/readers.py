# SPDX-License-Identifier: Apache-2.0
"""Reading the own queues: which there are, and what happens when they come and go.

Invariants
    A queue is read only after its first offset is known and the application was told. A dropped
    queue is never read again: if it comes back it begins as a new one, at the committed offset.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection

from cometmq.client.consume.queues.ownership import Ownership
from cometmq.client.consume.queues.process_queue import ProcessQueue
from cometmq.client.consume.queues.reader import ReadContext, Reader
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.errors import CometError
from cometmq.remoting.transport.tasks import TaskSet, describe

FirstOffset = Callable[[MessageQueue], Awaitable[int]]


class Readers:
    """The readers of one consumer."""

    def __init__(
        self,
        context: ReadContext,
        background: TaskSet,
        first_offset: FirstOffset,
        ownership: Ownership,
    ) -> None:
        """Start without queues; `first_offset` tells where a new one begins."""
        self._context = context
        self._ownership = ownership
        self._background = background
        self._first_offset = first_offset
        self._readers: dict[MessageQueue, Reader] = {}
        self._tasks: dict[MessageQueue, asyncio.Task[None]] = {}

    @property
    def queues(self) -> list[MessageQueue]:
        """The own queues."""
        return list(self._readers)

    @property
    def process_queues(self) -> list[ProcessQueue]:
        """What is held of each own queue."""
        return [reader.process_queue for reader in self._readers.values()]

    def get(self, queue: MessageQueue) -> Reader | None:
        """Return the reader of an own queue."""
        return self._readers.get(queue)

    def of_topic(self, topic: str) -> list[MessageQueue]:
        """Return the own queues of a topic."""
        return [queue for queue in self._readers if queue.topic == topic]

    def wake(self) -> None:
        """Have all readers look again whether there is room."""
        for reader in self._readers.values():
            reader.progressed()

    async def take(self, topic: str, queues: Collection[MessageQueue]) -> bool:
        """Own exactly these queues of a topic; False if some cannot be read yet."""
        lost = [queue for queue in self.of_topic(topic) if queue not in queues]
        await self.drop(lost)
        fresh = [queue for queue in queues if queue not in self._readers]
        if not fresh:
            return True
        claimed = await self._ownership.claim(fresh)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._open(queue)) for queue in claimed]
        opened = [queue for queue, task in zip(claimed, tasks, strict=True) if task.result()]
        if opened:
            self._context.log.info(
                "queues.assigned", topic=topic, taken=len(opened), lost=len(lost), owned=len(queues)
            )
            await self._ownership.taken(opened)
            for queue in opened:
                self._run(queue)
        await self._ownership.disclaim([queue for queue in claimed if queue not in self._readers])
        return len(opened) == len(fresh)

    async def drop(self, queues: Collection[MessageQueue], *, is_lost: bool = False) -> None:
        """Give queues up; `is_lost` means that somebody else has them already."""
        held = [reader.process_queue for reader in map(self._remove, queues) if reader is not None]
        if held:
            for one in held:
                self._context.puller.forget(one.queue)
            await self._ownership.leave(held, is_lost=is_lost)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Read an own queue again from an offset; what is held of it is dropped."""
        before = self._remove(queue)
        self._context.offsets.update(queue, offset, is_reset=True)
        reader = self._readers[queue] = Reader(self._context, queue, offset)
        if before is not None:
            reader.process_queue = before.process_queue.begun_anew(offset)
            reader.is_paused = before.is_paused
        self._run(queue)
        await self._context.offsets.persist([queue])

    async def persist(self) -> None:
        """Store the offsets of the own queues, as far as they are certainly ours."""
        context = self._context
        await context.offsets.persist([one for one in self._readers if context.may_commit(one)])

    def stop(self) -> None:
        """Pull no more; what is held may still be consumed."""
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()

    async def close(self, *, is_drained: bool) -> None:
        """Let all queues go, their offsets stored; called after `stop`."""
        held = self.process_queues
        self._readers.clear()
        await self._ownership.close(held, is_drained=is_drained)

    async def _open(self, queue: MessageQueue) -> bool:
        """Find the first offset of a queue; False if that is not known now."""
        try:
            offset = await self._first_offset(queue)
        except CometError as error:
            self._context.log.warning(
                "offset.unknown",
                topic=queue.topic,
                queue_id=queue.queue_id,
                error=describe(error),
            )
            return False
        if queue not in self._readers:  # else a seek was faster
            # Committed even if nothing comes: the next start must not skip what came meanwhile.
            self._context.offsets.update(queue, offset)
            self._readers[queue] = Reader(self._context, queue, offset)
        return True

    def _run(self, queue: MessageQueue) -> None:
        """Begin to read an own queue, if nothing reads it yet."""
        reader = self._readers.get(queue)
        if reader is not None and queue not in self._tasks:
            name = f"read-{queue.topic}-{queue.queue_id}"
            self._tasks[queue] = self._background.keep(reader.run, name=name)

    def _remove(self, queue: MessageQueue) -> Reader | None:
        """Read a queue no longer, and forget it."""
        task = self._tasks.pop(queue, None)
        if task is not None:
            task.cancel()
        return self._readers.pop(queue, None)
