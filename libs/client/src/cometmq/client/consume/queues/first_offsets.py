# SPDX-License-Identifier: Apache-2.0
"""Finds the offset at which a consumer starts in a newly assigned queue."""

from collections.abc import Callable, Collection
from typing import Final

from cometmq.client.admin.broker_consumers import BrokerConsumers
from cometmq.client.application_calls import Failures
from cometmq.client.clock import monotonic_ms, wall_ms
from cometmq.client.cluster.instance import ClientInstance
from cometmq.client.consume.queues.parts import ConsumerParts
from cometmq.client.settings import ConsumeFrom
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.names import RETRY_PREFIX

TIMESTAMP_BACK_MS: Final = 30 * 60_000


class QueueOffsets:
    """Asks brokers for the bounds of queues."""

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance

    async def max(self, queue: MessageQueue) -> int:
        """Return the exclusive end offset of a queue."""
        return await (await self._broker(queue)).max_offset(queue.topic, queue.queue_id)

    async def min(self, queue: MessageQueue) -> int:
        return await (await self._broker(queue)).min_offset(queue.topic, queue.queue_id)

    async def both(self, queue: MessageQueue) -> tuple[int, int]:
        """Return the offset of the oldest message and the exclusive end of a queue."""
        return await self.min(queue), await self.max(queue)

    async def at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the message stored nearest to a timestamp."""
        broker = await self._broker(queue)
        return await broker.search_offset(queue.topic, queue.queue_id, timestamp_ms)

    async def is_young(self, queue: MessageQueue, group: str) -> bool:
        """Return whether a group without offsets must read the queue from its first message, as
        the broker decides for clustering groups.
        """
        broker = await self._broker(queue)
        return await broker.committed_offset(group, queue.topic, queue.queue_id) == 0

    async def _broker(self, queue: MessageQueue) -> BrokerConsumers:
        """Return the broker of a queue; raise InvalidArgument for a queue that does not exist."""
        await self._instance.routes.find_queue(queue)
        return BrokerConsumers.of(self._instance, queue.broker_name)


class NewQueues:
    """Which queues have appeared while a broadcasting member runs.

    Clustering members leave this to the broker, which knows young queues. A broadcasting member
    would otherwise skip the messages sent before it has learned of a new queue or topic.
    """

    def __init__(self, was_absent: Callable[[str, int], bool]) -> None:
        """`was_absent` returns whether a topic has been missing since a monotonic time."""
        self._was_absent = was_absent
        self._began_ms = monotonic_ms()
        self.began_at_ms = wall_ms()
        self._known: dict[str, set[MessageQueue]] = {}
        self._new: set[MessageQueue] = set()

    def note(self, topic: str, queues: Collection[MessageQueue]) -> None:
        known = self._known.get(topic)
        if known is None:
            if not queues:
                return
            known = self._known[topic] = set()
            if not self._was_absent(topic, self._began_ms):
                known.update(queues)
        self._new |= set(queues) - known
        known.update(queues)

    def forget(self, topic: str) -> None:
        self._known.pop(topic, None)
        self._new = {queue for queue in self._new if queue.topic != topic}

    def __contains__(self, queue: MessageQueue) -> bool:
        return queue in self._new


class FirstOffsets:
    """Finds where one consumer starts in each newly assigned queue."""

    def __init__(self, parts: ConsumerParts) -> None:
        self._parts = parts
        self._bounds = QueueOffsets(parts.instance)
        self.new = NewQueues(parts.instance.routes.was_absent)
        self._was_read: dict[str, bool] = {}

    async def find(self, queue: MessageQueue) -> int:
        """Return the committed offset, or the start offset that the options specify.

        Raise CometError if the caller must retry later.

        Compatibility: retry topics are read from their beginning, except by a group that starts at
        a timestamp.
        """
        parts, bounds = self._parts, self._bounds
        options = parts.options
        with Failures():
            stored = await parts.offsets.read(queue)
        if stored is not None and stored >= 0:
            return stored
        is_retry = queue.topic.startswith(RETRY_PREFIX)
        if options.consume_from is ConsumeFrom.FIRST_OFFSET:
            return 0
        if options.consume_from is ConsumeFrom.LAST_OFFSET:
            if parts.is_broadcasting and (queue in self.new or await self._is_added(queue.topic)):
                return await self._in_new_queue(queue)
            return 0 if is_retry else await bounds.max(queue)
        if is_retry:
            return await bounds.max(queue)
        moment_ms = options.consume_timestamp_ms or wall_ms() - TIMESTAMP_BACK_MS
        return await bounds.at(queue, moment_ms)

    async def _is_added(self, topic: str) -> bool:
        """Return whether a queue without an offset was added to the topic since the last run, which
        stored the offsets of all queues that it knew.

        The answer is that of the first call, before this run stores any offset of the topic.
        """
        if topic not in self._was_read:
            route, read = self._parts.instance.routes.get(topic), self._parts.offsets.read
            was_read = False
            with Failures():
                for queue in () if route is None else route.subscribe_queues:
                    was_read = was_read or await read(queue) is not None
            self._was_read.setdefault(topic, was_read)
        return self._was_read[topic]

    async def _in_new_queue(self, queue: MessageQueue) -> int:
        """Return where a broadcasting member starts in a queue that appeared while it runs, or
        since its last run.

        As for clustering members, this is the first message of a young queue. An old queue may come
        back with its broker: it is read from the first message stored since the member started.
        """
        if await self._bounds.is_young(queue, self._parts.group):
            return 0
        return await self._bounds.at(queue, self.new.began_at_ms)
