# SPDX-License-Identifier: Apache-2.0
"""Determines the kind of a topic from its name."""

from typing import Final

from cometmq.remoting import names

SYSTEM_TOPICS: Final = names.SYSTEM_TOPICS | {names.reply_topic(names.DEFAULT_CLUSTER)}
SYSTEM_PREFIXES: Final = (names.SYSTEM_TOPIC_PREFIX, names.RESERVED_TOPIC_PREFIX)

_KINDS: Final = {
    names.SCHEDULE_TOPIC: "SCHEDULE",
    names.HALF_TOPIC: "HALF",
    names.OP_HALF_TOPIC: "OP",
}


def topic_kind(topic: str) -> str:
    """Classify a topic: NORMAL, RETRY, DLQ, SCHEDULE, HALF, OP or SYSTEM."""
    if topic.startswith(names.RETRY_PREFIX):
        return "RETRY"
    if topic.startswith(names.DLQ_PREFIX):
        return "DLQ"
    if topic in _KINDS:
        return _KINDS[topic]
    is_system = topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIXES)
    return "SYSTEM" if is_system else "NORMAL"
