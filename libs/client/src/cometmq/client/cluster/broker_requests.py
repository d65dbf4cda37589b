# SPDX-License-Identifier: Apache-2.0
"""Requests that brokers send to clients: rebalance, reset offsets, report state."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from cometmq.client.errors import InvalidArgument
from cometmq.client.request_reply import PendingReplies
from cometmq.client.turns import decode_answer
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.heartbeat import ConsumerData
from cometmq.remoting.bodies.offsets import ConsumerStatus, QueueOffsetTable
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.running_info import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from cometmq.remoting.command import OK, Call, Reply
from cometmq.remoting.commands.callbacks import (
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    GetConsumerStatusFromClient,
    NotifyConsumerIdsChanged,
    ResetConsumerClientOffset,
)
from cometmq.remoting.commands.transactions import CheckTransactionState
from cometmq.remoting.errors import CorruptRecord, RemoteProtocolError, ServerError
from cometmq.remoting.message.properties import PropertyKey
from cometmq.remoting.message.record import MessageRecord, decode_record


class ConsumerMember(Protocol):
    """A consumer, as seen by its client instance and the brokers."""

    @property
    def topics(self) -> Collection[str]:
        """The topics whose routes the consumer needs."""

    def heartbeat_data(self) -> ConsumerData:
        """Return the group and its subscriptions for heartbeats."""

    def wake(self) -> None:
        """Rebalance now, because members or routes have changed."""

    async def reset_offsets(
        self, topic: str, offsets: Mapping[MessageQueue, int], *, sender: object = None
    ) -> None:
        """Continue consuming a topic from these offsets; `sender` is the broker's connection."""

    def consumed_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """Return the consumed offset of each owned queue of a topic."""

    def running_info(self, *, with_stacks: bool = False) -> ConsumerRunningInfo:
        """Return the state of the consumer for administrators."""

    async def consume_directly(
        self, record: MessageRecord, broker_name: str
    ) -> ConsumeMessageDirectlyResult:
        """Call the listener with one message now, bypassing the queues."""


class TransactionMember(Protocol):
    """A transactional producer, as seen by its client instance."""

    def check(self, header: CheckTransactionState, record: MessageRecord, address: str) -> None:
        """Determine the state of a half message's transaction; tell the broker at `address`."""


class LocalMembers:
    """The producers and consumers of one client instance, which serve the requests of brokers."""

    def __init__(self) -> None:
        self.producers: set[str] = set()
        self.consumers: dict[str, ConsumerMember] = {}
        self.transaction_producers: dict[str, TransactionMember] = {}
        self.replies = PendingReplies()

    def __len__(self) -> int:
        return len(self.producers) + len(self.consumers)

    def groups(self) -> list[str]:
        return sorted(self.producers | self.consumers.keys())

    def topics(self) -> set[str]:
        return {topic for consumer in self.consumers.values() for topic in consumer.topics}

    def add_producer(self, group: str) -> None:
        if group in self.producers:
            raise InvalidArgument(
                f"this client already has a producer of the group {group}: use that one, or give "
                "one of them another group or instance_name"
            )
        self.producers.add(group)

    def add_consumer(self, group: str, consumer: ConsumerMember) -> None:
        """Include the group in heartbeats, and forward broker requests to the consumer."""
        if group in self.consumers:
            raise InvalidArgument(
                f"this client already has a consumer of the group {group}: use that one, or give "
                "one of them another group or instance_name"
            )
        self.consumers[group] = consumer

    def wake(self, topic: str | None = None) -> None:
        for consumer in self.consumers.values():
            if topic is None or topic in consumer.topics:
                consumer.wake()


def notify_consumer_ids_changed(
    members: LocalMembers, call: Call[NotifyConsumerIdsChanged]
) -> Reply:
    consumer = members.consumers.get(call.header.consumer_group)
    if consumer is not None:
        consumer.wake()
    return OK


async def reset_consumer_client_offset(
    members: LocalMembers, call: Call[ResetConsumerClientOffset]
) -> Reply:
    consumer = _member(members, call.header.group)
    with _refusing("QueueOffsetTable"):
        table = await decode_answer(QueueOffsetTable, call.body)
    await consumer.reset_offsets(call.header.topic, table.offset_table, sender=call.peer)
    return OK


def get_consumer_status_from_client(
    members: LocalMembers, call: Call[GetConsumerStatusFromClient]
) -> Reply:
    offsets = _member(members, call.header.group).consumed_offsets(call.header.topic)
    return Reply(body=encode_json(ConsumerStatus(message_queue_table=offsets)))


def get_consumer_running_info(members: LocalMembers, call: Call[GetConsumerRunningInfo]) -> Reply:
    consumer = _member(members, call.header.consumer_group)
    info = consumer.running_info(with_stacks=call.header.jstack_enable)
    return Reply(body=encode_json(info))


async def consume_message_directly(
    members: LocalMembers, call: Call[ConsumeMessageDirectly]
) -> Reply:
    consumer = _member(members, call.header.consumer_group)
    with _refusing("message"):
        record = decode_record(call.body)
    result = await consumer.consume_directly(record, call.header.broker_name or "")
    return Reply(body=encode_json(result))


def check_transaction_state(members: LocalMembers, call: Call[CheckTransactionState]) -> Reply:
    """Start a transaction check; the producer reports the result in a separate request."""
    with _refusing("message"):
        record = decode_record(call.body)
    group = record.properties.get(PropertyKey.PRODUCER_GROUP, "")
    producer = members.transaction_producers.get(group)
    if producer is None:
        raise ServerError(f"The transactional producer group <{group}> not exist in this client")
    producer.check(call.header, record, call.peer.address)
    return OK


@contextmanager
def _refusing(kind: str) -> Iterator[None]:
    """Turn an undecodable body into an error answer, because the broker is at fault."""
    try:
        yield
    except (CorruptRecord, RemoteProtocolError) as error:
        raise ServerError(f"the body is not a valid {kind}: {error}") from error


def _member(members: LocalMembers, group: str) -> ConsumerMember:
    consumer = members.consumers.get(group)
    if consumer is None:
        raise ServerError(f"The Consumer Group <{group}> not exist in this consumer")
    return consumer
