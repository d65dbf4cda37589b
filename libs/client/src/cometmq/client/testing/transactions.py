# SPDX-License-Identifier: Apache-2.0
"""Stores, ends and checks the half messages of the in-memory broker.

A transaction that its producer leaves open (UNKNOWN) is checked at once, then again after a pause.
One that was begun but never ended is checked only on request; a real broker waits for 6 seconds.
"""

import asyncio
from typing import Final

from cometmq.client.testing.broker import MemoryBroker
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import OK, Call, Reply
from cometmq.remoting.commands.transactions import CheckTransactionState, EndTransaction
from cometmq.remoting.errors import ServerError
from cometmq.remoting.message.flags import (
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NONE,
    TRANSACTION_ROLLBACK,
)
from cometmq.remoting.message.new_message import NewMessage, encode_record
from cometmq.remoting.message.properties import PropertyKey, append_property, property_value
from cometmq.remoting.message.record import MessageRecord
from cometmq.remoting.names import HALF_TOPIC

CHECK_COUNT_MAX: Final = 15
"""Like `transactionCheckMax`: the number of times that the broker checks a transaction unasked."""
CHECK_AGAIN_S: Final = 0.1
_FINAL: Final = (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK)


def is_half(message: NewMessage) -> bool:
    """Return whether a message is waiting for the end of a transaction."""
    return property_value(message.properties, PropertyKey.TRANSACTION_PREPARED) == "true"


def prepare(broker: MemoryBroker, message: NewMessage) -> None:
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
    elif header.commit_or_rollback == TRANSACTION_NONE and broker.may_check_transactions:
        _check_later(broker, half.queue_offset)
    return OK


def open_transactions(broker: MemoryBroker) -> dict[int, str]:
    """Return the message ids of transactions without a final state, by half message offset."""
    ended = {it.tran_state_table_offset for it in broker.ends if it.commit_or_rollback in _FINAL}
    return {
        half.queue_offset: half.unique_key or ""
        for half in broker.queues.records(HALF_TOPIC)
        if half.queue_offset not in ended
    }


def ask(broker: MemoryBroker, half_offset: int = 0) -> bool:
    """Ask a producer of the group for the state of a half message's transaction.

    Return False if none is connected.
    """
    half = list(broker.queues.records(HALF_TOPIC))[half_offset]
    group = half.properties[PropertyKey.PRODUCER_GROUP]
    members = sorted(broker.producers.get(group, ()))
    peer = next((broker.peers[member] for member in members if member in broker.peers), None)
    if peer is None:
        return False
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
    return True


def _check_later(broker: MemoryBroker, half_offset: int) -> None:
    count = broker.check_counts[half_offset]
    if count < CHECK_COUNT_MAX:
        delay_s = CHECK_AGAIN_S if count else 0
        asyncio.get_running_loop().call_later(delay_s, _check, broker, half_offset)


def _check(broker: MemoryBroker, half_offset: int) -> None:
    is_over = broker.check_counts[half_offset] >= CHECK_COUNT_MAX
    if is_over or not broker.is_running or half_offset not in open_transactions(broker):
        return
    if ask(broker, half_offset):
        broker.check_counts[half_offset] += 1
    else:  # no member of the group is connected now: ask the next one
        loop = asyncio.get_running_loop()
        loop.call_later(CHECK_AGAIN_S, _check, broker, half_offset)


def _real(half: MessageRecord) -> NewMessage:
    message = half.to_new_message()
    message.topic = half.properties[PropertyKey.REAL_TOPIC]
    message.queue_id = int(half.properties[PropertyKey.REAL_QUEUE_ID])
    return message
