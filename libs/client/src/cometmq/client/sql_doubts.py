# SPDX-License-Identifier: Apache-2.0
"""SQL92 conditions that brokers accept but whose author probably meant something else (pure).

RocketMQ's parser ends an expression at the first token that cannot continue it, and ignores the
rest without an error.
"""

import re
from itertools import pairwise
from typing import Final

_TOKEN: Final = re.compile(
    r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/|[A-Za-z_$][\w$]*|\d[\w.]*|[<>]=|<>|\S", re.DOTALL
)
_OPERATORS: Final = frozenset(
    "AND OR NOT IN IS BETWEEN CONTAINS STARTSWITH ENDSWITH".split()  # noqa: SIM905  # reads better
)
_LITERALS: Final = frozenset({"TRUE", "FALSE", "NULL"})
_COMPARING: Final = (_OPERATORS - {"AND", "OR", "NOT"}) | {"=", "<>", "<", "<=", ">", ">="}


def doubt_of_condition(condition: str) -> str:
    """Return what is probably wrong with a condition, and what to write; empty if nothing is."""
    tokens = [one for one in _TOKEN.findall(condition) if not one.startswith(("--", "/*"))]
    for before, word in pairwise(tokens):
        if _ends_operand(before) and (word == "(" or _starts_operand(word)):
            if word.upper() == "LIKE":
                return "LIKE does not exist: write STARTSWITH, ENDSWITH or CONTAINS"
            return f"brokers ignore everything from {word!r} on: join conditions by AND or OR"
    for left, operator, right in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if operator in ("=", "<>") and _is_property(left) and _is_property(right):
            return (
                f"{right} is a property here, and two missing properties are equal: for the text, "
                f"write {left} {operator} '{right}'"
            )
    if not any(token.upper() in _COMPARING for token in tokens):
        alone = next(filter(_is_property, tokens), "")
        return f"a property alone is never true: write {alone} = TRUE" if alone else ""
    return ""


def _is_property(token: str) -> bool:
    is_name = token[0].isalpha() or token[0] in "_$"
    return is_name and token.upper() not in _OPERATORS | _LITERALS


def _starts_operand(token: str) -> bool:
    is_literal = token[0] == "'" or token[0].isdigit() or token.upper() in _LITERALS
    return is_literal or _is_property(token)


def _ends_operand(word: str) -> bool:
    return word == ")" or _starts_operand(word)
