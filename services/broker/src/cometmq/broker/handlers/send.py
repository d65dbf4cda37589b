# SPDX-License-Identifier: Apache-2.0
"""SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320).

Hot path: `send_message` runs once per message (budget 2 us on top of the store's put). The checks
are in RocketMQ's order; for a usual request, one test replaces those that only unusual ones need.

Compatibility: as in RocketMQ, a send does not check the topic's write permission (routes hide the
queues of topics without it), and every answer carries MSG_REGION and TRACE_ON.
"""

from collections.abc import Iterator
from functools import partial
from typing import Final, TypeAlias

from cometmq.broker import refusals
from cometmq.broker.broker import Broker
from cometmq.broker.delays import timed
from cometmq.broker.delays.parking import is_storable_again
from cometmq.broker.handlers.put_answers import (
    answer_delayed,
    answer_put,
    forget_message,
    group_refusal,
)
from cometmq.broker.handlers.send_back import DLQ_QUEUE_COUNT, consume_count_max
from cometmq.broker.limits import BATCH_KEYS, BATCH_MESSAGES, BATCH_PROPERTY_CHARS, Room, add_topic
from cometmq.broker.messages import SentProperties, batch_text, delay, read_sent, without_delay
from cometmq.broker.names import check_topic
from cometmq.broker.statistics.detours import SlowReason
from cometmq.broker.storing.large_puts import has_many_keys
from cometmq.broker.transactions.transactions import QUEUE_COUNT, RecentHalf, is_kept, prepare
from cometmq.remoting import remarks
from cometmq.remoting.bodies.topic_config import TopicConfig
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Call, Reply
from cometmq.remoting.commands.send import SendMessage, SendMessageV2
from cometmq.remoting.errors import (
    CommandError,
    CorruptRecord,
    MessageIllegal,
    NoPermission,
    ServerError,
    ServiceNotAvailable,
    SubscriptionGroupNotExist,
    SystemBusy,
    TopicNotExist,
)
from cometmq.remoting.message.batch import BatchItem, batch_items
from cometmq.remoting.message.flags import TRANSACTION_MASK, Perm, SysFlag, TopicSysFlag
from cometmq.remoting.message.new_message import NewMessage, weight_of
from cometmq.remoting.message.properties import PropertyKey, join_properties, property_value
from cometmq.remoting.names import (
    DLQ_PREFIX,
    HALF_TOPIC,
    RETRY_PREFIX,
    SEND_FORBIDDEN_TOPICS,
    dead_letter_topic,
)
from cometmq.remoting.transport.dispatch import InOrder
from cometmq.runtime.incremental import Steps
from cometmq.store.results import PutDone, PutResult

SendHeader = SendMessage | SendMessageV2
BatchParts: TypeAlias = Iterator[tuple[list[NewMessage], bool]]

MULTI_TAG: Final = "MULTI_TAG"
BATCH_STEP_WEIGHT: Final = 2_000
"""Weight of the messages of a batch that are decoded in one step: 2 to 5 ms."""
BATCH_KEYS_AT_ONCE: Final = 4_096
"""A batch with more keys is stored in steps. Behind keys that wait for the index, a commit adds as
many as it brings: 4 to 12 ms.
"""
PROPERTIES_READ_MAX: Final = 65_536
"""Maximum number of characters of properties that are read; at most half can be stored."""
_SUCCESS: Final = int(ResponseCode.SUCCESS)
_WRITE: Final = int(Perm.WRITE)


def send_message(broker: Broker, call: Call[SendHeader]) -> Reply | InOrder | None:
    """Store one message, or a batch if the header announces one; answer after the commit."""
    try:
        return _send_batch(broker, call) if call.header.batch else _send_one(broker, call)
    except CommandError as error:
        return _refused(broker, call, error)


def send_batch_message(broker: Broker, call: Call[SendHeader]) -> Reply | InOrder | None:
    """Store all messages of a batch contiguously, or none.

    A large batch is decoded, encoded and placed in steps, one batch at a time; its
    connection's next requests wait.
    """
    try:
        return _send_batch(broker, call)
    except CommandError as error:
        return _refused(broker, call, error)


def _refused(broker: Broker, call: Call[SendHeader], error: CommandError) -> Reply:
    broker.stats.put_failed_count += 1
    broker.admission.refused.note(call, error.code, error.remark, broker.clock.now_ms())
    return Reply(code=error.code, remark=error.remark, ext=broker.config.send_ext)


def _send_one(broker: Broker, call: Call[SendHeader]) -> InOrder | None:
    header = call.header
    topic = header.topic
    config = admit(broker, call)
    answered_id = queue_id = choose_queue(broker, config, header.queue_id, call)
    sent = read_properties(broker, header, broker.config.cluster_pair)
    if topic[0] == "%" and topic.startswith(RETRY_PREFIX):
        topic, queue_id = _redirect(broker, call, topic, queue_id)
        sent.is_half = False  # a committed message whose text still marks it as half
        if topic.startswith(DLQ_PREFIX):
            sent.delay_level = 0
            sent.text = without_delay(sent.text)
    message = NewMessage(
        topic,
        queue_id,
        header.flag,
        header.sys_flag,
        header.born_timestamp,
        call.peer.host,
        broker.process.store_host,
        call.body,
        sent.text,
        header.reconsume_times,
        0,
        sent.tag_code,
        sent.keys,
        sent.waits_for_disk,
    )
    if config.topic_filter_type == MULTI_TAG:
        message.sys_flag |= SysFlag.MULTI_TAGS
    due_ms = _due_ms(broker, message, sent) if sent.has_timer else None
    if sent.is_half or sent.delay_level > 0 or due_ms is not None:
        check_storable_again(broker, message)
    done: PutDone = partial(answer_put, broker, call, topic, answered_id, 1)
    if sent.is_half:
        done = _prepare_half(broker, call, message, sent.wait, answered_id)
    elif sent.delay_level > 0 or due_ms is not None:
        levels = broker.deferred.delays.levels
        delay(message, levels.clamp(sent.delay_level), wait=sent.wait)
        if due_ms is not None:
            timed.hop(message, levels, due_ms, broker.clock.now_ms())
        done = partial(answer_delayed, broker, call, message.queue_id, answered_id, due_ms)
    if has_many_keys(message) or broker.driver.is_full:
        size = len(message.body) + len(message.properties)
        return InOrder(_send_large(broker, call, size, _storing(broker, call, [message], done)))
    broker.driver.put(message, done)
    forget_message(call)
    return None


def _due_ms(broker: Broker, message: NewMessage, sent: SentProperties) -> int | None:
    """Return when a message is to be delivered; None if it has a delay level, or is due now.

    For a half message, only check the time: its delay begins when it is committed.
    """
    rules = broker.timer_rules
    if sent.delay_level > 0:
        message.properties = timed.without_timer(message.properties, rules)
        return None
    if message.topic[0] == "%":  # a retry or a dead letter
        return None
    return timed.requested_ms(message.properties, rules, broker.clock.now_ms())


def read_properties(broker: Broker, header: SendHeader, cluster: str) -> SentProperties:
    """Read the properties of a request; raise MessageIllegal above PROPERTIES_READ_MAX."""
    text = header.properties
    if text and len(text) > PROPERTIES_READ_MAX:
        raise MessageIllegal(remarks.message_illegal(broker.settings.max_message_size))
    return read_sent(text, cluster)


def check_storable_again(broker: Broker, message: NewMessage) -> None:
    """Raise an error if a message that waits in the broker would be too large to be stored again.

    `message` must have its real topic.
    """
    settings = broker.settings
    if not is_storable_again(message, file_bytes=settings.mapped_file_size_commit_log):
        raise MessageIllegal(remarks.message_illegal(settings.max_message_size))


def _prepare_half(
    broker: Broker, call: Call[SendHeader], message: NewMessage, wait: str | None, queue_id: int
) -> PutDone:
    """Make a message a half message, for its commit; return the callback for its put."""
    if broker.settings.reject_transaction_message:
        raise NoPermission(refusals.transaction_forbidden(broker.process.host))
    broker.tables.topics.create(HALF_TOPIC, queue_nums=QUEUE_COUNT)
    group = property_value(message.properties, PropertyKey.PRODUCER_GROUP) or ""
    place = (message.topic, message.queue_id)
    prepare(message, wait=wait)
    # Copied, so that the cache does not keep the whole receive buffer alive.
    message.body = bytes(message.body)
    kept = message if is_kept(message) else None  # others would wait here with their bodies

    def prepared(result: PutResult) -> None:
        if result.status.is_stored:
            broker.deferred.transactions.prepared_count += 1
        if result.status.is_stored and kept is not None:
            broker.deferred.transactions.recent.add(
                RecentHalf(
                    group, place, kept.queue_id, result.queue_offset, result.physical_offset,
                    result.size, kept,
                )
            )  # fmt: skip
        answer_put(broker, call, HALF_TOPIC, queue_id, 1, result)

    return prepared


def _send_batch(broker: Broker, call: Call[SendHeader]) -> InOrder | None:
    header = call.header
    topic = header.topic
    config = admit(broker, call)
    queue_id = choose_queue(broker, config, header.queue_id, call)
    if topic.startswith(RETRY_PREFIX):
        raise MessageIllegal(remarks.BATCH_RETRY_TOPIC + RETRY_PREFIX)
    common = read_properties(broker, header, broker.config.cluster_pair)
    if header.sys_flag & TRANSACTION_MASK or common.delay_level > 0:
        raise MessageIllegal(remarks.message_illegal(broker.settings.max_message_size))
    if common.has_timer:
        _check_untimed(broker, common.text)
    if len(call.body) > broker.settings.max_message_size:
        raise MessageIllegal(remarks.message_illegal(broker.settings.max_message_size))
    sys_flag = header.sys_flag
    if config.topic_filter_type == MULTI_TAG:
        sys_flag |= SysFlag.MULTI_TAGS
    make = partial(_batch_message, broker, call, queue_id, sys_flag, batch_text(common))
    items = map(make, batch_items(call.body))
    parts = batch_parts(items, broker.admission.room(call))
    messages, is_large = next(parts)
    if not messages:
        raise ServerError("the batch is empty")
    messages[0].wait = common.waits_for_disk  # the first message answers for all
    if is_large or sum(len(message.keys) for message in messages) > BATCH_KEYS_AT_ONCE:
        work = _batch_steps(broker, call, queue_id, messages, parts)
        return InOrder(_send_large(broker, call, len(call.body), work))
    done = partial(answer_put, broker, call, topic, queue_id, len(messages))
    broker.driver.put_batch(messages, done)
    forget_message(call)
    return None


def batch_parts(items: Iterator[NewMessage], room: Room) -> BatchParts:
    """Return the messages that are decoded in each step, and whether there may be more.

    Raise LimitReached as soon as the messages so far exceed a limit.
    """
    message_count = key_count = char_count = 0
    is_more = True
    while is_more:
        messages = []
        is_more = False
        weight = 0
        try:
            for message in items:
                messages.append(message)
                key_count += len(message.keys)
                char_count += len(message.properties)
                weight += weight_of(message)
                if weight >= BATCH_STEP_WEIGHT:
                    is_more = True
                    break
        except CorruptRecord as error:
            raise ServerError(f"the batch cannot be read, {error}") from error
        message_count += len(messages)
        room.check(BATCH_MESSAGES, message_count)
        room.check(BATCH_KEYS, key_count)
        room.check(BATCH_PROPERTY_CHARS, char_count)
        yield messages, is_more


async def _send_large(
    broker: Broker, call: Call[SendHeader], size: int, work: Steps[None]
) -> Reply | None:
    """Store messages in steps; until then, `size` counts against the limit BATCH_BYTES."""
    pending = broker.pending
    try:
        with pending.large_batches.counting(size, broker.admission.room(call)):
            await pending.large_puts.runner.run(work, broker.admission.requester(call))
    except CommandError as error:
        return _refused(broker, call, error)
    return None


def _batch_steps(
    broker: Broker,
    call: Call[SendHeader],
    queue_id: int,
    messages: list[NewMessage],
    parts: BatchParts,
) -> Steps[None]:
    for more, _ in parts:
        messages += more
        yield
    done = partial(answer_put, broker, call, call.header.topic, queue_id, len(messages))
    yield from _storing(broker, call, messages, done)


def _storing(
    broker: Broker, call: Call[SendHeader], messages: list[NewMessage], done: PutDone
) -> Steps[None]:
    admit(broker, call)  # again: the topic may have been deleted meanwhile
    yield from broker.driver.put_large(messages, done)
    forget_message(call)
    while len(messages) > BATCH_STEP_WEIGHT:  # to free 65,536 at once takes 10 ms
        del messages[-BATCH_STEP_WEIGHT:]
        yield


def _batch_message(
    broker: Broker,
    call: Call[SendHeader],
    queue_id: int,
    sys_flag: int,
    common_text: str,
    item: BatchItem,
) -> NewMessage:
    """Return one message of a batch; the properties of the request are appended to its own."""
    header = call.header
    text = join_properties(item.properties, common_text)
    sent = read_sent(text, "")
    if sent.has_timer:
        _check_untimed(broker, text)
    return NewMessage(
        header.topic,
        queue_id,
        item.flag,
        sys_flag,
        header.born_timestamp,
        call.peer.host,
        broker.process.store_host,
        item.body,
        text,
        header.reconsume_times,
        0,
        sent.tag_code,
        sent.keys,
        sent.waits_for_disk,
    )


def _check_untimed(broker: Broker, text: str) -> None:
    if timed.requested_ms(text, broker.timer_rules, broker.clock.now_ms()) is not None:
        raise MessageIllegal(refusals.BATCH_TIMED)


def admit(broker: Broker, call: Call[SendHeader]) -> TopicConfig:
    """Return the topic's configuration, and let the lane learn it; create the topic if that is
    allowed. Raise CommandError if the message is refused.
    """
    topic = call.header.topic
    config = broker.tables.topics.table.get(topic)
    if (
        config is None
        or topic in SEND_FORBIDDEN_TOPICS
        or broker.config.checks_sends
        or broker.driver.sends.waiting_count >= broker.settings.send_thread_pool_queue_capacity
    ):
        return _admit_unusual(broker, call, config)
    if broker.lane is not None:
        _note(broker, call, SlowReason.FIRST if broker.lane.learn(config) else SlowReason.UNUSUAL)
    return config


def _note(broker: Broker, call: Call[SendHeader], reason: SlowReason) -> None:
    if call.code == RequestCode.SEND_MESSAGE or call.header.topic.startswith("%"):
        reason = SlowReason.NO_NATIVE_FORM
    broker.measured.detours.note(call.code, reason)


def _admit_unusual(
    broker: Broker, call: Call[SendHeader], config: TopicConfig | None
) -> TopicConfig:
    """Run all checks on an unusual message, in RocketMQ's order."""
    settings = broker.settings
    topic = call.header.topic
    if broker.lane is not None:
        is_forbidden = topic in SEND_FORBIDDEN_TOPICS
        known = SlowReason.UNUSUAL if is_forbidden else SlowReason.BUSY
        _note(broker, call, SlowReason.FIRST if config is None else known)
    if settings.start_accept_send_request_time_stamp:
        _check_start(broker)
    if not settings.broker_permission & _WRITE and config is not None and config.order:
        raise NoPermission(remarks.broker_send_forbidden(broker.process.host))
    if config is None or topic in SEND_FORBIDDEN_TOPICS:
        config = _unknown_topic(broker, call)
    if broker.driver.sends.waiting_count >= settings.send_thread_pool_queue_capacity:
        broker.stats.busy_count += 1
        waited_ms = max(0, broker.clock.monotonic_ms() - call.received_ms)
        raise SystemBusy(
            remarks.rejected(in_flight=broker.driver.sends.waiting_count, waited_ms=waited_ms)
        )
    return config


def _check_start(broker: Broker) -> None:
    start_ms = broker.settings.start_accept_send_request_time_stamp
    if broker.clock.now_ms() < start_ms:
        raise ServerError(refusals.before_start(start_ms))


def _unknown_topic(broker: Broker, call: Call[SendHeader]) -> TopicConfig:
    """Create the topic from its default topic if that is allowed; otherwise raise CommandError."""
    header = call.header
    topic = header.topic
    check_topic(topic)
    if topic in SEND_FORBIDDEN_TOPICS:
        raise NoPermission(remarks.send_topic_forbidden(topic))
    if broker.settings.group_record and (remark := group_refusal(broker)):
        raise ServiceNotAvailable(remark)  # no topic is created for a message that cannot be stored
    is_retry = topic.startswith(RETRY_PREFIX)
    unit_flag = TopicSysFlag.UNIT_SUB if is_retry else TopicSysFlag.UNIT
    sys_flag = int(unit_flag) if header.unit_mode else 0
    admit_topic = partial(add_topic, broker.admission.room(call))
    config = broker.tables.topics.create_for_send(
        topic,
        default_topic=header.default_topic,
        queue_nums=header.default_topic_queue_nums,
        sys_flag=sys_flag,
        auto_create=broker.settings.auto_create_topic_enable,
        admit=admit_topic,
    )
    if config is None and is_retry:
        config = broker.tables.topics.create(
            topic, queue_nums=1, sys_flag=sys_flag, admit=admit_topic
        )
    if config is None:
        raise TopicNotExist(remarks.send_topic_not_exist(topic))
    return config


def choose_queue(broker: Broker, config: TopicConfig, queue_id: int, call: Call[SendHeader]) -> int:
    """Return the queue to write to; for a negative queue id, the broker chooses."""
    if queue_id < 0:
        broker.stats.chosen_queue_count += 1
        return broker.stats.chosen_queue_count % max(1, config.write_queue_nums)
    if queue_id >= config.write_queue_nums and queue_id >= config.read_queue_nums:
        raise ServerError(refusals.queue_illegal(queue_id, config, call.peer.address))
    return queue_id


def _redirect(broker: Broker, call: Call[SendHeader], topic: str, queue_id: int) -> tuple[str, int]:
    """Return the topic and queue of a message that a consumer sends to its retry topic: the
    dead-letter topic after the last retry, otherwise unchanged.
    """
    header = call.header
    group_name = topic.removeprefix(RETRY_PREFIX)
    room = broker.admission.room(call)
    group = broker.group(group_name, room)
    if group is None:
        raise SubscriptionGroupNotExist(remarks.send_back_group_not_exist(group_name))
    count_max = consume_count_max(group, header.max_reconsume_times, call.version)
    if header.reconsume_times < count_max:
        return topic, queue_id
    dead = dead_letter_topic(group_name)
    broker.tables.topics.create(dead, queue_nums=DLQ_QUEUE_COUNT, admit=partial(add_topic, room))
    return dead, 0
