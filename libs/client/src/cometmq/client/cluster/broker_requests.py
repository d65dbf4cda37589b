# SPDX-License-Identifier: Apache-2.0
"""Requests that brokers send to clients: rebalance, reset offsets, report state."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from cometmq.client.cluster.local_members import ConsumerMember, LocalMembers
from cometmq.client.decoding import decode_answer
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.offsets import ConsumerStatus, QueueOffsetTable
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
from cometmq.remoting.message.record import decode_record

ENCODED_ON_LOOP_MAX: Final = 512
"""How many queues a state that is encoded on the event loop may have; 16,384 take 150 ms."""


def notify_consumer_ids_changed(
    members: LocalMembers, call: Call[NotifyConsumerIdsChanged]
) -> Reply:
    """Make the consumer rebalance."""
    consumer = members.consumers.get(call.header.consumer_group)
    if consumer is not None:
        consumer.wake()
    return OK


async def reset_consumer_client_offset(
    members: LocalMembers, call: Call[ResetConsumerClientOffset]
) -> Reply:
    """Make the consumer continue from the offsets that an administrator has chosen."""
    consumer = _member(members, call.header.group)
    with _refusing("QueueOffsetTable"):
        table = await decode_answer(QueueOffsetTable, call.body)
    await consumer.reset_offsets(call.header.topic, table.offset_table, sender=call.peer)
    return OK


def get_consumer_status_from_client(
    members: LocalMembers, call: Call[GetConsumerStatusFromClient]
) -> Reply:
    """Return the consumed offset of each queue."""
    offsets = _member(members, call.header.group).consumed_offsets(call.header.topic)
    return Reply(body=encode_json(ConsumerStatus(message_queue_table=offsets)))


async def get_consumer_running_info(
    members: LocalMembers, call: Call[GetConsumerRunningInfo]
) -> Reply:
    """Return the state of the consumer."""
    consumer = _member(members, call.header.consumer_group)
    info = consumer.running_info(with_stacks=call.header.jstack_enable)
    if len(info.mq_table) <= ENCODED_ON_LOOP_MAX:
        return Reply(body=encode_json(info))
    return Reply(body=await asyncio.to_thread(encode_json, info))


async def consume_message_directly(
    members: LocalMembers, call: Call[ConsumeMessageDirectly]
) -> Reply:
    """Pass the message in the request to the listener."""
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
