# SPDX-License-Identifier: Apache-2.0
"""Subscriptions to all messages of a topic, to some tags, or to messages that meet an SQL
condition.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Final, Self

import msgspec

from cometmq.client.arguments import check_encodable
from cometmq.client.errors import InvalidArgument
from cometmq.client.shown import shown
from cometmq.client.subscriptions.sql_doubts import doubt_of_condition
from cometmq.client.subscriptions.sql_syntax import read_tokens
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.message.flags import tag_code
from cometmq.remoting.names import ALL_TAGS
from cometmq.remoting.spelling import SpelledFields

_CONDITION: Final = re.compile(
    r"[<>=]|\s(AND|OR|IN|IS|LIKE|BETWEEN|CONTAINS|STARTSWITH|ENDSWITH)\s", re.IGNORECASE
)
_SEPARATOR: Final = re.compile(r"[|,;]|&&")
_WORDS: Final = re.compile(r"[\w-]+(?:\s+or\s+[\w-]+)+", re.IGNORECASE)
_OR: Final = re.compile(r"\s+or\s+", re.IGNORECASE)
_WILDCARDS: Final = re.compile(r"[*?]")


class ExpressionType(StrEnum):
    """The language of a filter."""

    TAG = "TAG"
    """`TagA || TagB`, or `*`."""
    SQL92 = "SQL92"
    """A condition over properties; the broker must have enabled it."""


class MessageSelector(msgspec.Struct, frozen=True, metaclass=SpelledFields):
    """Selects the messages of a topic that a consumer receives; `subscribe` accepts it as an
    expression.
    """

    expression: str = ALL_TAGS
    kind: ExpressionType = ExpressionType.TAG

    @classmethod
    def by_tag(cls, expression: str = ALL_TAGS) -> Self:
        """Select messages with any of the tags in `expression`, such as `A || B`; by default, all
        messages.
        """
        return cls(expression)

    @classmethod
    def by_sql(cls, condition: str) -> Self:
        """Select messages whose properties meet a condition: `price > 5 AND color = 'red'`.

        The broker evaluates the condition; its enablePropertyFilter must be on.
        """
        return cls(condition, ExpressionType.SQL92)


def subscription(
    topic: str,
    expression: str | MessageSelector = ALL_TAGS,
    kind: ExpressionType = ExpressionType.TAG,
    *,
    version_ms: int,
) -> SubscriptionData:
    """Return the subscription to send to brokers, which keep the one with the latest version."""
    if isinstance(expression, MessageSelector):
        kind, expression = expression.kind, expression.expression
    if not isinstance(expression, str):
        raise InvalidArgument(
            "a subscription must be a string such as 'A || B', or a MessageSelector, not "
            f"{shown(expression)}"
        )
    check_encodable(expression, "the expression of a subscription")
    try:
        kind = ExpressionType(kind)
    except ValueError:
        raise InvalidArgument(
            f"the kind of a filter must be TAG or SQL92, not {shown(kind)}"
        ) from None
    if kind is ExpressionType.SQL92:
        if not expression:
            raise InvalidArgument("the SQL92 condition is empty: give one such as 'price > 5'")
        read_tokens(expression)  # raises for a syntax error; a missing topic has no broker to ask
        return SubscriptionData(
            topic=topic, sub_string=expression, expression_type=kind, sub_version=version_ms
        )
    text = expression.strip() or ALL_TAGS
    tags: list[str] = []
    if text != ALL_TAGS:
        tags = list(dict.fromkeys(tag.strip() for tag in text.split("||") if tag.strip()))
        if not tags:
            raise InvalidArgument(
                f"{shown(expression)} contains no tag: write 'A || B', or '*' for all messages"
            )
    return SubscriptionData(
        topic=topic,
        sub_string=text,
        tags_set=tags,
        code_set=list(dict.fromkeys(tag_code(tag) for tag in tags)),
        sub_version=version_ms,
    )


def doubt(wanted: SubscriptionData) -> str:
    """Return why a tag filter probably matches nothing and what to write instead, or "" if it looks
    right.

    Brokers accept any text as a tag, and a condition even if they can parse only its beginning. A
    consumer with such a filter waits forever, or gets other messages, without an error.
    """
    if wanted.expression_type == ExpressionType.SQL92:
        return doubt_of_condition(wanted.sub_string)
    return next(filter(None, map(_doubt_of_tag, _tags(wanted))), "")


def _tags(wanted: SubscriptionData) -> Iterable[str]:
    return wanted.tags_set if wanted.expression_type == ExpressionType.TAG else ()


def _doubt_of_tag(tag: str) -> str:
    literally = f"only messages whose tag is literally {shown(tag)} match"
    if _WORDS.fullmatch(tag):
        return f"{literally}: tags are separated by '||': write {' || '.join(_OR.split(tag))!r}"
    if _CONDITION.search(tag):
        return f"{literally}: for a condition, subscribe with MessageSelector.by_sql({tag!r})"
    if tag == ALL_TAGS:
        return f"{literally}: to receive all messages, write '*' alone"
    if _WILDCARDS.search(tag):
        return (
            f"{literally}: there are no wildcards in tags: list the tags, as in 'A || B', or write "
            "'*' alone for all messages"
        )
    if _SEPARATOR.search(tag):
        parts = [part.strip() for part in _SEPARATOR.split(tag)]
        meant = " || ".join(filter(None, parts)) or "A || B"
        return f"{literally}: tags are separated by '||': write {meant!r}"
    if " " in tag:
        return f"{literally}: tags are separated by '||', as in {' || '.join(tag.split())!r}"
    return ""
