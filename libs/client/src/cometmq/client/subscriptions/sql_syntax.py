# SPDX-License-Identifier: Apache-2.0
"""Finds where brokers stop reading an SQL92 condition, and where they find a syntax error (pure
functions).

This is a table-driven recognizer, not a full parser: it builds no tree and does not interpret
values. A test of the broker shows that it agrees with the broker's grammar.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from cometmq.client.errors import InvalidArgument
from cometmq.client.shown import shown
from cometmq.remoting.sql.errors import SqlError
from cometmq.remoting.sql.lexer import END, LATER_KEYWORDS, Token, place, tokens


class _State(Enum):
    """The kind of token that must or may follow."""

    OPERAND = auto()
    OPERATOR = auto()
    AFTER_NULL_TEST = auto()
    AFTER_LOW = auto()
    """After the lower bound of BETWEEN."""
    NOT = auto()
    """After a NOT between operands."""
    IS = auto()
    IS_NOT = auto()
    TEXT = auto()
    IN = auto()
    IN_TEXT = auto()
    IN_COMMA = auto()


_EXPECTED: Final[Mapping[_State, str]] = {
    _State.OPERAND: "a property or a value",
    _State.OPERATOR: "an operator or ')'",
    _State.AFTER_NULL_TEST: "AND, OR or ')'",
    _State.AFTER_LOW: "AND and the upper bound",
    _State.NOT: "BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH",
    _State.IS: "NULL or NOT NULL",
    _State.IS_NOT: "NULL",
    _State.TEXT: "a text in single quotes",
    _State.IN: "'(' and texts",
    _State.IN_TEXT: "a text in single quotes",
    _State.IN_COMMA: "',' or ')'",
}

_OPERANDS: Final = (
    "DECIMAL_LITERAL", "FLOATING_POINT_LITERAL", "STRING_LITERAL", "TRUE", "FALSE", "NULL", "ID",
)  # fmt: skip
_JOINS: Final = dict.fromkeys(("EQUAL", "UNEQUAL", "AND", "OR"), _State.OPERAND)
_ORDERS: Final = ("GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL")
_SEARCHES: Final = {
    **dict.fromkeys(LATER_KEYWORDS, _State.TEXT), "BETWEEN": _State.OPERAND, "IN": _State.IN,
}  # fmt: skip

_NEXT: Final[Mapping[_State, Mapping[str, _State]]] = {
    _State.OPERAND: {
        **dict.fromkeys(("PLUS", "MINUS", "NOT", "LPAR"), _State.OPERAND),
        **dict.fromkeys(_OPERANDS, _State.OPERATOR),
    },
    _State.OPERATOR: {
        **_JOINS, **_SEARCHES, **dict.fromkeys(_ORDERS, _State.OPERAND), "NOT": _State.NOT,
        "IS": _State.IS, "RPAR": _State.OPERATOR,
    },
    _State.AFTER_NULL_TEST: {**_JOINS, "IS": _State.IS, "RPAR": _State.OPERATOR},
    _State.AFTER_LOW: {"AND": _State.OPERAND},
    _State.NOT: _SEARCHES,
    _State.IS: {"NULL": _State.AFTER_NULL_TEST, "NOT": _State.IS_NOT},
    _State.IS_NOT: {"NULL": _State.AFTER_NULL_TEST},
    _State.TEXT: {"STRING_LITERAL": _State.OPERATOR},
    _State.IN: {"LPAR": _State.IN_TEXT},
    _State.IN_TEXT: {"STRING_LITERAL": _State.IN_COMMA},
    _State.IN_COMMA: {"COMMA": _State.IN_TEXT, "RPAR": _State.OPERATOR},
}  # fmt: skip


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


def read_tokens(condition: str) -> tuple[list[Token], Token]:
    """Return the tokens that brokers read, and the first token that they ignore.

    The latter has the kind END if they read the whole condition. Raise InvalidArgument for a syntax
    error. Values are not checked, because the broker does that.
    """
    state = _State.OPERAND
    awaits_bound = [False]  # for each open parenthesis: whether BETWEEN lacks its upper bound
    read: list[Token] = []
    try:
        for token in tokens(condition):
            kind = token.kind
            following = _NEXT[state].get(kind)
            if following is None and kind in LATER_KEYWORDS:
                kind, following = "ID", _NEXT[state].get("ID")  # a property of this name
            closes_group = kind == "RPAR" and state in (_State.OPERATOR, _State.AFTER_NULL_TEST)
            if following is None or (closes_group and len(awaits_bound) == 1):
                _check_end(condition, state, token, is_nested=len(awaits_bound) > 1)
                return read, token
            read.append(token)
            if closes_group:
                awaits_bound.pop()
            elif kind == "LPAR" and state is _State.OPERAND:
                awaits_bound.append(False)
            elif kind == "BETWEEN":
                awaits_bound[-1] = True
            elif state is _State.AFTER_LOW:
                awaits_bound[-1] = False
            is_low = following is _State.OPERATOR and awaits_bound[-1]
            state = _State.AFTER_LOW if is_low else following
    except SqlError as error:
        raise InvalidArgument(_no_token(condition, error)) from error
    raise AssertionError("the tokens end with END")


def _no_token(condition: str, error: SqlError) -> str:
    """Describe a character that begins no token, and say what to write instead."""
    start = error.start
    if start is None:
        return f"the SQL92 condition {shown(condition)}: {error}"
    at = place(condition, start)
    rest = condition[start:]
    for symbol, advice in _FOREIGN.items():
        if rest.startswith(symbol):
            return f"the SQL92 condition {shown(condition)} has {symbol} at {at}: {advice}"
    return (
        f"the SQL92 condition {shown(condition)} has {rest[0]!r} at {at}, which begins no property,"
        " value or operator: names have letters A to Z, digits, _ and $, and texts single quotes"
    )


def _check_end(condition: str, state: _State, token: Token, *, is_nested: bool) -> None:
    """Raise InvalidArgument unless the condition is complete before the token."""
    if state in (_State.OPERATOR, _State.AFTER_NULL_TEST) and not is_nested:
        return
    where = "ends" if token.kind == END else f"has {token.image}"
    at = "" if token.kind == END else f" at {place(condition, token.start)}"
    raise InvalidArgument(
        f"the SQL92 condition {shown(condition)} {where}{at} where {_EXPECTED[state]} must follow"
    )
