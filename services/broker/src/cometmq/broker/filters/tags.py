# SPDX-License-Identifier: Apache-2.0
"""Tag expressions: `*`, or tags separated by `||`.

The broker compares hash codes of queue entries only; a client compares the tags themselves.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from cometmq.remoting.message.flags import tag_code

ALL: Final = "*"
EXPRESSION_TYPE: Final = "TAG"

TagFilter: TypeAlias = Callable[[int], bool]


def is_tag_type(expression_type: str | None) -> bool:
    """Return whether an expression selects tags, the default type."""
    return not expression_type or expression_type == EXPRESSION_TYPE


def tag_codes(expression: str | None) -> frozenset[int] | None:
    """Return the hash codes of the selected tags, None for all messages.

    Raises ValueError for an expression without any tag, as RocketMQ's parser does.
    """
    if not expression or expression == ALL:
        return None
    parts = expression.split("||")
    while parts and not parts[-1]:
        parts.pop()  # Java's split drops trailing empty strings
    if not parts:
        raise ValueError("subString split error")
    return frozenset(tag_code(tag) for part in parts if (tag := part.strip()))


def tag_filter(codes: frozenset[int] | None) -> TagFilter | None:
    """Return a test of one entry's tag code; None accepts everything."""
    return None if codes is None else codes.__contains__
