# SPDX-License-Identifier: Apache-2.0
"""Requests to one broker, and those about consumer groups, their members and offsets."""

from collections.abc import Callable, Collection
from typing import Final, Self, TypeVar

import msgspec

from cometmq.client.arguments import checked_header, encoded, timestamp, whole, whole_or
from cometmq.client.cluster.instance import ClientInstance
from cometmq.client.cluster.namesrv import answered, refuse_namesrv
from cometmq.client.message import check_group
from cometmq.client.transfer.pulled import check_offset, fields_of
from cometmq.client.turns import decode_answer
from cometmq.remoting.bodies.connections import ConsumerConnections, ProducerConnections
from cometmq.remoting.bodies.offsets import (
    ConsumerOffsetTable,
    ConsumerStatus,
    CorrectionOffsets,
    DelayOffsetTable,
    QueueOffsetTable,
)
from cometmq.remoting.bodies.queues import ConsumerIdList, GroupList, MessageQueue
from cometmq.remoting.bodies.running_info import ConsumerRunningInfo
from cometmq.remoting.bodies.stats import ConsumeStats, ConsumeTimeSpans, QueueTimeSpan
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig, SubscriptionGroupTable
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Response
from cometmq.remoting.commands import admin, callbacks, clients, offsets, topics
from cometmq.remoting.errors import RequestCodeNotSupported
from cometmq.remoting.transport.client import RemotingClient

T = TypeVar("T")

SUCCESS: Final = (ResponseCode.SUCCESS,)

OnDamage = Callable[[str, str], None]
"""Called with `message.damaged` or `messages.missing`, and a text that names the messages."""


def _ignore(_event: str, _text: str) -> None:
    """Ignore the damage."""


class BrokerCalls:
    """Sends requests to one broker; a refusal raises the CommandError for its code."""

    def __init__(
        self,
        remoting: RemotingClient,
        address: str,
        *,
        timeout_ms: int,
        name: str = "",
        on_damage: OnDamage = _ignore,
    ) -> None:
        """Send requests to `address`; `name` identifies the broker in error messages.

        `on_damage` is called if some messages in an answer are damaged but the others can be used.
        """
        self._remoting = remoting
        self._timeout_ms = timeout_ms
        self.address = address
        self.name = name
        self._on_damage = on_damage

    @classmethod
    def of(
        cls, instance: ClientInstance, broker_name: str, *, timeout_ms: int | None = None
    ) -> Self:
        """Return the master of a broker name or, while there is none, a slave."""
        _, address = instance.routes.brokers.any_of(broker_name)
        timeout_ms = timeout_ms or instance.options.api_timeout_ms
        address = instance.channel(address)
        return cls(instance.remoting, address, timeout_ms=timeout_ms, name=broker_name)

    async def invoke(
        self,
        code: Code,
        header: msgspec.Struct | None = None,
        body: bytes = b"",
        *,
        ok: Collection[int] = SUCCESS,
        timeout_ms: int | None = None,
    ) -> Response:
        """Send any request; raise InvalidArgument for a header or timeout of the wrong type."""
        header = None if header is None else checked_header(header)
        timeout_ms = whole_or(self._timeout_ms, timeout_ms, "timeout_ms")
        try:
            return await self._remoting.invoke(
                self.address, code, header, body, timeout_ms=timeout_ms, ok=ok
            )
        except RequestCodeNotSupported:
            await refuse_namesrv(self._remoting, self.address, timeout_ms)
            raise

    async def _json(
        self,
        type_: type[T],
        code: Code,
        header: msgspec.Struct | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> T:
        response = await self.invoke(code, header, timeout_ms=timeout_ms)
        return await answered(type_, response.body, f"broker {self.name or self.address}")


PROXIED_TIMEOUT_MS: Final = 15_000
"""Timeout of requests that a broker forwards to a client; brokers give up after 10 s."""
_QueueHeader = offsets.GetMinOffset | offsets.GetMaxOffset | offsets.SearchOffsetByTimestamp
_NO_OFFSET: Final = -1
"""Java's clients take this number for a group without an offset."""
END: Final = -1
"""The timestamp that stands for the end of each queue, in `reset_offsets` and `roll_back`."""


class BrokerConsumers(BrokerCalls):
    """Manages the consumer groups of one broker; each method sends one request code."""

    async def groups(self) -> dict[str, SubscriptionGroupConfig]:
        """Return all consumer groups of the broker that have a name."""
        table = await self._json(SubscriptionGroupTable, Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        table.subscription_group_table.pop("", None)  # no request can name it
        return table.subscription_group_table

    async def create_group(self, config: SubscriptionGroupConfig) -> None:
        """Create or change a consumer group."""
        body = encoded(config, "the group's configuration")
        await self.invoke(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)

    async def delete_group(self, group: str, *, remove_offsets: bool = False) -> None:
        """Delete a consumer group."""
        header = topics.DeleteSubscriptiongroup(group, remove_offsets, remove_offsets or None)
        await self.invoke(Code.DELETE_SUBSCRIPTIONGROUP, header)

    async def consumer_ids(self, group: str) -> list[str]:
        """Return the client ids of the connected members of a group."""
        header = clients.GetConsumerListByGroup(group)
        table = await self._json(ConsumerIdList, Code.GET_CONSUMER_LIST_BY_GROUP, header)
        return table.consumer_id_list

    async def consumer_connections(self, group: str) -> ConsumerConnections:
        """Return the connected members of a group and their subscriptions."""
        header = admin.GetConsumerConnectionList(group)
        return await self._json(ConsumerConnections, Code.GET_CONSUMER_CONNECTION_LIST, header)

    async def producer_connections(self, group: str) -> ProducerConnections:
        """Return the connected members of a producer group."""
        header = admin.GetProducerConnectionList(group)
        return await self._json(ProducerConnections, Code.GET_PRODUCER_CONNECTION_LIST, header)

    async def consume_stats(self, group: str, topic: str | None = None) -> ConsumeStats:
        """Return the progress of a group in each queue of one topic, or of all topics."""
        header = admin.GetConsumeStats(group, topic)
        return await self._json(ConsumeStats, Code.GET_CONSUME_STATS, header)

    async def groups_of(self, topic: str) -> list[str]:
        """Return the groups that consume a topic or have an offset in it."""
        header = admin.QueryTopicConsumeByWho(topic)
        found = (await self._json(GroupList, Code.QUERY_TOPIC_CONSUME_BY_WHO, header)).group_list
        return [it for it in found if it]

    async def time_spans(self, topic: str, group: str) -> list[QueueTimeSpan]:
        """Return when the first, last and last-consumed messages of each queue were stored."""
        header = admin.QueryConsumeTimeSpan(topic, group)
        spans = await self._json(ConsumeTimeSpans, Code.QUERY_CONSUME_TIME_SPAN, header)
        return spans.consume_time_span_set

    async def running_info(
        self,
        group: str,
        client_id: str,
        *,
        with_stacks: bool = False,
        timeout_ms: int = PROXIED_TIMEOUT_MS,
    ) -> ConsumerRunningInfo:
        """Return the running info that a connected consumer reports."""
        header = callbacks.GetConsumerRunningInfo(group, client_id, with_stacks)
        return await self._json(
            ConsumerRunningInfo,
            Code.GET_CONSUMER_RUNNING_INFO,
            header,
            timeout_ms=timeout_ms,
        )

    async def member_offsets(
        self, topic: str, group: str, *, client_id: str | None = None
    ) -> dict[str, dict[MessageQueue, int]]:
        """Ask the connected members of a group for their offsets; return them by client id."""
        header = admin.InvokeBrokerToGetConsumerStatus(topic, group, client_id)
        code = Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        found = await self._json(ConsumerStatus, code, header, timeout_ms=PROXIED_TIMEOUT_MS)
        return found.consumer_table

    # -- offsets ------------------------------------------------------------------------------

    async def committed_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the committed offset of a group in a queue, or None if there is none."""
        header = offsets.QueryConsumerOffset(group, topic, queue_id)
        ok = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        response = await self.invoke(Code.QUERY_CONSUMER_OFFSET, header, ok=ok)
        if response.code:
            return None
        offset = fields_of(response, offsets.OffsetReply).offset
        if offset == _NO_OFFSET:
            return None
        what = f"the committed offset of {group} in {topic}, queue {queue_id},"
        return check_offset(self.name or self.address, what, offset)

    async def commit_offset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the committed offset of a group in a queue; it may be lower than the current one, but
        not negative.

        Raise InvalidArgument for an invalid group name, because brokers accept any name.
        """
        check_group(group)
        header = offsets.UpdateConsumerOffset(group, topic, queue_id, whole(offset, "offset"))
        await self.invoke(Code.UPDATE_CONSUMER_OFFSET, header)

    async def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of the oldest message of a queue."""
        header = offsets.GetMinOffset(topic, queue_id)
        return await self._bound(Code.GET_MIN_OFFSET, header)

    async def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset that the next message of a queue will get."""
        header = offsets.GetMaxOffset(topic, queue_id)
        return await self._bound(Code.GET_MAX_OFFSET, header)

    async def search_offset(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the offset of the message stored nearest to a timestamp."""
        header = offsets.SearchOffsetByTimestamp(topic, queue_id, timestamp(timestamp_ms))
        return await self._bound(Code.SEARCH_OFFSET_BY_TIMESTAMP, header)

    async def first_offset_since(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after a time, or the queue's end.

        RocketMQ 4.9 returns the offset of the message stored nearest to the time.
        """
        when = timestamp(timestamp_ms)
        header = offsets.SearchOffsetByTimestamp(topic, queue_id, when, "lower")
        return await self._bound(Code.SEARCH_OFFSET_BY_TIMESTAMP, header)

    async def last_offset_until(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the offset of the last message stored at or before a time, or the first offset.

        If the clock was set back, later messages may have been stored before messages that are
        nearer. RocketMQ 4.9 returns the offset of the message stored nearest to the time.
        """
        when = timestamp(timestamp_ms)
        header = offsets.SearchOffsetByTimestamp(topic, queue_id, when, "upper")
        return await self._bound(Code.SEARCH_OFFSET_BY_TIMESTAMP, header)

    async def earliest_store_time(self, topic: str, queue_id: int) -> int | None:
        """Return when the oldest message of a queue was stored, or None for an empty queue."""
        header = offsets.GetEarliestMsgStoretime(topic, queue_id)
        response = await self.invoke(Code.GET_EARLIEST_MSG_STORETIME, header)
        time_ms = fields_of(response, offsets.GetEarliestMsgStoretimeReply).timestamp
        return None if time_ms < 0 else time_ms

    async def consumer_offsets(self) -> ConsumerOffsetTable:
        """Return all committed offsets of the broker."""
        return await self._json(ConsumerOffsetTable, Code.GET_ALL_CONSUMER_OFFSET)

    async def delay_offsets(self) -> DelayOffsetTable:
        """Return the delivery progress of each delay level."""
        return await self._json(DelayOffsetTable, Code.GET_ALL_DELAY_OFFSET)

    async def reset_offsets(
        self, topic: str, group: str, timestamp_ms: int, *, is_forced: bool = True
    ) -> dict[MessageQueue, int]:
        """Make the connected members of a group continue from a timestamp, or from the queues' ends
        if it is END.

        A queue moves forward only if `is_forced` is set.
        """
        timestamp(timestamp_ms, low=END)
        header = admin.InvokeBrokerToResetOffset(topic, group, timestamp_ms, is_forced)
        response = await self.invoke(Code.INVOKE_BROKER_TO_RESET_OFFSET, header)
        if not response.body:
            return {}
        return (await decode_answer(QueueOffsetTable, response.body)).offset_table

    async def clone_offsets(
        self, source: str, destination: str, *, topic: str | None = None, is_offline: bool = False
    ) -> None:
        """Copy the offsets of one group to another, in one topic or in all topics."""
        header = admin.CloneGroupOffset(source, destination, topic, is_offline)
        await self.invoke(Code.CLONE_GROUP_OFFSET, header)

    async def correction_offsets(
        self, topic: str, group: str, *, other_groups: str | None = None
    ) -> dict[int, int]:
        """Return the lowest offset of `other_groups` per queue id; `group` can be moved to it."""
        header = admin.QueryCorrectionOffset(group, topic, other_groups)
        found = await self._json(CorrectionOffsets, Code.QUERY_CORRECTION_OFFSET, header)
        return found.correction_offsets

    async def _bound(self, code: Code, header: _QueueHeader) -> int:
        """Query an offset of a queue; raise RemoteProtocolError if it is out of range."""
        what = f"an offset of {header.topic}, queue {header.queue_id},"
        offset = fields_of(await self.invoke(code, header), offsets.OffsetReply).offset
        return check_offset(self.name or self.address, what, offset)
