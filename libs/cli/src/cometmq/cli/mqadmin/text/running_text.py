# SPDX-License-Identifier: Apache-2.0
"""The running state of consumers as mqadmin prints it, and the problems found in it."""

from collections.abc import Iterator, Mapping
from typing import Final

from cometmq.cli.mqadmin.text import java_text
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.running_info import ConsumerRunningInfo, ProcessQueueInfo
from cometmq.remoting.integers import whole

SETTLING_MS: Final = 120_000
"""Subscriptions of a group may differ for this long while a new version is rolled out."""
BLOCKED_MS: Final = 60_000

_QUEUE_FIELDS: Final = (
    "commitOffset", "cachedMsgMinOffset", "cachedMsgMaxOffset", "cachedMsgCount",
    "cachedMsgSizeInMiB", "transactionMsgMinOffset", "transactionMsgMaxOffset",
    "transactionMsgCount", "locked", "tryUnlockTimes", "lastLockTimestamp", "droped",
    "lastPullTimestamp", "lastConsumeTimestamp",
)  # fmt: skip
_RATES_HEADING: Final = "%-64s  %14s %14s %14s %14s %18s %25s" % (  # noqa: UP031  # columns
    "#Topic", "#Pull RT", "#Pull TPS", "#Consume RT", "#ConsumeOK TPS", "#ConsumeFailed TPS",
    "#ConsumeFailedMsgsInHour",
)  # fmt: skip


def described(info: ConsumerRunningInfo) -> str:
    """Return the running state of a consumer as RocketMQ's `formatString` does."""
    sections = [
        ("#Consumer Properties#", [f"{k:<40}: {v}" for k, v in info.properties.items()]),
        ("#Consumer Subscription#", list(_subscriptions(info))),
        ("#Consumer Offset#", list(_offsets(info))),
        ("#Consumer MQ Detail#", list(_queues(info))),
        ("#Consumer RT&TPS#", list(_rates(info))),
    ]
    if info.jstack is not None:
        sections.append(("#Consumer jstack#", [info.jstack]))
    return "\n\n".join("\n".join((title, *lines, "")) for title, lines in sections)


def _subscriptions(info: ConsumerRunningInfo) -> Iterator[str]:
    for number, wanted in enumerate(info.subscription_set, 1):
        yield (
            f"{number:03} Topic: {wanted.topic:<40} "
            f"ClassFilter: {java_text.word(wanted.class_filter_mode):<8} "
            f"SubExpression: {wanted.sub_string}"
        )


def _place(queue: MessageQueue) -> str:
    return f"{queue.topic:<64}  {queue.broker_name:<32}  {queue.queue_id:<4}"


def _offsets(info: ConsumerRunningInfo) -> Iterator[str]:
    yield f"{'#Topic':<64}  {'#Broker Name':<32}  {'#QID':<4}  #Consumer Offset"
    for queue, state in sorted(info.mq_table.items()):
        yield f"{_place(queue)}  {state.commit_offset}"


def _queues(info: ConsumerRunningInfo) -> Iterator[str]:
    yield f"{'#Topic':<64}  {'#Broker Name':<32}  {'#QID':<4}  #ProcessQueueInfo"
    for queue, state in sorted(info.mq_table.items()):
        pairs = [
            (name, java_text.moment(value) if name.endswith("Timestamp") else value)
            for name, value in java_text.fields(state, _QUEUE_FIELDS)
        ]
        yield f"{_place(queue)}  {java_text.bracketed('ProcessQueueInfo', pairs)}"


def _rates(info: ConsumerRunningInfo) -> Iterator[str]:
    yield _RATES_HEADING
    for topic, found in info.status_table.items():
        yield (
            f"{topic:<64}  {found.pull_rt:14.2f} {found.pull_tps:14.2f} {found.consume_rt:14.2f} "
            f"{found.consume_ok_tps:14.2f} {found.consume_failed_tps:18.2f} "
            f"{found.consume_failed_msgs:25}"
        )


# -- problems ---------------------------------------------------------------------------------


def is_same_subscription(infos: Mapping[str, ConsumerRunningInfo], *, now_ms: int) -> bool:
    """Return whether the members' subscriptions are equal, or may differ because of a rollout."""
    wanted = []
    for info in infos.values():
        started_ms = whole(info.properties.get("PROP_CONSUMER_START_TIMESTAMP", "")) or 0
        if not _is_push(info) or now_ms - started_ms <= SETTLING_MS:
            return True
        wanted.append({(s.topic, s.sub_string, s.expression_type) for s in info.subscription_set})
    return all(found and found == wanted[0] for found in wanted)


def troubles(client_id: str, info: ConsumerRunningInfo, *, now_ms: int) -> Iterator[str]:
    """Yield problems in the queues of a member: not locked, not released, blocked."""
    if not _is_push(info):
        return
    is_orderly = info.properties.get("PROP_CONSUMEORDERLY", "false") == "true"
    for queue, state in sorted(info.mq_table.items()):
        trouble = _order_trouble(state, now_ms) if is_orderly else _trouble(state, now_ms)
        if trouble:
            yield f"{client_id} {java_text.queue(queue)} {trouble}"


def _is_push(info: ConsumerRunningInfo) -> bool:
    return info.properties.get("PROP_CONSUME_TYPE") == "CONSUME_PASSIVELY"


def _order_trouble(state: ProcessQueueInfo, now_ms: int) -> str:
    if not state.locked:
        return f"can't lock for a while, {now_ms - state.last_lock_timestamp}ms"
    if state.droped and state.try_unlock_times > 0:
        return f"unlock {state.try_unlock_times} times, still failed"
    return ""


def _trouble(state: ProcessQueueInfo, now_ms: int) -> str:
    idle_ms = now_ms - state.last_consume_timestamp
    if idle_ms > BLOCKED_MS and state.cached_msg_count > 0:
        return f"can't consume for a while, maybe blocked, {idle_ms}ms"
    return ""
