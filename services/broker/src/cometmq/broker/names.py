# SPDX-License-Identifier: Apache-2.0
"""Names of topics and groups: legal, reserved and forbidden ones.

Names become directories and JSON keys, so every name that a client chooses is checked here before
anything is created for it.

Compatibility: topics are checked as RocketMQ checks them. RocketMQ's broker takes any group name
(only the Java clients check it), and clients of other languages use names outside the Java pattern.
So this module refuses only dangerous ones: control characters, path separators, `..`, the separator
of offset keys, and names that are too long.
"""

import re
from typing import Final

from cometmq.remoting import remarks
from cometmq.remoting.errors import ServerError

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
REPLY_SUFFIX: Final = "_REPLY_TOPIC"

AUTO_CREATE_TOPIC: Final = "TBW102"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"

SYSTEM_TOPICS: Final = frozenset({
    AUTO_CREATE_TOPIC, SCHEDULE_TOPIC, BENCHMARK_TOPIC, HALF_TOPIC, TRACE_TOPIC, OP_HALF_TOPIC,
    CHECK_MAX_TIME_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC,
})  # fmt: skip
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"

SEND_FORBIDDEN_TOPICS: Final = frozenset({
    SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, CHECK_MAX_TIME_TOPIC, SELF_TEST_TOPIC,
    OFFSET_MOVED_TOPIC,
})  # fmt: skip

CHECK_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""Its committed offsets are how far the queues of half and op messages are examined."""
TOOLS_GROUP: Final = "TOOLS_CONSUMER"
SCHEDULE_GROUP: Final = "SCHEDULE_CONSUMER"  # statistics count deliveries after a delay under it
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
BOOT_GROUPS: Final = (
    TOOLS_GROUP, "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER",
)  # fmt: skip

TOPIC_CHARS_MAX: Final = 127  # the record holds the length in one signed byte
GROUP_CHARS_MAX: Final = 255  # the limit of the Java clients
RETRIED_GROUP_CHARS_MAX: Final = TOPIC_CHARS_MAX - len(RETRY_PREFIX)

_TOPIC_LEGAL: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_GROUP_DANGEROUS: Final = re.compile(r"[\x00-\x1f\x7f/\\@\ud800-\udfff]|\.\.")


def retry_topic(group: str) -> str:
    """Return the topic that holds a group's messages to retry."""
    return RETRY_PREFIX + group


def check_topic(topic: str) -> None:
    """Raise RocketMQ's answer to an illegal topic name."""
    remark = topic_fault(topic)
    if remark is not None:
        raise ServerError(remark)


def topic_fault(topic: str) -> str | None:
    """Return the remark about an illegal topic name, None for a legal one."""
    if not topic or topic.isspace():
        return remarks.TOPIC_BLANK
    if _TOPIC_LEGAL.fullmatch(topic) is None:
        return remarks.TOPIC_ILLEGAL
    if len(topic) > TOPIC_CHARS_MAX:
        return remarks.TOPIC_TOO_LONG
    return None


def check_group(group: str) -> None:
    remark = group_fault(group)
    if remark is not None:
        raise ServerError(remark)


def group_fault(group: str) -> str | None:
    """Return the remark about a dangerous group name, None for an acceptable one."""
    if not group or group.isspace():
        return "the specified group is blank"
    if len(group) > GROUP_CHARS_MAX:
        return f"the specified group is longer than group max length {GROUP_CHARS_MAX}."
    if _GROUP_DANGEROUS.search(group) is not None:
        return "the specified group contains illegal characters"
    return None


def can_retry(group: str) -> bool:
    """Return whether the group's retry topic has a legal length in bytes."""
    return len(group.encode()) <= RETRIED_GROUP_CHARS_MAX


def is_system_topic(topic: str) -> bool:
    """Return whether every broker reserves the topic."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def is_system_group(group: str) -> bool:
    """Return whether the group exists without being created."""
    return group.startswith(SYSTEM_GROUP_PREFIX)
