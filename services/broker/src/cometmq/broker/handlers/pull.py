# SPDX-License-Identifier: Apache-2.0
"""PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361): read a queue, or wait for it to grow.

Compatibility: the checks are in RocketMQ's order, the remark of an answer is the name of the
store's status. A pull is held once at most; after its wake-up it is answered with what is there.
"""

from collections.abc import Mapping
from typing import Final

from cometmq.broker import refusals
from cometmq.broker.broker import Broker
from cometmq.broker.filters.tags import TagFilter, is_tag_type, tag_codes, tag_filter
from cometmq.broker.handlers.late import answer
from cometmq.broker.hold import HeldPull
from cometmq.broker.messages import MovedQueue, OffsetMoved, moved_event
from cometmq.remoting import remarks
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Call, Reply
from cometmq.remoting.commands.pull import PullMessage, PullMessageReply
from cometmq.remoting.errors import (
    NoPermission,
    ServerError,
    SubscriptionGroupNotExist,
    SubscriptionNotExist,
    SubscriptionNotLatest,
    SubscriptionParseFailed,
    SystemBusy,
    TopicNotExist,
)
from cometmq.remoting.message.flags import Perm, PullSysFlag
from cometmq.store.results import GetResult, GetStatus, PutResult

BROADCASTING: Final = "BROADCASTING"
MASTER_ID: Final = 0

_COMMIT: Final = int(PullSysFlag.COMMIT_OFFSET)
_SUSPEND: Final = int(PullSysFlag.SUSPEND)
_SUBSCRIPTION: Final = int(PullSysFlag.SUBSCRIPTION)
_READ: Final = int(Perm.READ)
_NOT_FOUND: Final = int(ResponseCode.PULL_NOT_FOUND)
_MOVED: Final = int(ResponseCode.PULL_OFFSET_MOVED)

_CODES: Final[Mapping[GetStatus, int]] = {
    GetStatus.FOUND: int(ResponseCode.SUCCESS),
    GetStatus.MESSAGE_WAS_REMOVING: int(ResponseCode.PULL_RETRY_IMMEDIATELY),
    GetStatus.NO_MATCHED_MESSAGE: int(ResponseCode.PULL_RETRY_IMMEDIATELY),
    GetStatus.OFFSET_FOUND_NULL: _NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: _NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: _MOVED,
    GetStatus.OFFSET_TOO_SMALL: _MOVED,
}


def pull_message(broker: Broker, call: Call[PullMessage]) -> Reply | None:
    """Answer with messages, or hold the pull until there are some."""
    return _pull(broker, call, may_hold=True)


def resume(broker: Broker, held: HeldPull) -> None:
    """Answer a pull that was held: its queue has grown, its time is over, or we stop."""
    call = held.call
    if not call.peer.is_open:
        return
    answer(broker, call, lambda: _pull(broker, call, may_hold=False))


def _pull(broker: Broker, call: Call[PullMessage], *, may_hold: bool) -> Reply | None:
    header = call.header
    group = _check(broker, call)
    accept = _filter(broker, call, group)
    result = broker.store.get_messages(
        header.topic,
        header.queue_id,
        header.queue_offset,
        header.max_msg_nums,
        accept=accept,
    )
    if not result.is_cold:
        return _conclude(broker, call, group, result, accept, may_hold=may_hold)
    broker.stats.cold_read_count += 1
    started_ms = broker.clock.monotonic_ms()

    def conclude(loaded: GetResult) -> None:
        waited_ms = broker.clock.monotonic_ms() - started_ms
        broker.stats.count_wait(header.topic, header.consumer_group, waited_ms)
        _conclude_later(broker, call, group, loaded, accept, may_hold=may_hold)

    broker.driver.read(call, result.load, conclude)
    return None


def _check(broker: Broker, call: Call[PullMessage]) -> SubscriptionGroupConfig:
    """Raise why this group may not read this queue."""
    header = call.header
    if not broker.settings.broker_permission & _READ:
        raise NoPermission(remarks.broker_pull_forbidden(broker.host))
    group = broker.group(header.consumer_group)
    if group is None:
        raise SubscriptionGroupNotExist(remarks.pull_group_not_exist(header.consumer_group))
    if not group.consume_enable:
        raise NoPermission(remarks.group_pull_forbidden(header.consumer_group))
    topic = broker.topics.get(header.topic)
    if topic is None:
        raise TopicNotExist(remarks.pull_topic_not_exist(header.topic))
    if not topic.perm & _READ:
        raise NoPermission(remarks.topic_pull_forbidden(header.topic))
    if not 0 <= header.queue_id < topic.read_queue_nums:
        raise ServerError(
            remarks.pull_queue_illegal(
                queue_id=header.queue_id,
                topic=header.topic,
                read_queue_nums=topic.read_queue_nums,
                peer=call.peer.address,
            )
        )
    return group


def _filter(
    broker: Broker, call: Call[PullMessage], group: SubscriptionGroupConfig
) -> TagFilter | None:
    """Return which tags the consumer wants, as it says itself or has registered."""
    header = call.header
    if header.sys_flag & _SUBSCRIPTION:
        if not is_tag_type(header.expression_type):
            raise ServerError(remarks.SQL_REFUSED)
        try:
            return tag_filter(tag_codes(header.subscription))
        except ValueError as error:
            raise SubscriptionParseFailed(remarks.SUBSCRIPTION_PARSE_FAILED) from error
    subscription = _registered(broker, call, group)
    if not is_tag_type(subscription.expression_type):
        raise ServerError(remarks.SQL_REFUSED)
    return subscription_filter(subscription)


def _registered(
    broker: Broker, call: Call[PullMessage], group: SubscriptionGroupConfig
) -> SubscriptionData:
    header = call.header
    consumers = broker.consumers.group(header.consumer_group)
    if consumers is None:
        raise SubscriptionNotExist(remarks.GROUP_INFO_MISSING)
    if consumers.message_model == BROADCASTING and not group.consume_broadcast_enable:
        raise NoPermission(refusals.broadcast_forbidden(header.consumer_group))
    subscription = consumers.subscriptions.get(header.topic)
    if subscription is None:
        raise SubscriptionNotExist(remarks.SUBSCRIPTION_MISSING)
    if subscription.sub_version < header.sub_version:
        raise SubscriptionNotLatest(remarks.SUBSCRIPTION_NOT_LATEST)
    return subscription


def subscription_filter(subscription: SubscriptionData) -> TagFilter | None:
    """Return the filter of a registered subscription: its own hash codes decide."""
    if subscription.class_filter_mode or subscription.sub_string == "*":
        return None
    return tag_filter(frozenset(subscription.code_set))


def _conclude_later(
    broker: Broker,
    call: Call[PullMessage],
    group: SubscriptionGroupConfig,
    result: GetResult,
    accept: TagFilter | None,
    *,
    may_hold: bool,
) -> None:
    """Finish a pull whose messages had to be read from the disk."""
    answer(broker, call, lambda: _conclude(broker, call, group, result, accept, may_hold=may_hold))


def _conclude(
    broker: Broker,
    call: Call[PullMessage],
    group: SubscriptionGroupConfig,
    result: GetResult,
    accept: TagFilter | None,
    *,
    may_hold: bool,
) -> Reply | None:
    """Commit the offset that came along, then answer or hold the pull."""
    header = call.header
    if may_hold and header.sys_flag & _COMMIT and not broker.is_slave:
        broker.offsets.commit(
            header.consumer_group, header.topic, header.queue_id, header.commit_offset
        )
    code = _CODES.get(result.status)
    if code is None:  # an empty queue
        code = _MOVED if header.queue_offset != 0 else _NOT_FOUND
    if code == 0:
        broker.stats.count_get(header.topic, header.consumer_group, result.count, result.bytes)
    else:
        broker.stats.miss_count += 1
        if code == _NOT_FOUND and may_hold and header.sys_flag & _SUSPEND:
            _hold(broker, call, accept)
            return None
        if code == _MOVED and not broker.is_slave:
            _report_moved(broker, call, result)
    return Reply(
        code,
        PullMessageReply(
            _suggested_broker(broker, group, result),
            result.next_offset,
            result.min_offset,
            result.max_offset,
        ),
        result.records,
        result.status.name,
    )


def _hold(broker: Broker, call: Call[PullMessage], accept: TagFilter | None) -> None:
    settings = broker.settings
    wait_ms = (
        call.header.suspend_timeout_millis
        if settings.long_polling_enable
        else settings.short_polling_time_mills
    )
    held = HeldPull(call, broker.clock.monotonic_ms() + wait_ms, accept)
    if broker.is_stopping:
        broker.hold.ready.append(held)
    elif not broker.hold.hold(held, count_max=settings.pull_thread_pool_queue_capacity):
        broker.stats.busy_count += 1
        raise SystemBusy(remarks.rejected(in_flight=broker.hold.count, waited_ms=0))
    broker.stats.held_count += 1


def _suggested_broker(broker: Broker, group: SubscriptionGroupConfig, result: GetResult) -> int:
    if not broker.settings.slave_read_enable:
        return MASTER_ID
    return group.which_broker_when_consume_slowly if result.suggest_slave else group.broker_id


def _report_moved(broker: Broker, call: Call[PullMessage], result: GetResult) -> None:
    """Store an event for operators: a consumer lost messages or is ahead of the queue."""
    header = call.header
    event = OffsetMoved(
        header.consumer_group,
        MovedQueue(broker.settings.broker_name, header.queue_id, header.topic),
        offset_new=result.next_offset,
        offset_request=header.queue_offset,
    )
    message = moved_event(event, host=broker.store_host, now_ms=broker.clock.now_ms())
    broker.driver.put(message, _ignore)


def _ignore(_: PutResult) -> None:
    """The event is for information only: nobody waits for it."""
