# SPDX-License-Identifier: Apache-2.0
"""Half messages of the in-memory broker: stored, ended, and checked when a test requests it."""

from cometmq.client.testing.broker import MemoryBroker
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import OK, Call, Reply
from cometmq.remoting.commands.transactions import CheckTransactionState, EndTransaction
from cometmq.remoting.errors import ServerError
from cometmq.remoting.message.flags import TRANSACTION_COMMIT, TRANSACTION_MASK
from cometmq.remoting.message.new_message import NewMessage, encode_record
from cometmq.remoting.message.properties import (
    PropertyKey,
    append_property,
    property_value,
)
from cometmq.remoting.message.record import MessageRecord
from cometmq.remoting.names import HALF_TOPIC


def is_half(message: NewMessage) -> bool:
    """Return whether a message waits for the end of a transaction."""
    return property_value(message.properties, PropertyKey.TRANSACTION_PREPARED) == "true"


def prepare(broker: MemoryBroker, message: NewMessage) -> None:
    """Turn a message into a half message."""
    broker.queues.create(HALF_TOPIC, 1)
    places = ((PropertyKey.REAL_TOPIC, message.topic),
              (PropertyKey.REAL_QUEUE_ID, str(message.queue_id)))  # fmt: skip
    for name, value in places:
        message.properties = append_property(message.properties, name, value)
    message.topic, message.queue_id = HALF_TOPIC, 0
    message.sys_flag &= ~TRANSACTION_MASK


def end_transaction(broker: MemoryBroker, call: Call[EndTransaction]) -> Reply:
    """Record the end of a transaction, and deliver the message of a committed one."""
    header = call.header
    half = broker.queues.record_at(header.commit_log_offset)
    if half is None or half.queue_offset != header.tran_state_table_offset:
        raise ServerError("Find prepared transaction message failed")
    if half.properties.get(PropertyKey.PRODUCER_GROUP) != header.producer_group:
        raise ServerError("The producer group wrong")
    broker.ends.append(header)
    if header.commit_or_rollback == TRANSACTION_COMMIT:
        broker.store(_real(half))
    return OK


def ask(broker: MemoryBroker, half_offset: int = 0) -> None:
    """Ask any producer of the group for the state of a half message's transaction."""
    half = list(broker.queues.records(HALF_TOPIC))[half_offset]
    group = half.properties[PropertyKey.PRODUCER_GROUP]
    peer = next(broker.peers[client] for client in sorted(broker.producers[group]))
    header = CheckTransactionState(
        tran_state_table_offset=half.queue_offset,
        commit_log_offset=half.physical_offset,
        msg_id=half.unique_key,
        transaction_id=half.unique_key,
        offset_msg_id=half.offset_message_id,
    )
    record = encode_record(
        _real(half), half.queue_offset, half.physical_offset, half.store_timestamp
    )
    peer.send(RequestCode.CHECK_TRANSACTION_STATE, header, record)


def _real(half: MessageRecord) -> NewMessage:
    message = half.to_new_message()
    message.topic = half.properties[PropertyKey.REAL_TOPIC]
    message.queue_id = int(half.properties[PropertyKey.REAL_QUEUE_ID])
    return message
