# SPDX-License-Identifier: Apache-2.0
"""CONSUMER_SEND_MSG_BACK (36): schedules a retry, or moves a message to the dead-letter topic.

Compatibility: as in RocketMQ, the request of a group whose retry topic would have an illegal name
is refused. RocketMQ also refuses a message whose properties leave no room for the broker's own, and
the consumer then never gets past it; here it is parked.
"""

from functools import partial
from typing import Final

from msgspec import structs

from cometmq.broker import refusals
from cometmq.broker.broker import Broker
from cometmq.broker.delays.parking import REFUSED_FOR_GOOD, Case, Origin, Reason, is_storable_again
from cometmq.broker.handlers.deferred_answers import look_up
from cometmq.broker.handlers.put_answers import answer_back, copy_bytes
from cometmq.broker.handlers.stored_topics import readable
from cometmq.broker.limits import Room, add_topic
from cometmq.broker.messages import delay, sent_back
from cometmq.broker.names import can_retry
from cometmq.broker.statistics.detours import SlowReason
from cometmq.remoting import remarks
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig, TopicConfig
from cometmq.remoting.command import OK, Call, Reply
from cometmq.remoting.commands.send import ConsumerSendMsgBack
from cometmq.remoting.errors import NoPermission, ServerError, SubscriptionGroupNotExist
from cometmq.remoting.message.flags import Perm, TopicSysFlag
from cometmq.remoting.message.properties import PropertyKey
from cometmq.remoting.message.record import MessageRecord
from cometmq.remoting.names import dead_letter_topic, retry_topic
from cometmq.remoting.versions import REQUEST_MAX_RECONSUME_MIN
from cometmq.store.results import PutResult

_WRITE: Final = int(Perm.WRITE)
FIRST_RETRY_LEVEL: Final = 3  # the first retry waits 10 s, each later one is a level higher
DLQ_QUEUE_COUNT: Final = 1


def consumer_send_msg_back(broker: Broker, call: Call[ConsumerSendMsgBack]) -> Reply | None:
    """Store a copy in the group's retry topic or dead-letter topic; answer once it is stored."""
    header = call.header
    reason = SlowReason.UNUSUAL
    try:
        group = _check(broker, header, broker.admission.room(call))
        if group.retry_queue_nums <= 0:
            return OK
        topic = _retry_topic(broker, call, group)
        if broker.lane is not None and broker.lane.learn_back(group, topic):
            reason = SlowReason.FIRST
    finally:
        if broker.lane is not None:
            broker.measured.detours.note(call.code, reason)

    def found(record: MessageRecord | None) -> None:
        if record is None:
            raise ServerError(remarks.send_back_not_found(header.offset))
        _store_copy(broker, call, group, record)

    look_up(broker, call, readable(broker, call, header.offset), found)
    return None


def _check(broker: Broker, header: ConsumerSendMsgBack, room: Room) -> SubscriptionGroupConfig:
    group = broker.group(header.group, room)
    if group is None:
        raise SubscriptionGroupNotExist(remarks.send_back_group_not_exist(header.group))
    if not broker.settings.broker_permission & _WRITE:
        raise NoPermission(remarks.broker_send_forbidden(broker.process.host))
    return group


def _retry_topic(
    broker: Broker, call: Call[ConsumerSendMsgBack], group: SubscriptionGroupConfig
) -> TopicConfig:
    header = call.header
    if not can_retry(header.group):
        raise ServerError(refusals.retry_topic_too_long(header.group))
    config = broker.tables.topics.create_retry(
        header.group,
        queue_nums=group.retry_queue_nums,
        sys_flag=int(TopicSysFlag.UNIT_SUB) if header.unit_mode else 0,
        admit=partial(add_topic, broker.admission.room(call)),
    )
    if not config.perm & _WRITE:
        raise NoPermission(refusals.topic_send_forbidden(config.topic_name))
    return config


def consume_count_max(group: SubscriptionGroupConfig, asked_max: int | None, version: int) -> int:
    """Return how often a message may be retried: the client's limit (`asked_max`) if clients of its
    version can send one (3.4.9 or later), otherwise the group's.
    """
    if asked_max is None or version < REQUEST_MAX_RECONSUME_MIN:
        return group.retry_max_times
    return asked_max


def _store_copy(
    broker: Broker,
    call: Call[ConsumerSendMsgBack],
    group: SubscriptionGroupConfig,
    record: MessageRecord,
) -> None:
    header = call.header
    count_max = consume_count_max(group, header.max_reconsume_times, call.version)
    level = 0
    topic = retry_topic(header.group)
    config = broker.tables.topics.table.get(topic)
    queue_nums = 0 if config is None else config.write_queue_nums
    queue_id = broker.stats.send_back_count % (min(queue_nums, group.retry_queue_nums) or 1)
    if header.delay_level < 0 or record.reconsume_times >= count_max:
        topic, queue_id = dead_letter_topic(header.group), 0
        if count_max <= 0 and header.delay_level >= 0:
            broker.clients.habits.dead_at_once(header.group, broker.clock.now_ms())
        broker.tables.topics.create(
            topic, queue_nums=DLQ_QUEUE_COUNT, admit=partial(add_topic, broker.admission.room(call))
        )
    else:
        asked = header.delay_level or FIRST_RETRY_LEVEL + record.reconsume_times
        level = broker.deferred.delays.levels.clamp(asked)
    message = sent_back(
        record, topic=topic, queue_id=queue_id, delay_level=level, host=broker.process.store_host
    )
    origin = record.properties.get(PropertyKey.RETRY_TOPIC, record.topic), header.group
    case = Case(message, Origin.SEND_BACK, Reason.TOO_LARGE, record.physical_offset)
    level_id: int | None = None

    def answer(result: PutResult) -> None:
        answer_back(broker, call, origin, level_id, result)

    # The client has not sent these bytes, so what it has in flight does not bound them.
    size = copy_bytes(call, message)
    done = broker.pending.copies.counted(size, broker.admission.room(call), answer)
    file_bytes = broker.settings.mapped_file_size_commit_log
    if not is_storable_again(message, file_bytes=file_bytes):
        broker.deferred.parking.park(case, done)
        return
    if level > 0:
        message = structs.replace(message)  # the message to park keeps its topic
        delay(message, level)
        level_id = message.queue_id

    def stored(result: PutResult) -> None:
        nonlocal level_id
        if result.status in REFUSED_FOR_GOOD:
            level_id = None
            broker.deferred.parking.park(case, done)
        else:
            done(result)

    broker.pending.large_puts.put([message], stored, partial(broker.admission.requester, call))
