# SPDX-License-Identifier: Apache-2.0
"""The admin client of a whole cluster; its `broker()` and `namesrv` send single requests.

`ClientAdmin` has the calls that producers and consumers offer over their own connections.
"""

import asyncio
from enum import StrEnum

import msgspec

from cometmq.client.admin.broker_consumers import END
from cometmq.client.admin.broker_messages import FOREVER_MS, KEY_COUNT_MAX
from cometmq.client.admin.dead_letters import DeadLetterAdmin
from cometmq.client.admin.figures import BrokerFigures, read_figures
from cometmq.client.admin.groups import GroupAdmin
from cometmq.client.admin.messages import MessageAdmin
from cometmq.client.admin.offsets import OffsetAdmin, QueueLag, Rollback
from cometmq.client.admin.topics import TopicAdmin
from cometmq.client.cluster.instance import ClientInstance
from cometmq.client.message import MessageExt, check_received
from cometmq.client.settings import MessageModel
from cometmq.remoting.bodies.connections import ConsumerConnections
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.errors import CometError, CommandError, ConsumerNotOnline
from cometmq.remoting.log import Log
from cometmq.remoting.names import ALL_TAGS
from cometmq.remoting.transport.addresses import is_same_address


class ClusterMember(msgspec.Struct, frozen=True):
    """One broker of a cluster, with its statistics or the reason why they are missing."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    figures: BrokerFigures | None
    failure: CometError | None


class TrackType(StrEnum):
    """The state of a message in a group; named as in the Java tools."""

    CONSUMED = "CONSUMED"
    CONSUMED_BUT_FILTERED = "CONSUMED_BUT_FILTERED"
    PULL = "PULL"
    """The group pulls and keeps its own offsets, so its progress is unknown."""
    CONSUME_BROADCASTING = "CONSUME_BROADCASTING"
    """Each member keeps its own offsets; RocketMQ 4.9 reports NOT_CONSUME_YET instead."""
    NOT_CONSUME_YET = "NOT_CONSUME_YET"
    NOT_ONLINE = "NOT_ONLINE"
    UNKNOWN = "UNKNOWN"


class MessageTrack(msgspec.Struct, frozen=True):
    """The state of a message in one group."""

    consumer_group: str
    track_type: TrackType
    exception_desc: str | None = None


def _is_wanted(message: MessageExt, members: ConsumerConnections) -> bool:
    wanted = members.subscription_table.get(message.queue.topic)
    if wanted is None or not wanted.tags_set:
        return True
    return ALL_TAGS in wanted.tags_set or message.tag in wanted.tags_set


__all__ = [
    "END",
    "AdminClient",
    "ClusterMember",
    "MessageTrack",
    "QueueLag",
    "Rollback",
    "TrackType",
]


class AdminClient(GroupAdmin, OffsetAdmin, DeadLetterAdmin, MessageAdmin, TopicAdmin):
    """Manages topics, groups, offsets, messages and dead letters on all brokers."""

    async def members(self, cluster: str | None = None) -> list[ClusterMember]:
        """Return the brokers of one cluster or of all, sorted by cluster, name and id."""
        clusters = (await self.cluster()).cluster_addr_table
        groups = await self.broker_groups(cluster)
        async with asyncio.TaskGroup() as tasks:
            members = [
                tasks.create_task(self._member(of, name, broker_id, broker.address))
                for of, names in sorted(clusters.items())
                if cluster in (None, of)
                for name in sorted(names)
                for broker_id, broker in groups.get(name, {}).items()
            ]
        return [member.result() for member in members]

    def expiries_s(self) -> dict[str, float]:
        """Return when the certificates in this client's TLS files expire, in s since 1970."""
        return self._running().remoting.expiries_s()

    def peer_expiry_s(self, address: str) -> float | None:
        """Return when the certificate that a server has shown to this client expires, in seconds
        since 1970; None if there is no TLS connection to the address.
        """
        return self._running().remoting.peer_expiry_s(address)

    async def _member(self, cluster: str, name: str, broker_id: int, address: str) -> ClusterMember:
        figures, failure = None, None
        try:
            figures = read_figures(await self.broker(address, name=name).runtime_info())
        except CometError as error:
            failure = error
        return ClusterMember(cluster, name, broker_id, address, figures, failure)

    async def message_tracks(self, message: MessageExt) -> list[MessageTrack]:
        """Return the state of a message in each group that consumes its topic."""
        check_received(message)
        groups = await self.consuming_groups(message.queue.topic)
        return [await self._track(message, group) for group in groups]

    async def _track(self, message: MessageExt, group: str) -> MessageTrack:
        try:
            members = await self.consumer_connections(group)
        except CommandError as error:
            is_offline = isinstance(error, ConsumerNotOnline)
            return MessageTrack(
                group,
                TrackType.NOT_ONLINE if is_offline else TrackType.UNKNOWN,
                f"CODE:{error.code} DESC:{error.remark}",
            )
        if members.consume_type != "CONSUME_PASSIVELY":
            return MessageTrack(group, TrackType.PULL)
        if members.message_model == MessageModel.BROADCASTING:
            return MessageTrack(group, TrackType.CONSUME_BROADCASTING)
        if not await self._is_consumed(message, group):
            return MessageTrack(group, TrackType.NOT_CONSUME_YET)
        return MessageTrack(
            group,
            TrackType.CONSUMED if _is_wanted(message, members) else TrackType.CONSUMED_BUT_FILTERED,
        )

    async def _is_consumed(self, message: MessageExt, group: str) -> bool:
        queue = message.queue
        table = (await self.consume_stats(group, queue.topic, is_missing_ok=True)).offset_table
        masters = await self.masters()
        names = {queue.broker_name} & masters.keys() or {
            name
            for name, master in masters.items()
            if is_same_address(master.address, message.store_host)
        }
        return any(
            pair.consumer_offset > message.queue_offset
            for place, pair in table.items()
            if (place.topic, place.queue_id) == (queue.topic, queue.queue_id)
            and place.broker_name in names
        )


class ClientAdmin:
    """Topics, offsets and stored messages within the namespace of one client."""

    def __init__(self, instance: ClientInstance, log: Log) -> None:
        self._admin = AdminClient.attached(instance, log)
        self._refreshes = instance.refreshes
        self._namespace = instance.namespace

    async def create_topic(
        self, topic: str, *, queue_count: int | None = None, is_forced: bool = False
    ) -> list[str]:
        """Create or change a topic on all masters; return their names.

        A new topic has 8 queues on each broker, unless `queue_count` is given. Raise
        InvalidArgument if an existing topic would have fewer queues than before, unless `is_forced`
        is set, because consumers would not see the messages in the removed queues.

        This client uses the new queues at once, other clients after their next route refresh.
        """
        topic = self._namespace.wrap(topic)
        names = await self._admin.create_topic(topic, queue_count=queue_count, is_forced=is_forced)
        self._refreshes.outdated(topic)
        return names

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return all queues of a topic that can be read."""
        found = await self._admin.queues(self._namespace.wrap(topic))
        return [self._namespace.unwrap_queue(queue) for queue in found]

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message of a queue."""
        return await self._admin.min_offset(self._namespace.wrap_queue(queue))

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message of a queue will get."""
        return await self._admin.max_offset(self._namespace.wrap_queue(queue))

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the message stored nearest to a timestamp.

        For a time after the newest message, this is the newest message's offset.
        """
        return await self._admin.search_offset(self._namespace.wrap_queue(queue), timestamp_ms)

    async def earliest_store_time(self, queue: MessageQueue) -> int | None:
        """Return when the oldest message of a queue was stored, in ms; None if it is empty."""
        return await self._admin.earliest_store_time(self._namespace.wrap_queue(queue))

    async def view_message(self, message_id: str, topic: str) -> MessageExt:
        """Return a message by its offset message id or its unique key; raise QueryNotFound if there
        is none.

        While a delayed message waits, its `queue` is a queue of SCHEDULE_TOPIC_XXXX.
        """
        found = await self._admin.view_message(message_id, self._namespace.wrap(topic))
        return self._seen(found)

    async def query_by_key(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = KEY_COUNT_MAX,
        begin_ms: int = 0,
        end_ms: int = FOREVER_MS,
    ) -> list[MessageExt]:
        """Return the newest messages with a key; see `AdminClient.query_by_key`."""
        found = await self._admin.query_by_key(
            self._namespace.wrap(topic),
            key,
            count_max=count_max,
            begin_ms=begin_ms,
            end_ms=end_ms,
        )
        return [self._seen(message) for message in found]

    def _seen(self, message: MessageExt) -> MessageExt:
        if not self._namespace:
            return message
        return msgspec.structs.replace(
            message,
            topic=self._namespace.unwrap(message.topic),
            queue=self._namespace.unwrap_queue(message.queue),
        )
