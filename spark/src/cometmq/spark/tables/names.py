# SPDX-License-Identifier: Apache-2.0
"""Names of topics and groups that RocketMQ reserves, and the kind of a topic."""

from typing import Final

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
SCHEDULE_GROUP: Final = "SCHEDULE_CONSUMER"
"""Brokers keep the positions of delay levels as offsets of this group."""
TEMPLATE_TOPIC: Final = "TBW102"
"""Brokers create a missing topic like this one, if it exists."""
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
SYSTEM_TOPICS: Final = frozenset(
    {
        "BenchmarkTest",
        "DefaultCluster_REPLY_TOPIC",
        "OFFSET_MOVED_EVENT",
        "SELF_TEST_TOPIC",
        TEMPLATE_TOPIC,
        "TRANS_CHECK_MAX_TIME_TOPIC",
    }
)
SYSTEM_PREFIX: Final = "RMQ_SYS_"

_KINDS: Final = {SCHEDULE_TOPIC: "SCHEDULE", HALF_TOPIC: "HALF", OP_TOPIC: "OP"}


def topic_kind(topic: str) -> str:
    """Classify a topic: NORMAL, RETRY, DLQ, SCHEDULE, HALF, OP or SYSTEM."""
    if topic.startswith(RETRY_PREFIX):
        return "RETRY"
    if topic.startswith(DLQ_PREFIX):
        return "DLQ"
    if topic in SYSTEM_TOPICS or (topic.startswith(SYSTEM_PREFIX) and topic not in _KINDS):
        return "SYSTEM"
    return _KINDS.get(topic, "NORMAL")
