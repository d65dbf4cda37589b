# SPDX-License-Identifier: Apache-2.0
"""Tag expressions: `*`, or tags separated by `||`.

The broker compares only the hash codes in queue entries; a client compares the tags themselves.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from cometmq.remoting.message.flags import java_hash, tag_code
from cometmq.remoting.names import ALL_TAGS

EXPRESSION_TYPE: Final = "TAG"

TagFilter: TypeAlias = Callable[[int], bool]
CODES_MAX: Final = 256
"""Maximum number of codes in a filter that native code evaluates."""
CODE_BYTES: Final = 80
"""Memory of a code in a filter: a request of 60 KB with 11,000 tags makes one of 830 KB."""


def is_tag_type(expression_type: str | None) -> bool:
    """Return whether an expression type selects tags, which is the default."""
    return not expression_type or expression_type == EXPRESSION_TYPE


def tag_filter(expression: str | None) -> TagFilter | None:
    """Return a function that tests an entry's tag code; None accepts all messages.

    Raise ValueError if the expression contains no tag, as RocketMQ's parser does.
    """
    if not expression or expression == ALL_TAGS:
        return None
    parts = expression.split("||")
    while parts and not parts[-1]:
        parts.pop()  # Java's split drops trailing empty strings
    if not parts:
        raise ValueError("subString split error")
    # One request with very many tags would displace the tags of all others from the cache.
    code = tag_code if len(parts) <= CODES_MAX else java_hash
    return frozenset(code(tag) for part in parts if (tag := part.strip())).__contains__


def codes_of(accept: TagFilter) -> frozenset[int]:
    """Return the tag codes that a filter accepts; the filter is the `__contains__` of their set."""
    codes: frozenset[int] = accept.__self__  # type: ignore[attr-defined]  # a bound method
    return codes
