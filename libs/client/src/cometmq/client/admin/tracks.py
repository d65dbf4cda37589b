# SPDX-License-Identifier: Apache-2.0
"""Delivery tracks: the state of a message in each group that consumes its topic."""

from enum import StrEnum

import msgspec

from cometmq.client.admin.groups import GroupAdmin
from cometmq.client.admin.offsets import OffsetAdmin
from cometmq.client.message import MessageExt, check_received
from cometmq.client.settings import MessageModel
from cometmq.remoting.bodies.connections import ConsumerConnections
from cometmq.remoting.errors import CommandError, ConsumerNotOnline
from cometmq.remoting.names import ALL_TAGS
from cometmq.remoting.transport.addresses import is_same_address


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


class TrackAdmin(GroupAdmin, OffsetAdmin):
    """Looks up how far each group has processed a message."""

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


def _is_wanted(message: MessageExt, members: ConsumerConnections) -> bool:
    wanted = members.subscription_table.get(message.queue.topic)
    if wanted is None or not wanted.tags_set:
        return True
    return ALL_TAGS in wanted.tags_set or message.tag in wanted.tags_set
