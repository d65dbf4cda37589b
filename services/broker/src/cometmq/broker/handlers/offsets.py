# SPDX-License-Identifier: Apache-2.0
"""Committed offsets (14, 15), and queries about the bounds of queues (29 to 32); offset resets of
connected groups (222), offset corrections (308) and copies of offsets (314).

Compatibility: as in RocketMQ, a reset changes no stored offset. The members receive the new offsets
(220) and commit from there on.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from cometmq.broker.broker import Broker
from cometmq.broker.clients.consumers import ConsumerGroup
from cometmq.broker.handlers.client_calls import call_failed, check_versions
from cometmq.broker.handlers.deferred_answers import look_up, stepwise
from cometmq.broker.names import check_group
from cometmq.remoting import remarks
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.offsets import (
    CorrectionOffsets,
    QueueOffset,
    QueueOffsetList,
    QueueOffsetTable,
)
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.topic_config import TopicConfig
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import OK, Call, Reply
from cometmq.remoting.commands.admin import (
    CloneGroupOffset,
    InvokeBrokerToResetOffset,
    QueryCorrectionOffset,
)
from cometmq.remoting.commands.callbacks import ResetConsumerClientOffset
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
from cometmq.remoting.errors import ConsumerNotOnline, QueryNotFound, ServerError
from cometmq.remoting.types import Language
from cometmq.runtime.incremental import Steps
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
    """Return whether RocketMQ would count a queue's first message as in memory."""
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


STEP_COUNT: Final = 500
"""Number of groups or topics that one step of a long answer visits: about 1 ms."""
END: Final = -1  # as a time: the end of each queue
BEHIND: Final = (1 << 63) - 1  # as a corrected offset: the group lags behind all others


def invoke_broker_to_reset_offset(broker: Broker, call: Call[InvokeBrokerToResetOffset]) -> None:
    """Make all members of a group continue from a point in time; answer with the new offsets."""
    header = call.header
    config = broker.tables.topics.get(header.topic)
    if config is None:
        raise ServerError(remarks.reset_offset_no_topic(header.topic))
    queue_ids = _queues(header, config)
    if not _is_known(broker, header):
        raise ServerError(remarks.reset_offset_no_group(header.group))
    _members(broker, header)  # raises now for an offline group, before the search
    look_up(broker, call, _targets(broker, header, queue_ids), partial(_reset, broker, call))


def _is_known(broker: Broker, header: InvokeBrokerToResetOffset) -> bool:
    """Return whether the group consumes the topic, even if it has not committed an offset yet."""
    if broker.tables.offsets.queues(header.group, header.topic):
        return True
    group = broker.clients.consumers.group(header.group)
    return group is not None and header.topic in group.subscriptions


def _queues(header: InvokeBrokerToResetOffset, config: TopicConfig) -> Sequence[int]:
    """Return the queues to reset: all queues of the topic, or the one that a 5.x tool specifies."""
    if header.queue_id is None or header.queue_id < 0:
        return range(max(config.write_queue_nums, config.read_queue_nums))
    if header.queue_id >= max(config.write_queue_nums, config.read_queue_nums):
        raise ServerError(f"queueId={header.queue_id}: topic[{header.topic}] has no such queue")
    return [header.queue_id]


def _members(broker: Broker, header: InvokeBrokerToResetOffset) -> ConsumerGroup:
    """Return the connected group; raise CommandError if it cannot be reset."""
    group = broker.clients.consumers.group(header.group)
    if group is None:
        raise ConsumerNotOnline(
            remarks.reset_offset_offline(
                group=header.group, topic=header.topic, timestamp=header.timestamp
            )
        )
    check_versions(group.clients.values())
    return group


def _targets(
    broker: Broker, header: InvokeBrokerToResetOffset, queue_ids: Sequence[int]
) -> Lookup[dict[MessageQueue, int]]:
    """Find the new offset in each queue; unless forced, it never exceeds the committed one.

    Compatibility: RocketMQ refuses the request when one queue has no stored offset, for example
    because it was just added. Here the group's offset in that queue counts as 0. RocketMQ also
    leaves out queues that are only read, although the members consume the rest of their messages.
    """
    targets = {}
    for queue_id in queue_ids:
        target = yield from _target(broker, header, queue_id)
        if not header.is_force:
            committed = broker.tables.offsets.committed(header.group, header.topic, queue_id) or 0
            target = min(target, committed)
        queue = MessageQueue(header.topic, broker.settings.broker_name, queue_id)
        targets[queue] = max(0, target)
    return targets


def _target(broker: Broker, header: InvokeBrokerToResetOffset, queue_id: int) -> Lookup[int]:
    end = broker.store.reader.max_offset(header.topic, queue_id)
    names_queue = header.queue_id is not None and header.queue_id >= 0
    if names_queue and header.offset is not None and header.offset >= 0:
        return min(header.offset, end)
    if header.timestamp == END:
        return end
    return (yield from broker.store.reader.offset_by_time(header.topic, queue_id, header.timestamp))


def _reset(
    broker: Broker, call: Call[InvokeBrokerToResetOffset], targets: dict[MessageQueue, int]
) -> Reply:
    """Send the new offsets to the members, to C++ clients in their own format.

    Compatibility: RocketMQ sends isForce=false regardless of the request. It chooses the format by
    the language of the tool that sent the request, so members in other languages cannot read the
    offsets.
    """
    header = call.header
    group = _members(broker, header)
    request = ResetConsumerClientOffset(
        topic=header.topic, group=header.group, timestamp=header.timestamp, is_force=False
    )
    table = encode_json(QueueOffsetTable(offset_table=targets))
    listed = [QueueOffset(q.broker_name, at, q.queue_id, q.topic) for q, at in targets.items()]
    rows = encode_json(QueueOffsetList(offset_table=listed))
    code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
    for client in group.clients.values():
        body = rows if client.language == Language.CPP else table
        if not client.peer.send(code, request, body):
            call_failed(broker, code, client, "the connection is not writable")
    broker.log.info(
        "offsets.reset",
        peer=call.peer.address,
        group=header.group,
        topic=header.topic,
        to_ms=header.timestamp,  # each entry of the log has its own timestamp
        is_force=header.is_force,
        queues=len(targets),
    )
    return Reply(body=table, remark=remarks.NOT_SET)


async def query_correction_offset(broker: Broker, call: Call[QueryCorrectionOffset]) -> Reply:
    """Return the lowest offset of any group in each queue of a topic.

    As in RocketMQ, the offset is Java's Long.MAX_VALUE if the group in the request
    is behind all other groups.

    Compatibility: RocketMQ deletes the offsets of the groups that the request excludes. Here they
    are only left out of the comparison.
    """
    return await stepwise(broker, call, _correction_offsets(broker, call.header))


def _correction_offsets(broker: Broker, header: QueryCorrectionOffset) -> Steps[Reply]:
    left_out = set((header.filter_groups or "").split(","))
    least: dict[int, int] = {}
    for number, group in enumerate(
        broker.tables.offsets.index.groups_of(header.topic) - left_out, 1
    ):
        if not number % STEP_COUNT:
            yield
        for queue_id, offset in broker.tables.offsets.queues(group, header.topic).items():
            if offset >= broker.store.reader.min_offset(header.topic, queue_id):
                least[queue_id] = min(offset, least.get(queue_id, offset))
    for queue_id, offset in broker.tables.offsets.queues(
        header.compare_group, header.topic
    ).items():
        if queue_id in least and least[queue_id] > offset:
            least[queue_id] = BEHIND
    return Reply(body=encode_json(CorrectionOffsets(correction_offsets=least)))


async def clone_group_offset(broker: Broker, call: Call[CloneGroupOffset]) -> Reply:
    """Copy one group's offsets to another group, in one topic or in all of its topics.

    Topics that the connected group no longer subscribes to are skipped, unless the request is for
    an offline group.

    Compatibility: RocketMQ copies nothing when the request is for all topics.
    """
    check_group(call.header.dest_group)
    await stepwise(broker, call, _cloning(broker, call))
    return OK


def _cloning(broker: Broker, call: Call[CloneGroupOffset]) -> Steps[None]:
    header = call.header
    source = header.src_group
    asked = (header.topic or "").strip()
    topics = {asked} if asked else broker.tables.offsets.index.topics_of(source)
    online = None if header.offline else broker.clients.consumers.group(source)
    subscribed = online.subscriptions.keys() if online is not None else ()
    for number, topic in enumerate(list(topics), 1):
        if not number % STEP_COUNT:
            yield
        if topic in broker.tables.topics.table and (not subscribed or topic in subscribed):
            broker.tables.offsets.clone(
                source, header.dest_group, topic, broker.admission.room(call)
            )
    broker.log.info(
        "offsets.cloned", peer=call.peer.address, group=source, to_group=header.dest_group
    )
