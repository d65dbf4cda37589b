# SPDX-License-Identifier: Apache-2.0
"""Committed offsets (14, 15), and queries about the bounds of queues (29 to 32)."""

from cometmq.broker.broker import Broker
from cometmq.broker.handlers.deferred_answers import look_up
from cometmq.remoting import remarks
from cometmq.remoting.command import OK, Call, Reply
from cometmq.remoting.commands.offsets import (
    GetEarliestMsgStoretime,
    GetEarliestMsgStoretimeReply,
    GetMaxOffset,
    GetMaxOffsetReply,
    GetMinOffset,
    GetMinOffsetReply,
    QueryConsumerOffset,
    QueryConsumerOffsetReply,
    SearchOffsetByTimestamp,
    SearchOffsetByTimestampReply,
    UpdateConsumerOffset,
)
from cometmq.remoting.errors import QueryNotFound
from cometmq.remoting.types import Language
from cometmq.store.reads import Lookup
from cometmq.store.results import BoundaryType


def query_consumer_offset(
    broker: Broker, call: Call[QueryConsumerOffset]
) -> QueryConsumerOffsetReply | None:
    """Return the committed offset; if there is none, answer with 0 or "not found".

    Compatibility: after "not found" the client applies its consumeFromWhere. RocketMQ's rule is to
    answer 0 while the queue's first message is in memory, so that a new group reads a young topic
    from its beginning. With youngQueueStartsAtZero=false, this broker answers 0 only if the queue
    was added after the group had subscribed. C++ clients always get RocketMQ's rule, because
    libraries built on them, such as Python's, cannot set consumeFromWhere.
    """
    header = call.header
    committed = broker.tables.offsets.committed(
        header.consumer_group, header.topic, header.queue_id
    )
    if committed is not None:
        return QueryConsumerOffsetReply(committed)
    lookup = _starts_at_zero(broker, header, by_rocketmq_rule=call.language is Language.CPP)
    look_up(broker, call, lookup, _without_commit)
    return None


def _without_commit(starts_at_zero: bool) -> QueryConsumerOffsetReply:
    if starts_at_zero:
        return QueryConsumerOffsetReply(0)
    raise QueryNotFound(remarks.CONSUMER_OFFSET_NOT_FOUND)


def _starts_at_zero(
    broker: Broker, header: QueryConsumerOffset, *, by_rocketmq_rule: bool
) -> Lookup[bool]:
    """Return whether a group without an offset must start with the queue's first message."""
    topic, queue_id = header.topic, header.queue_id
    store = broker.store
    if store.reader.max_offset(topic, queue_id) <= 0:
        return True
    if store.reader.min_offset(topic, queue_id) > 0:
        return False
    if by_rocketmq_rule or broker.settings.young_queue_starts_at_zero:
        return (yield from _is_in_memory(broker, topic, queue_id))
    if broker.tables.offsets.queues(header.consumer_group, topic):
        return True  # the topic got a new queue while the group consumed the others
    age_ms = _subscription_age_ms(broker, header.consumer_group, topic)
    if age_ms is None:
        return False
    subscribed_ms = broker.clock.now_ms() - age_ms
    return subscribed_ms <= (yield from store.reader.earliest_store_time(topic, queue_id))


def _is_in_memory(broker: Broker, topic: str, queue_id: int) -> Lookup[bool]:
    """Return whether a queue's first message is so recent that RocketMQ would count it as in
    memory.
    """
    physical_offset = yield from broker.store.reader.place(topic, queue_id, 0)
    if physical_offset < 0:
        return False
    behind = broker.store.commit_log.confirm_offset - physical_offset
    ratio = broker.settings.access_message_in_memory_max_ratio
    return behind <= broker.process.memory_bytes * ratio // 100


def _subscription_age_ms(broker: Broker, group_name: str, topic: str) -> int | None:
    """Return how long the connected group has been subscribed to the topic; None if unknown."""
    group = broker.clients.consumers.group(group_name)
    subscribed_ms = None if group is None else group.subscribed_ms.get(topic)
    return None if subscribed_ms is None else broker.clock.monotonic_ms() - subscribed_ms


def update_consumer_offset(broker: Broker, call: Call[UpdateConsumerOffset]) -> Reply:
    header = call.header
    committed = broker.tables.offsets.committed(
        header.consumer_group, header.topic, header.queue_id
    )
    if committed == header.commit_offset:
        return OK  # the usual case of an idle group, without the cost of a room
    broker.tables.offsets.commit(
        header.consumer_group,
        header.topic,
        header.queue_id,
        header.commit_offset,
        broker.admission.room(call),
    )
    return OK


def search_offset_by_timestamp(broker: Broker, call: Call[SearchOffsetByTimestamp]) -> None:
    """Answer with the offset of the message whose store time is nearest to the requested time."""
    header = call.header
    boundary = BoundaryType.__members__.get((header.boundary_type or "").upper())
    lookup = broker.store.reader.offset_by_time(
        header.topic, header.queue_id, header.timestamp, boundary=boundary
    )
    look_up(broker, call, lookup, SearchOffsetByTimestampReply)


def get_max_offset(broker: Broker, call: Call[GetMaxOffset]) -> GetMaxOffsetReply:
    """Return the offset that the queue's next message will get."""
    return GetMaxOffsetReply(
        broker.store.reader.max_offset(call.header.topic, call.header.queue_id)
    )


def get_min_offset(broker: Broker, call: Call[GetMinOffset]) -> GetMinOffsetReply:
    return GetMinOffsetReply(
        broker.store.reader.min_offset(call.header.topic, call.header.queue_id)
    )


def get_earliest_msg_storetime(broker: Broker, call: Call[GetEarliestMsgStoretime]) -> None:
    """Answer with the store time of the queue's oldest message; -1 if the queue is empty."""
    lookup = broker.store.reader.earliest_store_time(call.header.topic, call.header.queue_id)
    look_up(broker, call, lookup, GetEarliestMsgStoretimeReply)
