# SPDX-License-Identifier: Apache-2.0
"""Offset administration: read and change the progress of groups."""

from collections.abc import Collection, Mapping
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.broker_consumers import END
from cometmq.client.admin.groups import NEW_GROUP, check_known
from cometmq.client.admin.scope import AdminBase
from cometmq.client.arguments import timestamp, whole
from cometmq.client.errors import InvalidArgument, no_queue
from cometmq.client.message import check_group, check_named
from cometmq.client.settings import MessageModel
from cometmq.remoting import remarks
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.stats import ConsumeStats, OffsetPair, TopicOffset
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.errors import ConsumerNotOnline, ServerError, TopicNotExist
from cometmq.remoting.names import retry_topic
from cometmq.remoting.progress import difference, unread


class QueueLag(msgspec.Struct, frozen=True):
    """The progress of a group in one queue."""

    queue: MessageQueue
    max_offset: int
    committed_offset: int
    last_timestamp: int
    """When the message at the committed offset was stored; 0 if unknown."""
    min_offset: int = 0
    """The offset of the oldest message that still exists; 0 if it was not asked for."""

    @property
    def lag(self) -> int:
        """The number of messages that the group has yet to read; deleted ones do not count."""
        return unread(self.committed_offset, self.min_offset, self.max_offset)

    @property
    def difference(self) -> int:
        """The lag as RocketMQ's tools show it: with deleted messages, negative beyond the end."""
        return difference(self.committed_offset, self.max_offset)


def lags_in(
    stats: ConsumeStats, firsts: Mapping[MessageQueue, int] = MappingProxyType({})
) -> list[QueueLag]:
    """Return the lags, given a group's `consume_stats` and the first offset of each queue."""
    return [
        QueueLag(
            queue,
            pair.broker_offset,
            pair.consumer_offset,
            pair.last_timestamp,
            firsts.get(queue, 0),
        )
        for queue, pair in sorted(stats.offset_table.items())
    ]


async def stats_without_offsets(
    admin: AdminBase, group: str, known: Collection[MessageQueue]
) -> ConsumeStats:
    """Return a group's progress on the brokers that have no offset of it in one of its topics;
    `known` has the queues that `consume_stats` has reported.

    Messages can wait on brokers that the group has not reached yet, and in its retry topic.
    """
    found = ConsumeStats()
    masters = await admin.masters()
    for topic in sorted({queue.topic for queue in known} | {retry_topic(group)}):
        reported = {queue.broker_name for queue in known if queue.topic == topic}
        for _, stats in await admin.ask_each(
            [master for name, master in masters.items() if name not in reported],
            partial(_consume_stats, group, topic),
            skip=(TopicNotExist,),
        ):
            found.offset_table.update(stats.offset_table)
    return found


async def _consume_stats(group: str, topic: str, master: BrokerAdmin) -> ConsumeStats:
    return await master.consume_stats(group, topic)


async def _topic_stats(topic: str, master: BrokerAdmin) -> dict[MessageQueue, TopicOffset]:
    return (await master.topic_stats(topic)).offset_table


class Rollback(msgspec.Struct, frozen=True):
    """A change of a group's stored offset in one queue."""

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    """The offset before the change."""
    timestamp_offset: int
    """The offset at the requested timestamp."""
    rollback_offset: int
    """The offset after the change."""


class OffsetAdmin(AdminBase):
    """Reads the bounds of queues, and reads and changes the committed offsets of groups."""

    # -- progress of groups ------------------------------------------------------------------

    async def consume_stats(
        self, group: str, topic: str | None = None, *, is_missing_ok: bool = False
    ) -> ConsumeStats:
        """Return a group's progress and consumption rate across all masters.

        Unless `is_missing_ok` is set, raise InvalidArgument if no broker knows the group, and
        NoRoute if no broker has the topic; brokers would report nothing, or 0, for an unknown name.
        """
        check_named(group, "group")
        found = ConsumeStats()
        for _, stats in await self.ask_each(
            (await self.masters()).values(),
            lambda it: it.consume_stats(group, topic),
            skip=(TopicNotExist,),  # this broker has no offset of the group
        ):
            found.consume_tps += stats.consume_tps
            found.offset_table.update(stats.offset_table)
        if not is_missing_ok:
            await self._check_stats(found, group, topic)
        return found

    async def _check_stats(self, found: ConsumeStats, group: str, topic: str | None) -> None:
        if topic is not None and not found.offset_table:
            await self.route(topic)  # raises for a topic that does not exist
        if not any(pair.consumer_offset for pair in found.offset_table.values()):
            await check_known(self, group)

    async def lag(self, group: str, topic: str | None = None) -> list[QueueLag]:
        """Return a group's lag in each queue, including the queues of its retry topic.

        If a queue has no committed offset, its lag is counted from its oldest message. Raise
        InvalidArgument if no broker knows the group, and NoRoute if no broker has the topic.
        """
        stats = await self.consume_stats(group, topic)
        if topic is None:
            more = await stats_without_offsets(self, group, stats.offset_table)
            stats.offset_table.update(more.offset_table)
        firsts: dict[MessageQueue, int] = {}
        for name in sorted({queue.topic for queue in stats.offset_table}):
            for _, table in await self.ask_each(
                (await self.masters()).values(),
                partial(_topic_stats, name),
                skip=(TopicNotExist,),
            ):
                firsts |= {queue: it.min_offset for queue, it in table.items()}
        for queue in stats.offset_table.keys() - firsts.keys():  # the topic has fewer queues now
            master = (await self.masters())[queue.broker_name]
            firsts[queue] = await master.min_offset(queue.topic, queue.queue_id)
        return lags_in(stats, firsts)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message of a queue."""
        return await (await self._master_of(queue)).min_offset(queue.topic, queue.queue_id)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message of a queue will get."""
        return await (await self._master_of(queue)).max_offset(queue.topic, queue.queue_id)

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the message stored nearest to a timestamp.

        For a time after the newest message, this is the newest message's offset, not the end of the
        queue, which `max_offset` returns.
        """
        timestamp(timestamp_ms)
        master = await self._master_of(queue)
        return await master.search_offset(queue.topic, queue.queue_id, timestamp_ms)

    async def earliest_store_time(self, queue: MessageQueue) -> int | None:
        """Return when the oldest message of a queue was stored, in ms; None if it is empty."""
        master = await self._master_of(queue)
        return await master.earliest_store_time(queue.topic, queue.queue_id)

    async def committed_offset(self, group: str, queue: MessageQueue) -> int | None:
        """Return the committed offset of a group, or None if there is none."""
        check_named(group, "group")
        master = await self._master_of(queue)
        offset = await master.committed_offset(group, queue.topic, queue.queue_id)
        if offset:
            return offset
        # A broker also answers 0 for a young queue without an offset; its table tells which.
        table = (await master.consumer_offsets()).offset_table
        return table.get(f"{queue.topic}@{group}", {}).get(queue.queue_id)

    async def commit_offset(
        self, group: str, queue: MessageQueue, offset: int, *, is_forced: bool = False
    ) -> None:
        """Set the offset of a group; connected members do not notice, and will overwrite it.

        Raise InvalidArgument if the topic has no such queue, or if the offset is not between the
        queue's `min_offset` and `max_offset`, unless `is_forced` is set.
        """
        check_group(group)
        whole(offset, "offset", low=0)
        master = await self._master_of(queue, may_be_missing=True)
        if not is_forced:
            await self._check_offset(master, queue, offset)
        await master.commit_offset(group, queue.topic, queue.queue_id, offset)

    async def _check_offset(self, master: BrokerAdmin, queue: MessageQueue, offset: int) -> None:
        """Raise InvalidArgument for an offset outside the queue, because consumers would skip
        messages.

        A broker accepts any offset for any queue number, and the group continues there with its
        next pull.
        """
        topic, queue_id = queue.topic, queue.queue_id
        queues = [it for it in await self.queues(topic) if it.broker_name == queue.broker_name]
        if queue not in queues:
            raise no_queue(queue, len(queues), " to read")
        low = await master.min_offset(topic, queue_id)
        high = await master.max_offset(topic, queue_id)  # read last, because it grows
        if not low <= offset <= high:
            raise InvalidArgument(
                f"the offset {offset} is outside queue {queue_id} of {topic} at"
                f" {queue.broker_name}: give an offset from {low} (the first message) to {high}"
                " (the end), or is_forced=True to set it anyway"
            )

    # -- moving groups ------------------------------------------------------------------------

    async def reset_offsets(
        self,
        group: str,
        topic: str,
        timestamp_ms: int,
        *,
        is_forced: bool = True,
        is_new_group: bool = False,
    ) -> dict[MessageQueue, int]:
        """Make a group continue from a timestamp, or from the queues' ends if it is END; return the
        offsets.

        In each queue, the group continues with the message stored nearest to the timestamp. For the
        current time, this is the newest message, which is then redelivered; END skips it too, and 0
        selects the oldest message. Connected members seek; if there are none, the stored offsets
        change. A queue moves forward only if `is_forced` is set. Raise InvalidArgument, before any
        change, if no broker knows the group, unless `is_new_group` is set.
        """
        timestamp(timestamp_ms, low=END)
        masters = await self._masters_to_move(group, topic, is_new_group=is_new_group)
        found: dict[MessageQueue, int] = {}
        move = _Move(group, topic, timestamp_ms, is_forced)

        async def reset(broker: BrokerAdmin) -> None:
            try:
                await broker.consumer_connections(group)
            except ConsumerNotOnline:
                moved = await move.of_offsets(broker)
                found.update({row.queue: row.rollback_offset for row in moved})
            else:
                found.update(await move.of_members(broker))

        await self.change_each(masters, reset, f"move the group {group} in {topic}")
        return dict(sorted(found.items()))

    async def reset_members(
        self, group: str, topic: str, timestamp_ms: int, *, is_forced: bool = True
    ) -> dict[MessageQueue, int]:
        """Make the connected members of a group continue from a timestamp, or from the queues' ends
        if it is END.

        Raise ConsumerNotOnline if there are none. The stored offsets change when the members
        commit.
        """
        timestamp(timestamp_ms, low=END)
        found: dict[MessageQueue, int] = {}
        move = _Move(group, topic, timestamp_ms, is_forced)
        for broker in await self.masters_to_change_of(topic):
            found.update(await move.of_members(broker))
        return dict(sorted(found.items()))

    async def roll_back(
        self,
        group: str,
        topic: str,
        timestamp_ms: int,
        *,
        is_forced: bool = True,
        is_new_group: bool = False,
    ) -> list[Rollback]:
        """Set the stored offsets of a group to a timestamp, or to the queues' ends if it is END.

        Connected members do not notice, and will overwrite them. Raise InvalidArgument, before any
        change, if no broker knows the group, unless `is_new_group` is set.
        """
        timestamp(timestamp_ms, low=END)
        moved: list[Rollback] = []
        move = _Move(group, topic, timestamp_ms, is_forced)
        for broker in await self._masters_to_move(group, topic, is_new_group=is_new_group):
            moved += await move.of_offsets(broker)
        return moved

    async def clone_offsets(
        self, source: str, destination: str, topic: str, *, is_new_group: bool = False
    ) -> dict[MessageQueue, int]:
        """Copy the stored offsets of one group in a topic to another group; return them.

        Queues without a stored offset are left unchanged. Raise InvalidArgument if the source has
        no stored offset in the topic. Unless `is_new_group` is set, also raise it if no broker
        knows the destination.
        """
        if source == destination:
            raise InvalidArgument(f"{source} cannot be cloned to itself")
        cloned: dict[MessageQueue, int] = {}
        masters = await self._masters_to_move(destination, topic, is_new_group=is_new_group)

        async def clone(broker: BrokerAdmin) -> None:
            table = (await broker.consumer_offsets()).offset_table
            for queue_id, offset in sorted(table.get(f"{topic}@{source}", {}).items()):
                await broker.commit_offset(destination, topic, queue_id, offset)
                cloned[MessageQueue(topic, broker.name, queue_id)] = offset

        await self.change_each(masters, clone, f"move the group {destination} in {topic}")
        if not cloned:
            raise InvalidArgument(
                f"the group {source} has no stored offset in the topic {topic}: nothing was cloned"
            )
        return cloned

    async def _masters_to_move(
        self, group: str, topic: str, *, is_new_group: bool
    ) -> list[BrokerAdmin]:
        """Return the masters of a topic; raise if one is missing, or if the group is unknown.

        A new group is created on masters without settings of it, because their lists of groups
        leave out groups that have only offsets.
        """
        masters = await self.masters_to_change_of(topic)
        if not is_new_group:
            await check_known(self, group, NEW_GROUP)
            return masters
        check_group(group)
        for broker, groups in await self.ask_all(masters, lambda it: it.groups()):
            if group not in groups:
                await broker.create_group(SubscriptionGroupConfig(group_name=group))
        return masters


def unknown_offsets(group: str) -> InvalidArgument:
    """Return the error for a broadcasting group that should move backwards only."""
    return InvalidArgument(
        f"the members of {group} keep their own offsets (BROADCASTING), so brokers cannot tell"
        " which of them would move forward: move all, or none"
    )


class _Move(NamedTuple):
    """A change of a group's offsets in a topic, at one broker after the other."""

    group: str
    topic: str
    timestamp_ms: int
    is_forced: bool

    async def of_members(self, broker: BrokerAdmin) -> dict[MessageQueue, int]:
        """Reset connected members; a queue without a stored offset counts as not consumed.

        Java brokers refuse the request if any queue has no stored offset, as is the case in a
        group's first seconds or after queues were added. For such queues, the new offset is stored
        first.

        The queues of a broadcasting group move only if `is_forced`: brokers do not know which of
        them would move forward.
        """
        group, topic, timestamp_ms, is_forced = self
        if not is_forced:
            members = await broker.consumer_connections(group)
            if members.message_model == MessageModel.BROADCASTING:
                raise unknown_offsets(group)
        try:
            return await broker.reset_offsets(topic, group, timestamp_ms, is_forced=is_forced)
        except ServerError as error:
            if error.remark != remarks.reset_offset_no_group(group):
                raise
        await broker.consumer_connections(group)  # raises for an offline group, before any change
        stored = (await broker.consumer_offsets()).offset_table.get(f"{topic}@{group}", {})
        for queue, bounds in sorted((await broker.topic_stats(topic)).offset_table.items()):
            if queue.queue_id not in stored:
                await self._move(broker, queue, OffsetPair(bounds.max_offset, bounds.min_offset))
        return await broker.reset_offsets(topic, group, timestamp_ms, is_forced=is_forced)

    async def of_offsets(self, broker: BrokerAdmin) -> list[Rollback]:
        """Change the stored offsets; without any in the topic, each queue's first one counts."""
        table = (await broker.consume_stats(self.group)).offset_table
        known = {queue: pair for queue, pair in table.items() if queue.topic == self.topic} or {
            queue: OffsetPair(broker_offset=found.max_offset, consumer_offset=found.min_offset)
            for queue, found in (await broker.topic_stats(self.topic)).offset_table.items()
        }
        return [await self._move(broker, queue, pair) for queue, pair in sorted(known.items())]

    async def _move(self, broker: BrokerAdmin, queue: MessageQueue, pair: OffsetPair) -> Rollback:
        topic, queue_id = queue.topic, queue.queue_id
        if self.timestamp_ms == END:
            wanted = await broker.max_offset(topic, queue_id)
        else:
            wanted = await broker.search_offset(topic, queue_id, self.timestamp_ms)
        before = pair.consumer_offset
        after = wanted if self.is_forced or wanted <= before else before
        if after == wanted:
            await broker.commit_offset(self.group, topic, queue_id, wanted)
        return Rollback(queue, pair.broker_offset, before, wanted, after)
