# SPDX-License-Identifier: Apache-2.0
"""Subscriptions to all messages of a topic, to some tags, or by an SQL condition."""

import re
from enum import StrEnum
from itertools import takewhile
from typing import Final, Self

import msgspec

from cometmq.client.arguments import check_encodable
from cometmq.client.errors import InvalidArgument, shown
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.message.flags import tag_code
from cometmq.remoting.names import ALL_TAGS
from cometmq.remoting.spelling import SpelledFields
from cometmq.remoting.sql.errors import SqlError
from cometmq.remoting.sql.lexer import END, Token, tokens

_TAG: Final = re.compile(r"[^\s*?|,;<>=]+")
"""Tags without the signs of a list, a condition or a wildcard, which are probably mistakes."""
_COMMENT: Final = re.compile(r"--[^\n\r]*")
"""A comment at the end, which brokers ignore, although their grammar wants a line end."""


class ExpressionType(StrEnum):
    """The language of a filter."""

    TAG = "TAG"
    """`TagA || TagB`, or `*`."""
    SQL92 = "SQL92"
    """A condition over properties; the broker must have enabled it."""


class MessageSelector(msgspec.Struct, frozen=True, metaclass=SpelledFields):
    """Selects messages of a topic; `subscribe` accepts it as an expression."""

    expression: str = ALL_TAGS
    kind: ExpressionType = ExpressionType.TAG

    @classmethod
    def by_tag(cls, expression: str = ALL_TAGS) -> Self:
        """Select messages with one of the tags, such as `A || B`; by default, all messages."""
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
        _ignored_by_brokers(expression)  # raises; a missing topic has no broker to ask
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
        return _doubt_of_condition(wanted.sub_string)
    for tag in wanted.tags_set:
        if not _TAG.fullmatch(tag):
            return (
                f"only messages whose tag is literally {shown(tag)} match: tags are separated by "
                "'||', as in 'A || B', '*' alone selects all messages, and a condition is a "
                "MessageSelector.by_sql(...)"
            )
    return ""


def _ignored_by_brokers(condition: str) -> Token:
    """Return the first token of a condition that brokers ignore, of kind END if they read all;
    raise InvalidArgument for a syntax error. Values are left to the broker.
    """
    from cometmq.remoting.sql.parser import end_of, parser_of, parsing  # noqa: PLC0415  # 45 ms

    try:
        _, ignored = end_of(parsing(condition, parser_of()))
    except SqlError as error:
        why = " ".join(str(error).partition(": ")[2].split())
        raise InvalidArgument(f"the SQL92 condition {shown(condition)}: {why}") from error
    return ignored


def _doubt_of_condition(condition: str) -> str:
    """Return the probable mistake in a condition; "" if there is none.

    RocketMQ's parser ends an expression at the first token that cannot continue it, and ignores the
    rest without an error.
    """
    ignored = _ignored_by_brokers(condition)
    if ignored.kind != END and not _COMMENT.fullmatch(condition, ignored.start):
        return (
            f"brokers ignore everything from {ignored.image!r} on: join conditions by AND or OR; "
            "there are no functions, calculations or LIKE (write CONTAINS)"
        )
    read = [*takewhile(lambda one: one.start < ignored.start, tokens(condition))]
    for left, operator, right in zip(read, read[1:], read[2:], strict=False):
        if operator.kind in ("EQUAL", "UNEQUAL") and left.kind == right.kind == "ID":
            return (
                f"{right.image} is a property here, and two missing properties are equal: for the "
                f"text, write {left.image} {operator.image} '{right.image}'"
            )
    return ""
