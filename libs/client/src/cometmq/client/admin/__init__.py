# SPDX-License-Identifier: Apache-2.0
"""The admin client of a whole cluster; its `broker()` and `namesrv` send single requests."""

import asyncio
from enum import StrEnum

import msgspec

from cometmq.client.admin.broker_consumers import END
from cometmq.client.admin.dead_letters import DeadLetterAdmin
from cometmq.client.admin.figures import BrokerFigures, read_figures
from cometmq.client.admin.groups import GroupAdmin
from cometmq.client.admin.messages import MessageAdmin
from cometmq.client.admin.offsets import OffsetAdmin, QueueLag, Rollback
from cometmq.client.admin.topics import TopicAdmin
from cometmq.client.message import MessageExt, check_received
from cometmq.client.settings import MessageModel
from cometmq.remoting.bodies.connections import ConsumerConnections
from cometmq.remoting.errors import CometError, CommandError, ConsumerNotOnline
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
    """Each member keeps its own offsets, so their progress is unknown. RocketMQ 4.9 reports
    NOT_CONSUME_YET instead.
    """
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
        """Return when certificates in this client's own TLS files expire, in seconds since 1970, by
        setting.
        """
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
