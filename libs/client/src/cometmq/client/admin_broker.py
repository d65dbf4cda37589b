# SPDX-License-Identifier: Apache-2.0
"""Administration of one broker: one method per request code, named after what it does."""

from collections.abc import Collection, Mapping
from typing import Final, TypeVar

import msgspec

from cometmq.client.message import MessageExt, received
from cometmq.remoting.bodies.connections import ConsumerConnections, ProducerConnections
from cometmq.remoting.bodies.dialect import decode_json, encode_json
from cometmq.remoting.bodies.kv import KVTable
from cometmq.remoting.bodies.offsets import ConsumerOffsetTable, DelayOffsetTable
from cometmq.remoting.bodies.queues import ConsumerIdList
from cometmq.remoting.bodies.stats import ConsumeStats, TopicStats
from cometmq.remoting.bodies.topic_config import (
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
)
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Response
from cometmq.remoting.commands import admin, clients, groups, offsets, queries, topics
from cometmq.remoting.errors import CorruptRecord, RemoteProtocolError
from cometmq.remoting.message.record import decode_records
from cometmq.remoting.transport.client import RemotingClient

T = TypeVar("T")

DEFAULT_TOPIC: Final = "TBW102"
KEY_COUNT_MAX: Final = 64
FOREVER_MS: Final = (1 << 63) - 1
_SUCCESS: Final = (ResponseCode.SUCCESS,)


class BrokerAdmin:
    """Asks and changes one broker; every refusal is raised as the CommandError of its code."""

    def __init__(
        self, remoting: RemotingClient, address: str, *, timeout_ms: int, name: str = ""
    ) -> None:
        """Speak to `address`; `name` is what messages say about their broker."""
        self._remoting = remoting
        self._timeout_ms = timeout_ms
        self.address = address
        self.name = name

    async def invoke(
        self,
        code: Code,
        header: msgspec.Struct | None = None,
        body: bytes = b"",
        *,
        ok: Collection[int] = _SUCCESS,
    ) -> Response:
        """Send any request of the catalogue."""
        return await self._remoting.invoke(
            self.address, code, header, body, timeout_ms=self._timeout_ms, ok=ok
        )

    async def _json(self, type_: type[T], code: Code, header: msgspec.Struct | None = None) -> T:
        return decode_json(type_, (await self.invoke(code, header)).body)

    # -- topics -------------------------------------------------------------------------------

    async def topics(self) -> dict[str, TopicConfig]:
        """Return all topics of the broker."""
        return (await self._json(TopicConfigTable, Code.GET_ALL_TOPIC_CONFIG)).topic_config_table

    async def create_topic(self, config: TopicConfig) -> None:
        """Create a topic, or change it."""
        header = topics.UpdateAndCreateTopic(
            topic=config.topic_name,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
            default_topic=DEFAULT_TOPIC,
            topic_filter_type=config.topic_filter_type,
            topic_sys_flag=config.topic_sys_flag,
            order=config.order,
        )
        await self.invoke(Code.UPDATE_AND_CREATE_TOPIC, header)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic with its messages."""
        await self.invoke(Code.DELETE_TOPIC_IN_BROKER, topics.DeleteTopicInBroker(topic))

    async def topic_stats(self, topic: str) -> TopicStats:
        """Return begin, end and last store time of each queue."""
        header = topics.GetTopicStatsInfo(topic)
        return await self._json(TopicStats, Code.GET_TOPIC_STATS_INFO, header)

    # -- groups -------------------------------------------------------------------------------

    async def groups(self) -> dict[str, SubscriptionGroupConfig]:
        """Return all consumer groups of the broker."""
        table = await self._json(SubscriptionGroupTable, Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        return table.subscription_group_table

    async def create_group(self, config: SubscriptionGroupConfig) -> None:
        """Create a consumer group, or change it."""
        body = encode_json(config)
        await self.invoke(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)

    async def delete_group(self, group: str, *, remove_offsets: bool = False) -> None:
        """Delete a consumer group."""
        header = groups.DeleteSubscriptiongroup(group, remove_offsets)
        await self.invoke(Code.DELETE_SUBSCRIPTIONGROUP, header)

    async def consumer_ids(self, group: str) -> list[str]:
        """Return the client ids of the connected members of a group."""
        header = clients.GetConsumerListByGroup(group)
        table = await self._json(ConsumerIdList, Code.GET_CONSUMER_LIST_BY_GROUP, header)
        return table.consumer_id_list

    async def consumer_connections(self, group: str) -> ConsumerConnections:
        """Return the connected members of a group, and what they subscribe to."""
        header = admin.GetConsumerConnectionList(group)
        return await self._json(ConsumerConnections, Code.GET_CONSUMER_CONNECTION_LIST, header)

    async def producer_connections(self, group: str) -> ProducerConnections:
        """Return the connected members of a producer group."""
        header = admin.GetProducerConnectionList(group)
        return await self._json(ProducerConnections, Code.GET_PRODUCER_CONNECTION_LIST, header)

    async def consume_stats(self, group: str, topic: str | None = None) -> ConsumeStats:
        """Return how far a group is in each queue, in one topic or in all."""
        header = admin.GetConsumeStats(group, topic)
        return await self._json(ConsumeStats, Code.GET_CONSUME_STATS, header)

    # -- offsets ------------------------------------------------------------------------------

    async def committed_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the committed offset of a group in a queue; None if there is none."""
        header = offsets.QueryConsumerOffset(group, topic, queue_id)
        ok = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        response = await self.invoke(Code.QUERY_CONSUMER_OFFSET, header, ok=ok)
        return None if response.code else _offset(response)

    async def commit_offset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the offset of a group in a queue, forwards or backwards."""
        header = offsets.UpdateConsumerOffset(group, topic, queue_id, offset)
        await self.invoke(Code.UPDATE_CONSUMER_OFFSET, header)

    async def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of the oldest message of a queue."""
        header = offsets.GetMinOffset(topic, queue_id)
        return _offset(await self.invoke(Code.GET_MIN_OFFSET, header))

    async def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset that the next message of a queue will get."""
        header = offsets.GetMaxOffset(topic, queue_id)
        return _offset(await self.invoke(Code.GET_MAX_OFFSET, header))

    async def search_offset(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the offset of the message stored nearest to a moment."""
        header = offsets.SearchOffsetByTimestamp(topic, queue_id, timestamp_ms)
        return _offset(await self.invoke(Code.SEARCH_OFFSET_BY_TIMESTAMP, header))

    async def earliest_store_time(self, topic: str, queue_id: int) -> int | None:
        """Return when the oldest message of a queue was stored; None without messages."""
        header = offsets.GetEarliestMsgStoretime(topic, queue_id)
        reply = (await self.invoke(Code.GET_EARLIEST_MSG_STORETIME, header)).header
        if not isinstance(reply, offsets.GetEarliestMsgStoretimeReply):
            raise RemoteProtocolError("an answer about a time lacks it")
        return None if reply.timestamp < 0 else reply.timestamp

    async def consumer_offsets(self) -> ConsumerOffsetTable:
        """Return all committed offsets of the broker."""
        return await self._json(ConsumerOffsetTable, Code.GET_ALL_CONSUMER_OFFSET)

    async def delay_offsets(self) -> DelayOffsetTable:
        """Return how far the delivery of each delay level is."""
        return await self._json(DelayOffsetTable, Code.GET_ALL_DELAY_OFFSET)

    # -- messages -----------------------------------------------------------------------------

    async def message_at(self, physical_offset: int, *, topic: str | None = None) -> MessageExt:
        """Return the message at a commit log offset."""
        header = queries.ViewMessageById(physical_offset, topic)
        found = self._messages(await self.invoke(Code.VIEW_MESSAGE_BY_ID, header))
        if not found:
            raise RemoteProtocolError("an answer about a message lacks it")
        return found[0]

    async def query(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = KEY_COUNT_MAX,
        begin_ms: int = 0,
        end_ms: int = FOREVER_MS,
        is_unique_key: bool = False,
    ) -> list[MessageExt]:
        """Return messages of a topic by key; brokers search by a hash, so others are left out."""
        header = queries.QueryMessage(
            topic, key, count_max, begin_ms, end_ms, True if is_unique_key else None
        )
        ok = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        response = await self.invoke(Code.QUERY_MESSAGE, header, ok=ok)
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return []
        messages = self._messages(response)
        if is_unique_key:
            return [message for message in messages if message.message_id == key]
        return [m for m in messages if key in m.keys and m.topic == topic]

    def _messages(self, response: Response) -> list[MessageExt]:
        try:
            records = decode_records(response.body)
            return [received(record, self.name) for record in records]
        except CorruptRecord as error:
            raise RemoteProtocolError(f"an answered message is broken: {error}") from error

    # -- the broker itself --------------------------------------------------------------------

    async def runtime_info(self) -> dict[str, str]:
        """Return figures of the running broker by name."""
        return (await self._json(KVTable, Code.GET_BROKER_RUNTIME_INFO)).table

    async def config(self) -> dict[str, str]:
        """Return the broker's settings."""
        return parse_settings((await self.invoke(Code.GET_BROKER_CONFIG)).body)

    async def update_config(self, changes: Mapping[str, str]) -> None:
        """Change settings of the running broker."""
        await self.invoke(Code.UPDATE_BROKER_CONFIG, None, render_settings(changes))


def parse_settings(data: bytes) -> dict[str, str]:
    """Return the settings of lines `key=value`."""
    lines = [line.strip() for line in data.decode("utf-8", "replace").splitlines()]
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    return {key.strip(): value.strip() for key, equals, value in pairs if equals}


def render_settings(settings: Mapping[str, str]) -> bytes:
    """Return settings as lines `key=value`; Java reads backslashes as escapes."""
    lines = [f"{key}={value}" for key, value in settings.items()]
    return ("\n".join(lines) + "\n").replace("\\", "\\\\").encode()


def _offset(response: Response) -> int:
    if not isinstance(response.header, offsets.OffsetReply):
        raise RemoteProtocolError("an answer about an offset lacks it")
    return response.header.offset
