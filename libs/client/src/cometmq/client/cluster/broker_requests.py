# SPDX-License-Identifier: Apache-2.0
"""Requests that brokers send to clients: rebalance, reset offsets, report state."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from cometmq.client.cluster.local_members import ConsumerMember, LocalMembers
from cometmq.client.turns import decode_answer
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.large import encode_table
from cometmq.remoting.bodies.offsets import ConsumerStatus, QueueOffsetTable
from cometmq.remoting.bodies.running_info import ConsumerRunningInfo
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

_NO_QUEUES: Final = b'"mqTable":{}'


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


async def get_consumer_running_info(
    members: LocalMembers, call: Call[GetConsumerRunningInfo]
) -> Reply:
    consumer = _member(members, call.header.consumer_group)
    info = await consumer.running_info(with_stacks=call.header.jstack_enable)
    return Reply(body=await _encoded(info))


async def _encoded(info: ConsumerRunningInfo) -> bytes:
    """Encode a state in several turns of the loop: the states of 16,384 queues take 130 ms, in
    which a thread would not let the loop run either.
    """
    steps, table = encode_table(info.mq_table), b""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            table = end.value
            break
        await asyncio.sleep(0)
    rest = encode_json(msgspec.structs.replace(info, mq_table={}))
    begin, _, end_of_rest = rest.partition(_NO_QUEUES)  # quotes inside texts are escaped
    return b"".join((begin, _NO_QUEUES[:-2], table, end_of_rest))


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
