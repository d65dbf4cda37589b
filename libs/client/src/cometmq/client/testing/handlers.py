# SPDX-License-Identifier: Apache-2.0
"""Client requests, as served by the in-memory broker.

A transaction that its producer leaves open (UNKNOWN) is checked at once, then again after a pause.
One that was begun but never ended is checked only on request; a real broker waits for 6 seconds.
"""

import asyncio
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Final

from cometmq.client.clock import wall_ms
from cometmq.client.testing import admin
from cometmq.client.testing.admin import offset_at
from cometmq.client.testing.broker import (
    AUTO_QUEUE_COUNT,
    CLUSTER_NAME,
    MemoryBroker,
    check_expression_type,
    pulled,
    sent_back,
)
from cometmq.remoting import remarks
from cometmq.remoting.bodies.dialect import decode_json, encode_json
from cometmq.remoting.bodies.heartbeat import ClientConfigCheck, Heartbeat
from cometmq.remoting.bodies.locks import LockBatch, LockBatchReply
from cometmq.remoting.bodies.queues import ConsumerIdList, MessageQueue
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import OK, Call, Reply
from cometmq.remoting.commands import clients, offsets, pull, queries, request_reply, send
from cometmq.remoting.commands.transactions import CheckTransactionState, EndTransaction
from cometmq.remoting.errors import CometError, QueryNotFound, ServerError, TopicNotExist
from cometmq.remoting.message.batch import split_batch
from cometmq.remoting.message.flags import (
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NONE,
    TRANSACTION_ROLLBACK,
    PullSysFlag,
    tag_code,
)
from cometmq.remoting.message.new_message import NewMessage, encode_record
from cometmq.remoting.message.properties import PropertyKey, append_property, property_value
from cometmq.remoting.message.record import MessageRecord
from cometmq.remoting.names import DLQ_PREFIX, HALF_TOPIC, RETRY_PREFIX
from cometmq.remoting.transport.dispatch import Handler

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
    """Ask a producer of the group for a transaction's state; False if none is connected."""
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


def lock_batch_mq(broker: MemoryBroker, call: Call[Any]) -> Reply:
    """Lock queues that are free or held by the client; return all that it holds."""
    asked = decode_json(LockBatch, call.body)
    granted = [
        queue
        for queue in asked.mq_set
        if broker.locks.setdefault((asked.consumer_group, queue), asked.client_id)
        == asked.client_id
    ]
    return Reply(body=encode_json(LockBatchReply(granted)))


def unlock_batch_mq(broker: MemoryBroker, call: Call[Any]) -> Reply:
    asked = decode_json(LockBatch, call.body)
    for queue in asked.mq_set:
        key = (asked.consumer_group, queue)
        if broker.locks.get(key) == asked.client_id:
            del broker.locks[key]
    return OK


REPLY_TIMEOUT_MS: Final = 60_000
QUERY_COUNT_MAX: Final = 64  # default of `maxMsgsNumBatch`


def send_message(broker: MemoryBroker, call: Call[send.SendMessageV2]) -> Reply:
    header = call.header
    if header.topic not in broker.queues.queue_counts:
        if not broker.may_create_topics:
            raise TopicNotExist(f"topic[{header.topic}] not exist, apply first please!")
        broker.queues.create(header.topic, min(header.default_topic_queue_nums, AUTO_QUEUE_COUNT))
    topic, queue_id = header.topic, header.queue_id
    count = broker.queues.queue_counts[header.topic]
    if header.queue_id >= count:
        counts = f"readQueueNums={count}, writeQueueNums={count}"
        config = f"TopicConfig [topicName={header.topic}, {counts}]"
        raise ServerError(remarks.send_queue_illegal(header.queue_id, config, call.peer.address))
    if is_dead := _is_dead(header):
        topic, queue_id = DLQ_PREFIX + topic.removeprefix(RETRY_PREFIX), 0
        broker.queues.create(topic, 1)
    parts = [(header.flag, call.body, header.properties)]
    if header.batch:
        parts = [(p.flag, bytes(p.body), p.properties) for p in split_batch(call.body)]
    messages = [
        NewMessage(
            topic=topic,
            queue_id=queue_id,
            flag=flag,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            born_host=call.peer.host,
            store_host=broker.store_host,
            body=body,
            properties=append_property(properties, PropertyKey.CLUSTER, CLUSTER_NAME),
            reconsume_times=header.reconsume_times,
            tag_code=tag_code(property_value(properties, PropertyKey.TAGS)),
        )
        for flag, body, properties in parts
    ]
    for half in filter(is_half, messages):
        prepare(broker, half)
    stored = [broker.store(message) for message in messages]
    if is_dead:
        broker.dead.append(broker.messages(topic)[-1])
    ids = ",".join(message_id for message_id, _ in stored)
    code = broker.send_codes.popleft() if broker.send_codes else ResponseCode.SUCCESS
    reply = send.SendMessageReply(ids, header.queue_id, stored[0][1])
    return Reply(code, reply, ext=broker.send_ext)


async def send_reply_message(
    broker: MemoryBroker, call: Call[request_reply.SendReplyMessageV2]
) -> Reply:
    """Push a reply to the client that is waiting for it, and store it in any case."""
    header = call.header
    requester = property_value(header.properties, PropertyKey.REPLY_TO_CLIENT) or ""
    message = NewMessage(
        topic=header.topic,
        queue_id=header.queue_id,
        flag=header.flag,
        sys_flag=header.sys_flag,
        born_timestamp=header.born_timestamp,
        born_host=call.peer.host,
        store_host=broker.store_host,
        body=call.body,
        properties=header.properties,
    )
    message_id, queue_offset = broker.store(message)
    stored = send.SendMessageReply(message_id, header.queue_id, queue_offset)
    peer = broker.peers.get(requester)
    if peer is None:
        remark = remarks.reply_channel_missing(requester)
        return Reply(ResponseCode.SYSTEM_ERROR, stored, remark=remark, ext=broker.send_ext)
    pushed = request_reply.PushReplyMessageToClient(
        producer_group=header.producer_group,
        topic=header.topic,
        default_topic=header.default_topic,
        default_topic_queue_nums=header.default_topic_queue_nums,
        queue_id=header.queue_id,
        sys_flag=header.sys_flag,
        born_timestamp=header.born_timestamp,
        flag=header.flag,
        born_host=call.peer.address,
        store_host=broker.address,
        store_timestamp=wall_ms(),
        properties=header.properties,
    )
    code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    try:
        await peer.invoke(code, pushed, call.body, timeout_ms=REPLY_TIMEOUT_MS)
    except CometError:
        remark = remarks.reply_push_failed(requester)
        return Reply(ResponseCode.SYSTEM_ERROR, stored, remark=remark, ext=broker.send_ext)
    return Reply(header=stored, ext=broker.send_ext)


def _is_dead(header: send.SendMessageV2) -> bool:
    """Return whether a message that a consumer sent to its retry topic has no deliveries left."""
    times_max = header.max_reconsume_times
    return (
        header.topic.startswith(RETRY_PREFIX)
        and times_max is not None
        and header.reconsume_times >= times_max
    )


def pull_message(broker: MemoryBroker, call: Call[pull.PullMessage]) -> Reply | None:
    """Return messages, or hold the pull until some arrive."""
    header = call.header
    if header.sys_flag & PullSysFlag.COMMIT_OFFSET:
        key = (header.consumer_group, header.topic, header.queue_id)
        broker.offsets[key] = header.commit_offset
    answer = pulled(broker, call)
    can_wait = header.sys_flag & PullSysFlag.SUSPEND and header.suspend_timeout_millis > 0
    if answer.code == ResponseCode.PULL_NOT_FOUND and can_wait:
        broker.hold(call)
        return None
    return answer


def heart_beat(broker: MemoryBroker, call: Call[Any]) -> Reply:
    broker.join(call.peer, decode_json(Heartbeat, call.body))
    return OK


def unregister_client(broker: MemoryBroker, call: Call[clients.UnregisterClient]) -> Reply:
    header = call.header
    if header.consumer_group is not None:
        broker.leave(header.consumer_group, (header.client_id, call.peer))
    if header.producer_group is not None:
        broker.producers.get(header.producer_group, set()).discard(header.client_id)
    return OK


def get_consumer_list_by_group(
    broker: MemoryBroker, call: Call[clients.GetConsumerListByGroup]
) -> Reply:
    members = broker.groups.get(call.header.consumer_group)
    if not members:
        raise ServerError(f"no consumer for this group, {call.header.consumer_group}")
    return Reply(body=encode_json(ConsumerIdList(sorted(client_id for client_id, _ in members))))


def consumer_send_msg_back(broker: MemoryBroker, call: Call[send.ConsumerSendMsgBack]) -> Reply:
    """Redeliver a message at once, or move it to the dead-letter topic."""
    header = call.header
    record = broker.queues.record_at(header.offset)
    if record is None:
        raise ServerError("look message by offset failed, " + str(header.offset))
    times_max = header.max_reconsume_times
    is_dead = header.delay_level < 0 or record.reconsume_times >= (
        broker.group_config(header.group).retry_max_times if times_max is None else times_max
    )
    prefix = DLQ_PREFIX if is_dead else RETRY_PREFIX
    copy = sent_back(record, prefix + header.group, header.origin_msg_id or "")
    broker.queues.create(copy.topic, 1)
    broker.store(copy)
    if is_dead:
        broker.dead.append(broker.messages(copy.topic)[-1])
    return OK


def query_consumer_offset(
    broker: MemoryBroker, call: Call[offsets.QueryConsumerOffset]
) -> offsets.QueryConsumerOffsetReply:
    header = call.header
    offset = broker.offsets.get((header.consumer_group, header.topic, header.queue_id))
    if offset is None:
        place = (header.topic, header.queue_id)
        is_young = broker.young_queue_starts_at_zero and broker.queues.min_offset(*place) == 0
        if not is_young and broker.queues.max_offset(*place):
            raise QueryNotFound("Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first")
        offset = 0
    return offsets.QueryConsumerOffsetReply(offset)


def update_consumer_offset(broker: MemoryBroker, call: Call[offsets.UpdateConsumerOffset]) -> Reply:
    header = call.header
    key = (header.consumer_group, header.topic, header.queue_id)
    broker.offsets[key] = header.commit_offset
    return OK


def get_max_offset(
    broker: MemoryBroker, call: Call[offsets.GetMaxOffset]
) -> offsets.GetMaxOffsetReply:
    """Return the exclusive end offset of a queue."""
    header = call.header
    return offsets.GetMaxOffsetReply(broker.queues.max_offset(header.topic, header.queue_id))


def get_min_offset(
    broker: MemoryBroker, call: Call[offsets.GetMinOffset]
) -> offsets.GetMinOffsetReply:
    """Return the first offset of a queue."""
    header = call.header
    return offsets.GetMinOffsetReply(broker.queues.min_offset(header.topic, header.queue_id))


def search_offset_by_timestamp(
    broker: MemoryBroker, call: Call[offsets.SearchOffsetByTimestamp]
) -> offsets.SearchOffsetByTimestampReply:
    header = call.header
    queue = MessageQueue(header.topic, broker.name, header.queue_id)
    return offsets.SearchOffsetByTimestampReply(offset_at(broker, queue, header.timestamp))


def view_message_by_id(broker: MemoryBroker, call: Call[queries.ViewMessageById]) -> Reply:
    found = broker.queues.raw_record(call.header.offset)
    if found is None:
        raise ServerError(f"can not find message by the offset, {call.header.offset}")
    return Reply(body=found)


def check_client_config(_broker: MemoryBroker, call: Call[Any]) -> Reply:
    """Refuse SQL92 conditions."""
    wanted = decode_json(ClientConfigCheck, call.body).subscription_data
    if wanted is not None:
        check_expression_type(wanted.expression_type)
    return OK


def query_message(broker: MemoryBroker, call: Call[queries.QueryMessage]) -> Reply:
    """Return a topic's newest records with a given key or unique key, as a broker does."""
    header = call.header
    found = [
        broker.queues.raw_record(record.physical_offset) or b""
        for record in sorted(
            broker.queues.records(header.topic), key=attrgetter("physical_offset"), reverse=True
        )
        if header.key in (*record.keys, record.unique_key)
    ]
    if not found:
        raise QueryNotFound("can not find message, maybe time range not correct")
    return Reply(
        header=queries.QueryMessageReply(0, 0),
        body=b"".join(found[: min(header.max_num, QUERY_COUNT_MAX)]),
    )


_FUNCTIONS: Final = {**vars(admin), **globals()}
BROKER_HANDLERS: Final[Mapping[int, Handler[Any]]] = {
    int(code): _FUNCTIONS[name]
    for code in RequestCode
    if code.command is not None
    and callable(_FUNCTIONS.get(name := code.command.handler or code.name.lower()))
} | {int(RequestCode.SEND_BATCH_MESSAGE): send_message}
"""The functions of this module and of `admin`, by the codes after which they are named."""
