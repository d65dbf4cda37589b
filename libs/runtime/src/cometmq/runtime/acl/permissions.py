# SPDX-License-Identifier: Apache-2.0
"""Rights: PUB allows sending to a topic, SUB allows consuming it or joining a group."""

from collections.abc import Iterable
from enum import IntFlag
from typing import Final

from cometmq.remoting.names import RETRY_PREFIX, retry_topic
from cometmq.runtime.acl.errors import AclError, wrong_permission, wrong_resource


class Right(IntFlag):
    """A right, with RocketMQ's numeric value."""

    DENY = 1
    PUB = 4
    SUB = 8


_RIGHTS: Final = {
    "PUB": Right.PUB,
    "SUB": Right.SUB,
    "PUB|SUB": Right.PUB | Right.SUB,
    "SUB|PUB": Right.PUB | Right.SUB,
    "DENY": Right.DENY,
}

RIGHT_WORDS: Final = tuple(_RIGHTS)
"""The words of rights; any other word means DENY, as in RocketMQ."""


def parse_right(text: str | None) -> Right:
    """Return the right; a missing or unknown value means DENY."""
    return _RIGHTS.get((text or "").strip(), Right.DENY)


def parse_resources(texts: Iterable[str], *, is_group: bool) -> dict[str, Right]:
    """Parse `NAME=RIGHT` strings; a group's key is its retry topic. Raise AclError."""
    rights = {}
    for text in texts:
        items = _items(text)
        if len(items) != 2:
            kind = "group" if is_group else "topic"
            raise AclError(f"Parse resource permission failed for {kind}:{text}")
        name = items[0].strip()
        rights[retry_topic(name) if is_group else name] = parse_right(items[1])
    return rights


def check_resources(texts: Iterable[str]) -> None:
    """Raise AclError if a string in a request does not have the form `NAME=RIGHT`."""
    for text in texts:
        items = _items(text)
        if len(items) != 2:
            raise AclError(wrong_resource(text))
        if items[1].strip() not in _RIGHTS:
            raise AclError(wrong_permission(text))


def resource_word(text: str) -> str | None:
    """Return RIGHT from a `NAME=RIGHT` string, or None if the string has a different form."""
    items = _items(text)
    return items[1].strip() if len(items) == 2 else None


def resource_text(resource: str) -> str:
    """Return a topic or group in the form used in error messages."""
    if resource.startswith(RETRY_PREFIX):
        return f"group:{resource.removeprefix(RETRY_PREFIX)}"
    return f"topic:{resource}"


def _items(text: str) -> list[str]:
    return [item for item in text.split("=") if item]
