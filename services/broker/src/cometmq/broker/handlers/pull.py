# SPDX-License-Identifier: Apache-2.0
"""PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361): read a queue, or hold the pull
until the queue grows.

Compatibility: the checks are in RocketMQ's order, and an answer's remark is the name of the store's
status. A pull is held at most once: after it wakes up, it is answered whether or not it finds a
message. Of ours: a pull whose next message may still be repaired is held, too, and then answered
with the offset that it asked for, so that no consumer skips the message.

The functions are in the order in which a pull passes through them: checks, read, answer, hold, and
the answer to a pull that was held.
"""

from collections.abc import Coroutine, Mapping
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Final

import msgspec

from cometmq.broker.broker import Broker
from cometmq.broker.filters.records import RecordFilter
from cometmq.broker.handlers.client_calls import ask_subscriptions
from cometmq.broker.handlers.deferred_answers import answer, look_up
from cometmq.broker.handlers.pull_filters import MessageFilter, message_filter
from cometmq.broker.hold import HeldPull
from cometmq.broker.messages import MovedQueue, OffsetMoved, moved_event
from cometmq.broker.role import MASTER_ID
from cometmq.broker.statistics.detours import SlowReason
from cometmq.remoting import remarks
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Call, Reply
from cometmq.remoting.commands.pull import PullMessage, PullMessageReply
from cometmq.remoting.errors import (
    CommandError,
    NoPermission,
    ServerError,
    SubscriptionGroupNotExist,
    SubscriptionNotExist,
    TopicNotExist,
)
from cometmq.remoting.message.flags import Perm, PullSysFlag
from cometmq.remoting.transport.flow.budget import LARGE_BYTES
from cometmq.store.reads import Lookup
from cometmq.store.results import GetResult, GetStatus, PutResult

REPAIR_WAIT_MS: Final = 2_000
"""Time for which a pull is held because entries of its queue are being examined: less than the
timeout of any client, which then pulls the same offset again.
"""

_COMMIT: Final = int(PullSysFlag.COMMIT_OFFSET)
_SUSPEND: Final = int(PullSysFlag.SUSPEND)
_READ: Final = int(Perm.READ)
_NOT_FOUND: Final = int(ResponseCode.PULL_NOT_FOUND)
_MOVED: Final = int(ResponseCode.PULL_OFFSET_MOVED)
_RETRY: Final = int(ResponseCode.PULL_RETRY_IMMEDIATELY)

_REMARKS: Final[Mapping[GetStatus, str]] = {status: status.name for status in GetStatus}
_CODES: Final[Mapping[GetStatus, int]] = {
    GetStatus.FOUND: int(ResponseCode.SUCCESS),
    GetStatus.MESSAGE_WAS_REMOVING: int(ResponseCode.PULL_RETRY_IMMEDIATELY),
    GetStatus.NO_MATCHED_MESSAGE: int(ResponseCode.PULL_RETRY_IMMEDIATELY),
    GetStatus.OFFSET_FOUND_NULL: _NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: _NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: _MOVED,
    GetStatus.OFFSET_TOO_SMALL: _MOVED,
}
_CORRECTED: Final = frozenset(
    {
        GetStatus.NO_MESSAGE_IN_QUEUE,
        GetStatus.OFFSET_TOO_SMALL,
        GetStatus.OFFSET_OVERFLOW_ONE,
        GetStatus.OFFSET_OVERFLOW_BADLY,
    }
)
"""Statuses for which a RocketMQ slave answers with the request's own offset."""


class AdmittedPull(msgspec.Struct):
    """A pull that passed the checks, with everything that determines its answer."""

    call: Call[PullMessage]
    group: SubscriptionGroupConfig
    accept: MessageFilter
    is_first: bool
    """True for a pull that has not been held: it commits an offset and may be held."""
    started_s: float


def pull_message(
    broker: Broker, call: Call[PullMessage]
) -> Reply | Coroutine[None, None, Reply | None] | None:
    """Answer with messages, or hold the pull until some arrive."""
    try:
        return _pull(broker, call, is_first=True)
    except SubscriptionNotExist:
        is_known = broker.clients.consumers.group(call.header.consumer_group) is not None
        if is_known or not broker.settings.group_record:
            raise
        return _pull_when_told(broker, call)


async def _pull_when_told(broker: Broker, call: Call[PullMessage]) -> Reply | None:
    """Ask the client for its subscriptions, for lack of a heartbeat; then serve its pull."""
    await ask_subscriptions(broker, call, call.header.consumer_group)
    return _pull(broker, call, is_first=True)


def _pull(broker: Broker, call: Call[PullMessage], *, is_first: bool) -> Reply | None:
    header = call.header
    group = _check(broker, call)
    accept = message_filter(broker, call, group)
    pull = AdmittedPull(call, group, accept, is_first, perf_counter())
    if (
        is_first
        and header.sys_flag & _COMMIT
        and broker.role.is_master
        and not broker.role.is_diverting
    ):
        # Committed before the read, which may wait for the disk, so that later commits win.
        _commit(broker, call)
    if isinstance(accept, RecordFilter):
        if not call.peer.has_room:
            _wait_for_room(broker, pull)
            return None
        # The search takes turns with others, so that a filter never blocks the loop.
        lookup = matching(broker, header, header.queue_offset, header.max_msg_nums, accept)
        if is_first:
            _note(broker, pull, None)
        look_up(broker, call, lookup, partial(_conclude, broker, pull), may_end_early=True)
        return None
    result = broker.store.reader.get_messages(
        header.topic,
        header.queue_id,
        header.queue_offset,
        header.max_msg_nums,
        accept=accept,
        joined=True,
    )
    if is_first:
        _note(broker, pull, result)
    if result.is_cold:
        _load(broker, pull, result)
        return None
    if result.bytes > LARGE_BYTES and not call.peer.has_room:
        _wait_for_room(broker, pull)
        return None
    return _conclude(broker, pull, result)


def _wait_for_room(broker: Broker, pull: AdmittedPull) -> None:
    """Serve a pull again once there is room for its answer."""
    again = partial(_resume, broker, pull.call, _accounts(broker), is_first=pull.is_first)
    pull.call.peer.when_room(again)


def _check(broker: Broker, call: Call[PullMessage]) -> SubscriptionGroupConfig:
    """Return the group's configuration; raise CommandError if the group may not read this queue."""
    header = call.header
    if not broker.settings.broker_permission & _READ:
        raise NoPermission(remarks.broker_pull_forbidden(broker.process.host))
    group = broker.tables.groups.get(header.consumer_group)
    if group is None:
        group = broker.group(header.consumer_group, broker.admission.room(call))
    if group is None:
        raise SubscriptionGroupNotExist(remarks.pull_group_not_exist(header.consumer_group))
    if not group.consume_enable:
        raise NoPermission(remarks.group_pull_forbidden(header.consumer_group))
    topic = broker.tables.topics.get(header.topic)
    if topic is None:
        raise TopicNotExist(remarks.pull_topic_not_exist(header.topic))
    if not topic.perm & _READ:
        raise NoPermission(remarks.topic_pull_forbidden(header.topic))
    if broker.tables.groups.is_forbidden(header.consumer_group, header.topic):
        raise NoPermission(remarks.group_forbidden_for_topic(header.consumer_group, header.topic))
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


def _commit(broker: Broker, call: Call[PullMessage]) -> None:
    """Commit the offset in a pull's header; if the table of offsets is full, ignore it."""
    header, offsets = call.header, broker.tables.offsets
    group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
    if offsets.committed(group, topic, queue_id) == header.commit_offset:
        return
    with suppress(CommandError):
        offsets.commit(group, topic, queue_id, header.commit_offset, broker.admission.room(call))


def matching(
    broker: Broker, header: PullMessage, offset: int, count_max: int, accept: RecordFilter
) -> Lookup[GetResult]:
    return broker.store.reader.find_messages(
        header.topic, header.queue_id, offset, count_max, accept.tester(), block=accept.block
    )


def _load(broker: Broker, pull: AdmittedPull, result: GetResult) -> None:
    """Read records that are not in memory on a thread, then answer the pull."""
    call, header = pull.call, pull.call.header
    broker.stats.cold_read_count += 1
    started_ms = broker.clock.monotonic_ms()
    peer, accounts = call.peer, _accounts(broker)

    def load() -> GetResult | None:
        """Return the records, or None if the peer no longer reads its answers."""
        return None if peer.is_crowded else result.load()

    def loaded(messages: GetResult | None) -> None:
        if messages is None:
            peer.when_room(partial(_resume, broker, call, accounts))
            return
        waited_ms = broker.clock.monotonic_ms() - started_ms
        broker.stats.count_wait(header.topic, header.consumer_group, waited_ms)
        result = broker.store.reader.settled(
            header.topic, header.queue_id, header.queue_offset, messages
        )
        answer(broker, call, lambda: _conclude(broker, pull, result))

    broker.driver.reads.read(call, load, loaded)


def _conclude(broker: Broker, pull: AdmittedPull, result: GetResult) -> Reply | None:
    header = pull.call.header
    code = _CODES.get(result.status)
    if code is None:  # an empty queue
        code = _MOVED if header.queue_offset != 0 else _NOT_FOUND
    if code == 0:
        broker.stats.count_get(header.topic, header.consumer_group, result.count, result.bytes)
    else:
        broker.stats.miss_count += 1
        is_empty = code == _NOT_FOUND and header.sys_flag & _SUSPEND
        if pull.is_first and (is_empty or result.awaits_repair):
            if not pull.call.is_oneway:  # nobody waits for the answer of a oneway pull
                _hold(broker, pull, awaits_repair=result.awaits_repair)
            return None
        if code == _MOVED and broker.role.is_master:
            _report_moved(broker, header, result)
    broker.stats.pull_seconds.observe(perf_counter() - pull.started_s)
    next_offset, suggested = result.next_offset, _suggested_broker(broker, pull.group, result)
    if code != 0 and broker.role.is_slave and not broker.settings.offset_check_in_slave:
        # Compatibility: a slave's log may lag behind, so only the master corrects offsets.
        next_offset = header.queue_offset if result.status in _CORRECTED else next_offset
        if code == _MOVED:
            code, suggested = _RETRY, pull.group.broker_id
    return Reply(
        code,
        PullMessageReply(suggested, next_offset, result.min_offset, result.max_offset),
        result.records,
        _REMARKS[result.status],
    )


def _suggested_broker(broker: Broker, group: SubscriptionGroupConfig, result: GetResult) -> int:
    if not broker.settings.slave_read_enable:
        return MASTER_ID
    return group.which_broker_when_consume_slowly if result.suggest_slave else group.broker_id


def _report_moved(broker: Broker, header: PullMessage, result: GetResult) -> None:
    """Store an event for operators: the consumer's offset was outside the queue.

    Compatibility: RocketMQ stores an event for each such pull, so a consumer without the right to
    send can fill the disk. Here, events are limited per queue and group.
    """
    place = header.consumer_group, header.topic, header.queue_id
    if not broker.clients.moved.may_report(place, broker.clock.monotonic_ms()):
        return
    event = OffsetMoved(
        header.consumer_group,
        MovedQueue(broker.settings.broker_name, header.queue_id, header.topic),
        offset_new=result.next_offset,
        offset_request=header.queue_offset,
    )
    message = moved_event(event, host=broker.process.store_host, now_ms=broker.clock.now_ms())
    broker.driver.put(message, _ignore)


def _ignore(_: PutResult) -> None:
    """Ignore whether the event was stored: no client waits for it."""


def _hold(broker: Broker, pull: AdmittedPull, *, awaits_repair: bool) -> None:
    settings = broker.settings
    if awaits_repair:
        wait_ms = REPAIR_WAIT_MS
    elif settings.long_polling_enable:
        wait_ms = pull.call.header.suspend_timeout_millis
    else:
        wait_ms = settings.short_polling_time_mills
    deadline_ms = broker.clock.monotonic_ms() + wait_ms
    held = HeldPull(
        pull.call, deadline_ms, pull.accept, _accounts(broker), awaits_repair=awaits_repair
    )
    if broker.process.is_stopping:
        broker.pending.hold.ready.append(held)
    else:
        broker.pending.hold.hold(held, count_max=settings.pull_thread_pool_queue_capacity)


def resume(broker: Broker, held: HeldPull) -> None:
    """Answer a held pull: its queue has grown, its time is over, or the broker stops."""
    _resume(broker, held.call, held.accounts)


def _resume(
    broker: Broker, call: Call[PullMessage], accounts: object, *, is_first: bool = False
) -> None:
    """Answer a pull that has waited, once the connection has room for the answer."""
    peer = call.peer
    if not peer.is_open:
        return
    if peer.has_room or peer.has_small_room:
        answer(broker, call, lambda: _pull_again(broker, call, accounts, is_first=is_first))
    else:
        peer.when_room(partial(_resume, broker, call, accounts, is_first=is_first))


def _pull_again(
    broker: Broker, call: Call[PullMessage], accounts: object, *, is_first: bool
) -> Reply | None:
    """Serve a pull that has waited; if the accounts have changed, check its rights again."""
    acl = broker.admission.acl
    if acl is not None and acl.control.accounts is not accounts:
        acl.control.check(broker, call)
    return _pull(broker, call, is_first=is_first)


def _accounts(broker: Broker) -> object:
    acl = broker.admission.acl
    return None if acl is None else acl.control.accounts


def _note(broker: Broker, pull: AdmittedPull, result: GetResult | None) -> None:
    """Let the lane serve later pulls like this one, and count why it could not serve this one.

    `result` is None if the search has not begun.
    """
    if broker.lane is None:
        return
    if result is not None and result.is_cold:
        reason = SlowReason.COLD
    elif result is not None and result.status is not GetStatus.FOUND:
        reason = SlowReason.EMPTY
    elif _is_told(broker, pull.call) or broker.lane.learn_pull(pull.call, pull.group, pull.accept):
        reason = SlowReason.FIRST
    else:
        reason = SlowReason.UNUSUAL
    broker.measured.detours.note(pull.call.code, reason)


def _is_told(broker: Broker, call: Call[PullMessage]) -> bool:
    """Return whether the pull's subscription is known from no heartbeat, only from `told.py`."""
    header = call.header
    has_own = header.sys_flag & PullSysFlag.SUBSCRIPTION
    return not has_own and broker.clients.consumers.group(header.consumer_group) is None
