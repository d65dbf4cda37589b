# SPDX-License-Identifier: Apache-2.0
"""Finds probable mistakes in SQL92 conditions that brokers accept (pure functions).

RocketMQ's parser ends an expression at the first token that cannot continue it, and ignores the
rest without an error.
"""

import re
from typing import Final

from cometmq.client.subscriptions.sql_syntax import read_tokens
from cometmq.remoting.sql.lexer import END, LATER_KEYWORDS, SYMBOLS, Token

_COMPARING: Final = (
    {"IN", "IS", "BETWEEN"} | LATER_KEYWORDS | set(SYMBOLS.values())
) - {"LPAR", "COMMA", "RPAR", "PLUS", "MINUS"}  # fmt: skip

_COMMENT: Final = re.compile(r"--[^\n\r]*")
"""A comment at the end of the condition, which brokers ignore although their grammar requires a
line end after it.
"""


def doubt_of_condition(condition: str) -> str:
    """Return the probable mistake in a condition, and what to write instead; "" if there is none.

    Raise InvalidArgument for a syntax error.
    """
    read, ignored = read_tokens(condition)
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
