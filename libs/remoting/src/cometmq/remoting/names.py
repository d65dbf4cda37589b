# SPDX-License-Identifier: Apache-2.0
"""Names that have a meaning in RocketMQ: topics, groups and others, each defined once.

This module only defines the names and checks which are reserved. The broker's `names.py` and the
client's `namespace.py` decide which names a client may use.
"""

from collections.abc import Iterable
from typing import Final

# Prefixes and suffixes

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
REPLY_SUFFIX: Final = "_REPLY_TOPIC"
NAMESPACE_SEPARATOR: Final = "%"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
RESERVED_TOPIC_PREFIX: Final = "RMQ_SYS_"
"""The prefix of transaction and trace topics; brokers reserve only `rmq_sys_`."""
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
DLQ_REPLAY_GROUP: Final = f"{SYSTEM_GROUP_PREFIX}DLQ_REPLAY"
"""The group under which CometMQ's `dlq replay` commits its offsets in dead-letter topics."""
TRACE_PRODUCER_PREFIX: Final = "_INNER_TRACE_PRODUCER"

# Topics

AUTO_CREATE_TOPIC: Final = "TBW102"
"""The topic whose configuration is the template for topics created by sends."""
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
"""The topic in which delayed messages wait, with one queue per delay level."""
WHEEL_TOPIC: Final = "rmq_sys_wheel_timer"
"""The topic in which RocketMQ 5 keeps timer messages."""
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
PARKED_TOPIC: Final = "rmq_sys_PARKED_MESSAGES"
"""CometMQ's topic for messages that a broker acknowledged and later could not store where they
belong; each has properties that say why.
"""
REGION_TRACE_TOPIC_PREFIX: Final = "rmq_sys_TRACE_DATA_"

SYSTEM_TOPICS: Final = frozenset({
    AUTO_CREATE_TOPIC, SCHEDULE_TOPIC, BENCHMARK_TOPIC, HALF_TOPIC, TRACE_TOPIC, OP_HALF_TOPIC,
    CHECK_MAX_TIME_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC,
})  # fmt: skip
SEND_FORBIDDEN_TOPICS: Final = frozenset({
    SCHEDULE_TOPIC, WHEEL_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, CHECK_MAX_TIME_TOPIC, SELF_TEST_TOPIC,
    OFFSET_MOVED_TOPIC, PARKED_TOPIC,
})  # fmt: skip

# Groups

CHECK_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""The group whose offsets mark how far the half and op message queues have been examined."""
SCHEDULE_GROUP: Final = "SCHEDULE_CONSUMER"
"""The group under which brokers keep statistics and offsets of the delay levels."""
TOOLS_GROUP: Final = "TOOLS_CONSUMER"
"""The group with which admin tools consume; every broker has it."""
MONITOR_GROUP: Final = "__MONITOR_CONSUMER"
DEFAULT_CONSUMER_GROUP: Final = "DEFAULT_CONSUMER"
DEFAULT_PRODUCER_GROUP: Final = "DEFAULT_PRODUCER"
INNER_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"
SELF_TEST_PRODUCER_GROUP: Final = "SELF_TEST_P_GROUP"

BOOT_GROUPS: Final = (
    TOOLS_GROUP, "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER",
)  # fmt: skip
"""Groups that every broker has from its first start, in RocketMQ's order."""
CLIENT_GROUPS: Final = frozenset({
    DEFAULT_CONSUMER_GROUP, DEFAULT_PRODUCER_GROUP, MONITOR_GROUP, INNER_PRODUCER_GROUP,
    SELF_TEST_PRODUCER_GROUP,
})  # fmt: skip
"""Groups that clients create for themselves."""

# Other names

DEFAULT_CLUSTER: Final = "DefaultCluster"
DEFAULT_REGION: Final = "DefaultRegion"
ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
"""The name server's key-value namespace with the queues of ordered topics."""
OP_TAG: Final = "d"
"""The tag of op messages, which mark half messages as ended."""
SET_ASIDE: Final = "SET_ASIDE"
"""CometMQ's property of an op message whose half message is set aside, not ended."""
ALL_TAGS: Final = "*"
"""The subscription expression that every message matches."""


def is_system_topic(topic: str) -> bool:
    """Return whether the topic is reserved on every broker."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def is_system_group(group: str) -> bool:
    """Return whether the group exists without being created."""
    return group.startswith(SYSTEM_GROUP_PREFIX)


def retry_topic(group: str) -> str:
    """Return the topic from which a group's failed messages are redelivered."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Return the topic that keeps a group's messages once their retries are exhausted."""
    return DLQ_PREFIX + group


def groups_with(prefix: str, topics: Iterable[str]) -> list[str]:
    """Return the groups whose retry topics, or dead-letter topics, are among these.

    A peer can create a topic with the prefix alone, which belongs to no group.
    """
    found = (it.removeprefix(prefix) for it in topics if it.startswith(prefix))
    return [group for group in found if group]


def reply_topic(cluster: str) -> str:
    """Return the topic in which a cluster keeps the replies to request-reply calls."""
    return cluster + REPLY_SUFFIX
