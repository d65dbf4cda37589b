# SPDX-License-Identifier: Apache-2.0
"""Remarks for refused requests, in RocketMQ's words; they contain values of this broker."""

from collections.abc import Collection
from datetime import UTC, datetime

from cometmq.broker.names import RETRIED_GROUP_CHARS_MAX
from cometmq.remoting import remarks
from cometmq.remoting.bodies.topic_config import TopicConfig
from cometmq.remoting.message.flags import Perm
from cometmq.store.results import PutStatus
from cometmq.store.writing.write_state import Refusal

BATCH_TIMED = (
    "the messages of a batch cannot have a delivery time (TIMER_DELIVER_MS, TIMER_DELAY_MS or "
    "TIMER_DELAY_SEC): send them one by one"
)


def timer_no_number(name: str, value: str, digits_max: int) -> str:
    return (
        f"timer message illegal, {name} must be a number of at most {digits_max} digits, "
        f"not {value[:40]!r}"
    )


def timer_too_far(
    name: str, value: str, *, delay_ms: int, delay_ms_max: int, levels_max: int
) -> str:
    return (
        "timer message illegal, the delay time should not be bigger than the max delay "
        f"{delay_ms_max}ms (timerMaxDelaySec, and {levels_max} times the longest level "
        f"of messageDelayLevel): {name} is {value}, which is {delay_ms}ms from now"
    )


def transaction_forbidden(host: str) -> str:
    return f"the broker[{host}] sending transaction message is forbidden"


def before_start(start_ms: int) -> str:
    moment = datetime.fromtimestamp(start_ms / 1000, UTC).astimezone()
    return f"broker unable to service, until {moment:%Y-%m-%d %H:%M:%S},{start_ms % 1000:03d}"


def topic_send_forbidden(topic: str) -> str:
    """Return the remark for a sent-back message whose retry topic accepts no messages."""
    return f"the topic[{topic}] sending message is forbidden"


def retry_topic_too_long(group: str) -> str:
    """Return the remark for a message that a group with a long name sends back."""
    length = len(group.encode("utf-8", "replace"))
    return (
        f"{PutStatus.MESSAGE_ILLEGAL.name}: the group's name has {length} bytes, but only groups"
        f" with at most {RETRIED_GROUP_CHARS_MAX} have a retry topic; use a shorter name"
    )


def broadcast_forbidden(group: str) -> str:
    return f"the consumer group[{group}] can not consume by broadcast way"


def queue_illegal(queue_id: int, topic: TopicConfig, peer: str) -> str:
    return remarks.send_queue_illegal(queue_id, describe(topic), peer)


def describe(topic: TopicConfig) -> str:
    """Return a topic's configuration as RocketMQ prints it."""
    return (
        f"TopicConfig [topicName={topic.topic_name}, readQueueNums={topic.read_queue_nums}, "
        f"writeQueueNums={topic.write_queue_nums}, perm={permission(topic.perm)}, "
        f"topicFilterType={topic.topic_filter_type}, topicSysFlag={topic.topic_sys_flag}, "
        f"order={'true' if topic.order else 'false'}]"
    )


def permission(perm: int) -> str:
    """Format permission bits as a string: read, write, inherit."""
    bits = ((Perm.READ, "R"), (Perm.WRITE, "W"), (Perm.INHERIT, "X"))
    return "".join(letter if perm & bit else "-" for bit, letter in bits)


def too_few_copies(min_in_sync: int) -> str:
    return (
        f"service not available now: fewer copies of this broker are in sync than minInSync="
        f"{min_in_sync}; send to another broker, or repair the slaves"
    )


def not_the_master(group: str, role: str) -> str:
    """Return the remark of a group member that is not the master."""
    return (
        f"service not available now: {remarks.NOT_THE_MASTER} the group {group}, it is"
        f" {role}: an election or a switchover is under way, or another broker is the master; try"
        " again"
    )


def store_refuses(broker_name: str, reasons: Collection[str], used_percent: int) -> str:
    """Return the remark of a store that refuses messages for a reason other than its role.

    Compatibility: RocketMQ's remark lists all possible reasons. Clients look only at the code.
    """
    place = f"service not available now: broker {broker_name}"
    if Refusal.DISK_FULL in reasons:
        return (
            f"{place} has a full disk ({used_percent} % used); it will accept messages again once"
            " space is freed"
        )
    return (
        f"{place} accepts no messages: {', '.join(sorted(reasons))} (disk {used_percent} % used);"
        " look at its log"
    )


def service_not_available(used_ratio: float) -> str:
    usage = f"CL: {used_ratio:5.2f} CQ: {used_ratio:5.2f} INDEX: {used_ratio:5.2f}"
    return (
        "service not available now. It may be caused by one of the following reasons: "
        f"the broker's disk is full [{usage}], messages are put to the slave, "
        "message store has been shut down, etc."
    )
