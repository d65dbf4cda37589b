# SPDX-License-Identifier: Apache-2.0
"""Administration of consumer groups: their members and offsets at all brokers."""

import msgspec

from cometmq.client.admin_base import AdminBase
from cometmq.client.message import check_group
from cometmq.remoting.bodies.connections import ConsumerConnections
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.errors import ConsumerNotOnline, ServerError, TopicNotExist


class QueueLag(msgspec.Struct, frozen=True):
    """How far a group is in one queue."""

    queue: MessageQueue
    max_offset: int
    committed_offset: int
    last_timestamp: int
    """When the message at the committed offset was stored; 0 if unknown."""

    @property
    def lag(self) -> int:
        """Messages that are not consumed yet."""
        return self.max_offset - self.committed_offset


class GroupAdmin(AdminBase):
    """Looks after consumer groups."""

    async def groups(self) -> dict[str, SubscriptionGroupConfig]:
        """Return the consumer groups of all masters."""
        found: dict[str, SubscriptionGroupConfig] = {}
        for master in (await self.masters()).values():
            found.update(await master.groups())
        return dict(sorted(found.items()))

    async def create_group(
        self, config: SubscriptionGroupConfig, *, cluster: str | None = None
    ) -> None:
        """Create or change a consumer group at every master."""
        check_group(config.group_name)
        for master in (await self.masters(cluster)).values():
            await master.create_group(config)

    async def delete_group(
        self, group: str, *, remove_offsets: bool = False, cluster: str | None = None
    ) -> None:
        """Delete a consumer group at every master, with its offsets if wanted."""
        for master in (await self.masters(cluster)).values():
            await master.delete_group(group, remove_offsets=remove_offsets)

    async def consumer_connections(self, group: str) -> ConsumerConnections:
        """Return the connected members of a group; ConsumerNotOnline without any."""
        found: ConsumerConnections | None = None
        for master in (await self.masters()).values():
            try:
                answer = await master.consumer_connections(group)
            except (ConsumerNotOnline, ServerError):
                continue  # this broker does not know the group: another may
            if found is None:
                found = answer
            known = {connection.client_id for connection in found.connection_set}
            found.connection_set += [c for c in answer.connection_set if c.client_id not in known]
        if found is None:
            raise ConsumerNotOnline(f"the consumer group <{group}> not online")
        return found

    async def lag(self, group: str, topic: str | None = None) -> list[QueueLag]:
        """Return how far a group is in each queue, its retry topic included."""
        found: dict[MessageQueue, QueueLag] = {}
        for master in (await self.masters()).values():
            try:
                stats = await master.consume_stats(group, topic)
            except (TopicNotExist, ServerError):
                continue  # the group has consumed nothing here
            for queue, pair in stats.offset_table.items():
                found[queue] = QueueLag(
                    queue, pair.broker_offset, pair.consumer_offset, pair.last_timestamp
                )
        return [found[queue] for queue in sorted(found)]

    # -- offsets ------------------------------------------------------------------------------

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message of a queue."""
        return await (await self._master_of(queue)).min_offset(queue.topic, queue.queue_id)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message of a queue will get."""
        return await (await self._master_of(queue)).max_offset(queue.topic, queue.queue_id)

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the message stored nearest to a moment."""
        master = await self._master_of(queue)
        return await master.search_offset(queue.topic, queue.queue_id, timestamp_ms)

    async def committed_offset(self, group: str, queue: MessageQueue) -> int | None:
        """Return the committed offset of a group; None if there is none."""
        master = await self._master_of(queue)
        return await master.committed_offset(group, queue.topic, queue.queue_id)

    async def commit_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Set the offset of a group; connected members do not notice, and overwrite it."""
        master = await self._master_of(queue)
        await master.commit_offset(group, queue.topic, queue.queue_id, offset)

    async def reset_offsets(
        self, group: str, topic: str, timestamp_ms: int
    ) -> dict[MessageQueue, int]:
        """Move a group that is not connected to a moment in every queue; return the offsets."""
        moved: dict[MessageQueue, int] = {}
        for queue in await self.queues(topic):
            moved[queue] = await self.search_offset(queue, timestamp_ms)
            await self.commit_offset(group, queue, moved[queue])
        return moved
