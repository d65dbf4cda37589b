# SPDX-License-Identifier: Apache-2.0
"""Requests that brokers send to clients: rebalance, reset offsets, report state."""

from collections.abc import Collection, Mapping
from typing import Protocol

from cometmq.remoting.bodies.dialect import decode_json, encode_json
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
from cometmq.remoting.errors import ServerError
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

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue consuming a topic from these offsets."""

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
        """Determine the state of a half message's transaction, and report it to the broker at
        `address`.
        """


class Members(Protocol):
    """Looks up producers and consumers by group."""

    @property
    def transaction_producers(self) -> Mapping[str, TransactionMember]:
        """Return the transactional producers of this client."""

    @property
    def consumers(self) -> Mapping[str, ConsumerMember]:
        """Return the consumers of this client, by consumer group."""


def notify_consumer_ids_changed(members: Members, call: Call[NotifyConsumerIdsChanged]) -> Reply:
    """Make the consumer rebalance."""
    consumer = members.consumers.get(call.header.consumer_group)
    if consumer is not None:
        consumer.wake()
    return OK


async def reset_consumer_client_offset(
    members: Members, call: Call[ResetConsumerClientOffset]
) -> Reply:
    """Make the consumer continue from the offsets that an administrator has chosen."""
    consumer = _member(members, call.header.group)
    table = decode_json(QueueOffsetTable, call.body)
    await consumer.reset_offsets(call.header.topic, table.offset_table)
    return OK


def get_consumer_status_from_client(
    members: Members, call: Call[GetConsumerStatusFromClient]
) -> Reply:
    """Return the consumed offset of each queue."""
    offsets = _member(members, call.header.group).consumed_offsets(call.header.topic)
    return Reply(body=encode_json(ConsumerStatus(message_queue_table=offsets)))


def get_consumer_running_info(members: Members, call: Call[GetConsumerRunningInfo]) -> Reply:
    """Return the state of the consumer."""
    consumer = _member(members, call.header.consumer_group)
    info = consumer.running_info(with_stacks=call.header.jstack_enable)
    return Reply(body=encode_json(info))


async def consume_message_directly(members: Members, call: Call[ConsumeMessageDirectly]) -> Reply:
    """Pass the message in the request to the listener."""
    consumer = _member(members, call.header.consumer_group)
    record = decode_record(call.body)
    result = await consumer.consume_directly(record, call.header.broker_name or "")
    return Reply(body=encode_json(result))


def check_transaction_state(members: Members, call: Call[CheckTransactionState]) -> Reply:
    """Start a transaction check; the producer reports the result in a separate request."""
    record = decode_record(call.body)
    group = record.properties.get(PropertyKey.PRODUCER_GROUP, "")
    producer = members.transaction_producers.get(group)
    if producer is None:
        raise ServerError(f"The transactional producer group <{group}> not exist in this client")
    producer.check(call.header, record, call.peer.address)
    return OK


def _member(members: Members, group: str) -> ConsumerMember:
    consumer = members.consumers.get(group)
    if consumer is None:
        raise ServerError(f"The Consumer Group <{group}> not exist in this consumer")
    return consumer
