# SPDX-License-Identifier: Apache-2.0
"""Split an expression into tokens, on demand.

Compatibility: the longest token wins, and keywords match in any case. Text after the end of the
expression is never read, so errors in it go unnoticed. As in RocketMQ, columns are counted from 1,
and a tab advances to the next multiple of eight.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from cometmq.remoting.sql.errors import SqlError, escaped, lexical_error

KEYWORDS: Final = frozenset({"NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"})

LATER_KEYWORDS: Final = frozenset({"CONTAINS", "STARTSWITH", "ENDSWITH"})
"""Keywords of 5.x. They are recognized only where an operator may stand, because properties may
have the same names.
"""

SYMBOLS: Final[Mapping[str, str]] = {
    "=": "EQUAL", "<>": "UNEQUAL", ">": "GREATER", ">=": "GREATER_EQUAL",
    "<": "LESS", "<=": "LESS_EQUAL", "(": "LPAR", ",": "COMMA", ")": "RPAR",
    "+": "PLUS", "-": "MINUS",
}  # fmt: skip

END: Final = "$END"
_TAB: Final = 8

_SPACE: Final = re.compile(
    r"(?:[ \t\n\r\f]|--[^\n\r]*(?:\r\n|\n|\r)|/\*[^*]*\*+(?:[^/*][^*]*\*+)*/)+"
)
_TOKEN: Final = re.compile(
    r"(?P<FLOATING_POINT_LITERAL>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?"
    r"|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<DECIMAL_LITERAL>0|[1-9][0-9]*[lL]?)"
    r"|(?P<STRING_LITERAL>'(?:[^']|'')*')"
    r"|(?P<ID>[A-Za-z_$][A-Za-z0-9_$]*)"
    r"|(?P<SYMBOL><>|>=|<=|[=<>(),+-])"
)


class Token(msgspec.Struct, gc=False, frozen=True):
    """A token of an expression; `start` is its index in the text."""

    kind: str
    image: str
    start: int


def tokens(text: str) -> Iterator[Token]:
    """Yield the tokens, then a token of kind END; raise SqlError for an invalid token."""
    at = 0
    while True:
        space = _SPACE.match(text, at)
        if space is not None:
            at = space.end()
        if at == len(text):
            yield Token(END, "", at)
            return
        match = _TOKEN.match(text, at)
        if match is None:
            raise _with_start(_no_token(text, at), at)
        yield Token(_kind(match), match[0], at)
        at = match.end()


def _kind(match: re.Match[str]) -> str:
    kind = match.lastgroup or ""
    if kind == "SYMBOL":
        return SYMBOLS[match[0]]
    if kind == "ID":
        word = match[0].upper()
        if word in KEYWORDS or word in LATER_KEYWORDS:
            return word
    return kind


def place(text: str, index: int) -> str:
    """Return the line and column of a character in the form used in error messages."""
    line, column = _position(text, index)
    return f"line {line}, column {column}"


def _position(text: str, index: int) -> tuple[int, int]:
    """Return the line and column of a character, both from 1; (0, 0) before the first character."""
    if index < 0:
        return 0, 0
    before = text[:index].replace("\r\n", "\n").replace("\r", "\n")
    column = 0
    for char in before[before.rfind("\n") + 1 :] + text[index]:
        column += _TAB - column % _TAB if char == "\t" else 1
    return before.count("\n") + 1, column


def _no_token(text: str, start: int) -> SqlError:
    """Return the error for a character that cannot start a token, or for an unfinished token."""
    fault = start
    if text[start] == "'" or text.startswith("/*", start):
        fault = len(text) - 1  # unterminated
    elif text[start] in "/.":
        fault = min(start + 1, len(text) - 1)  # neither a comment nor a number
    if fault < len(text) - 1:
        char = text[fault]
        shown = f'"{escaped(char)}" ({ord(char)}), after : "{escaped(text[start:fault])}"'
        return lexical_error(f"at {place(text, fault)}.  Encountered: {shown}")
    line, column = _position(text, fault)
    if text[fault] in "\n\r":
        line, column = line + 1, -1
    image = escaped(text[start:]) if fault > start else ""
    return lexical_error(
        f'at line {line}, column {column + 1}.  Encountered: <EOF> after : "{image}"'
    )


def _with_start(error: SqlError, start: int) -> SqlError:
    error.start = start
    return error
