# SPDX-License-Identifier: Apache-2.0
"""Subscriptions to all messages of a topic, to some tags, or to messages that meet an SQL
condition.
"""

import re
from collections.abc import Iterable, Mapping
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
from cometmq.remoting.sql.lexer import END, LATER_KEYWORDS, SYMBOLS, Token, place, tokens

_CONDITION: Final = re.compile(
    r"[<>=]|\s(AND|OR|IN|IS|LIKE|BETWEEN|CONTAINS|STARTSWITH|ENDSWITH)\s", re.IGNORECASE
)
_SEPARATOR: Final = re.compile(r"[|,;]|&&")
_WORDS: Final = re.compile(r"[\w-]+(?:\s+or\s+[\w-]+)+", re.IGNORECASE)
_OR: Final = re.compile(r"\s+or\s+", re.IGNORECASE)
_WILDCARDS: Final = re.compile(r"[*?]")
_COMPARING: Final = (
    {"IN", "IS", "BETWEEN"} | LATER_KEYWORDS | set(SYMBOLS.values())
) - {"LPAR", "COMMA", "RPAR", "PLUS", "MINUS"}  # fmt: skip

_COMMENT: Final = re.compile(r"--[^\n\r]*")
"""A comment at the end of the condition, which brokers ignore although their grammar requires a
line end after it.
"""
_FOREIGN: Final[Mapping[str, str]] = {
    "'": "this text has no closing quote; a quote inside a text is written twice, ''",
    '"': "write texts in single quotes",
    "`": "write the name of a property without quotes",
    "/*": "this comment has no closing */",
    "!=": "for unequal, write <>",
    "!": "write NOT",
    "&": "write AND",
    "|": "write OR",
    "*": "conditions do not calculate, and there are no wildcards",
    "/": "conditions do not calculate",
    "%": "conditions do not calculate, and there are no wildcards",
}
"""Corrections for text that begins no token; the first match counts."""


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


def _ignored_by_brokers(condition: str) -> Token:
    """Return the first token of a condition that brokers ignore, of kind END if they read all;
    raise InvalidArgument for a syntax error. Values are left to the broker.
    """
    from cometmq.remoting.sql.parser import end_of, parser_of, parsing  # noqa: PLC0415  # 45 ms

    try:
        _, ignored = end_of(parsing(condition, parser_of()))
    except SqlError as error:
        why, at = " ".join(str(error).partition(": ")[2].split()), error.start
        if at is not None:
            advice = [text for sign, text in _FOREIGN.items() if condition.startswith(sign, at)]
            why = f"{advice[0]} ({place(condition, at)})" if advice else why
        raise InvalidArgument(f"the SQL92 condition {shown(condition)}: {why}") from error
    return ignored


def _doubt_of_condition(condition: str) -> str:
    """Return the probable mistake in a condition, and what to write instead; "" if there is none.

    RocketMQ's parser ends an expression at the first token that cannot continue it, and ignores the
    rest without an error.
    """
    ignored = _ignored_by_brokers(condition)
    read = [*takewhile(lambda one: one.start < ignored.start, tokens(condition))]
    if ignored.kind != END and not _COMMENT.fullmatch(condition, ignored.start):
        return _doubt_of_end(ignored)
    for left, operator, right in zip(read, read[1:], read[2:], strict=False):
        if operator.kind in ("EQUAL", "UNEQUAL") and left.kind == right.kind == "ID":
            name, symbol = left.image, operator.image
            return (
                f"{right.image} is a property here, and two missing properties are equal: for the "
                f"text, write {name} {symbol} '{right.image}'"
            )
    if not any(token.kind in _COMPARING for token in read):
        alone = next((token.image for token in read if token.kind == "ID"), "")
        return f"a property alone is never true: write {alone} = TRUE" if alone else ""
    return ""


def _doubt_of_end(ignored: Token) -> str:
    if ignored.image.upper() == "LIKE":
        return "LIKE does not exist: write STARTSWITH, ENDSWITH or CONTAINS"
    advice = "join conditions by AND or OR"
    if ignored.kind in ("PLUS", "MINUS"):
        advice = "conditions do not calculate: compare with the result"
    elif ignored.kind == "LPAR":
        advice = "functions do not exist, and conditions are joined by AND or OR"
    elif ignored.kind == "RPAR":
        advice = "no '(' belongs to it"
    return f"brokers ignore everything from {ignored.image!r} on: {advice}"
