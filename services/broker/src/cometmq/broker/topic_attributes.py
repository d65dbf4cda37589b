# SPDX-License-Identifier: Apache-2.0
"""Attributes of topics, which clients of RocketMQ 5 change by `+key=value,-key` (17); pure.

Compatibility: the attributes, their values, the checks and the remarks are those of 5.5. Unlike it,
this broker refuses BatchCQ and COMPACTION, because it has neither batch queues nor compaction.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from cometmq.remoting.errors import InvalidParameter, ServerError

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")


class _Attribute(NamedTuple):
    """The values of an attribute, and whether it may change after the topic's creation."""

    values: tuple[str, ...] | range
    is_changeable: bool = True


MESSAGE_TYPE: Final = "message.type"
ATTRIBUTES: Final = {
    "queue.type": _Attribute(("SimpleCQ", "BatchCQ"), is_changeable=False),
    "cleanup.policy": _Attribute(("DELETE", "COMPACTION"), is_changeable=False),
    MESSAGE_TYPE: _Attribute(
        (*("UNSPECIFIED", "MIXED", "TRANSACTION", "PRIORITY"), *("FIFO", "DELAY", "LITE", "NORMAL"))
    ),
    "reserve.time": _Attribute(range(-1, 1 << 63)),
    "lite.topic.expiration": _Attribute(range(-1, 43_201)),
}
_MISSING: Final = {("queue.type", "BatchCQ"), ("cleanup.policy", "COMPACTION")}


def changed(current: Mapping[str, str] | None, changes: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes after changes, by signed keys; `current` is None for a new topic.

    Raise ServerError or InvalidParameter for a change that RocketMQ 5.5 refuses.
    """
    if changes.get(f"+{MESSAGE_TYPE}") == "MIXED":
        raise InvalidParameter("MIXED message type is not supported.")
    for sign_and_key in changes:
        _check_name(sign_and_key, changes, current)
    is_new, attributes = current is None, dict(current or {})
    for sign_and_key, value in changes.items():
        key = sign_and_key[1:]
        _check_value(key, value if sign_and_key[0] == "+" else None, is_new=is_new)
        if sign_and_key[0] == "+":
            attributes[key] = value
        else:
            del attributes[key]
    return dict(sorted(attributes.items()))


def parse_changes(text: str) -> dict[str, str]:
    """Return values by signed keys; the value of a key to delete is empty. Raise ServerError."""
    changes: dict[str, str] = {}
    for part in text.rstrip(",").split(",") if text.strip(",") else ():
        key, is_pair, rest = part.partition("=")
        value = rest.partition("=")[0]
        if is_pair and "+" not in key:
            raise ServerError(f"add/alter attribute format is wrong: {key}")
        if is_pair and not rest.strip("="):
            raise ServerError(f"the attribute {key[1:]} has no value")
        if not is_pair and "-" not in key:
            raise ServerError(f"delete attribute format is wrong: {key}")
        if key in changes:
            raise ServerError(f"key duplication: {key}")
        changes[key] = value
    return changes


def _check_name(
    sign_and_key: str, changes: Mapping[str, str], current: Mapping[str, str] | None
) -> None:
    sign, key = sign_and_key[:1], sign_and_key[1:]
    if sign not in {"+", "-"} or not key or "+" in key or "-" in key:
        raise ServerError("kv string format wrong.")
    if f"+{key}" in changes and f"-{key}" in changes and key in (current or {}):
        raise ServerError(f"alter duplication key. key: {key}")
    if sign == "-" and current is None:
        raise ServerError(f"only add attribute is supported while creating topic. key: {key}")
    if sign == "-" and key not in (current or {}):
        raise ServerError(f"attempt to delete a nonexistent key: {key}")


def _check_value(key: str, value: str | None, *, is_new: bool) -> None:
    attribute = ATTRIBUTES.get(key)
    if attribute is None:
        raise ServerError(f"unsupported key: {key}")
    if not (is_new or attribute.is_changeable):
        raise ServerError(f"attempt to update an unchangeable attribute. key: {key}")
    if value is None:
        return
    values = attribute.values
    if not isinstance(values, range):
        if value not in values:
            raise ServerError(f"value is not in set: [{', '.join(values)}]")
    elif not _INTEGER.fullmatch(value):
        raise ServerError(f'For input string: "{value}"')
    elif int(value) not in values:
        raise ServerError(f"value is not in range({values.start}, {values.stop - 1})")
    if (key, value) in _MISSING:
        raise ServerError(f"this broker does not support {key}={value}")
