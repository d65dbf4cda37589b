# SPDX-License-Identifier: Apache-2.0
"""Topic and group names: which are legal, reserved or forbidden.

Names become directories and JSON keys, so every name that a client chooses is checked here before
anything is created for it.

Compatibility: topics are checked as in RocketMQ. RocketMQ's broker accepts any group name (only the
Java clients check it), and clients in other languages use names that do not match the Java pattern.
This module therefore refuses a group name only if it is dangerous: if it contains control
characters, path separators, `..` or the separator of offset keys, or is too long.
"""

import re
from typing import Final

from cometmq.remoting import remarks
from cometmq.remoting.errors import ServerError
from cometmq.remoting.names import RETRY_PREFIX

TOPIC_CHARS_MAX: Final = 127  # the record holds the length in one signed byte
GROUP_CHARS_MAX: Final = 255  # the limit of the Java clients
RETRIED_GROUP_CHARS_MAX: Final = TOPIC_CHARS_MAX - len(RETRY_PREFIX)

_TOPIC_LEGAL: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_GROUP_DANGEROUS: Final = re.compile(r"[\x00-\x1f\x7f/\\@\ud800-\udfff]|\.\.")


def check_topic(topic: str) -> None:
    """Raise RocketMQ's error if a topic name is illegal."""
    remark = topic_fault(topic)
    if remark is not None:
        raise ServerError(remark)


def topic_fault(topic: str) -> str | None:
    """Return the remark about an illegal topic name; None if the name is legal."""
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
    """Return the remark about a dangerous group name; None if the name is acceptable."""
    if not group or group.isspace():
        return "the specified group is blank"
    if len(group) > GROUP_CHARS_MAX:
        return f"the specified group is longer than group max length {GROUP_CHARS_MAX}."
    if _GROUP_DANGEROUS.search(group) is not None:
        return "the specified group contains illegal characters"
    return None


def can_retry(group: str) -> bool:
    """Return whether the group's retry topic is short enough, in bytes, to be legal."""
    return len(group.encode("utf-8", "replace")) <= RETRIED_GROUP_CHARS_MAX
