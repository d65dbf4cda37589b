# SPDX-License-Identifier: Apache-2.0
"""Conditions as plain tuples, for the native message path (`libs/accel/rust/pull/sql.rs`).

Only common conditions have this form: AND, OR, NOT, IN, BETWEEN, IS NULL, and comparisons of a
property on the left with a constant on the right. They have the same results as in `evaluate.py`,
including errors.
"""

from typing import Any, Final, NamedTuple, TypeAlias

from cometmq.broker.filters.sql.evaluate import folded
from cometmq.broker.filters.sql.nodes import (
    Cast,
    Compare,
    Constant,
    Invert,
    Logic,
    Node,
    Property,
    Within,
    comparison_count,
)
from cometmq.broker.filters.sql.values import Long

NAMES_MAX: Final = 8
COMPARISONS_MAX: Final = 64
"""Maximum number of comparisons in a program, because native code evaluates it without a pause."""

Condition: TypeAlias = tuple[Any, ...]
"""The kind, then the operands; a property is an index into `Program.names`."""


class Program(NamedTuple):
    """A condition and the properties that it uses."""

    names: tuple[str, ...]
    condition: Condition


class _UnknownShape(Exception):  # not an error: it ends the search
    pass


def program_of(node: Node) -> Program | None:
    """Return the native form of a condition, or None if the condition has none."""
    if comparison_count(node) > COMPARISONS_MAX:
        return None
    names: dict[str, int] = {}
    try:
        condition = _condition(node, names)
    except _UnknownShape:
        return None
    return Program(tuple(names), condition) if len(names) <= NAMES_MAX else None


def _condition(node: Node, names: dict[str, int]) -> Condition:
    match node:
        case Logic(symbol=symbol, parts=parts):
            word = "and" if symbol == "&&" else "or"
            return word, tuple(_condition(part, names) for part in parts)
        case Invert(operand=operand):
            return "not", _condition(operand, names)
        case Cast(operand=operand):
            return "cast", _place(operand, names)
        case Within(operand=operand, texts=texts, is_negated=is_negated):
            return "in", _place(operand, names), texts, is_negated
        case Compare(symbol=symbol, left=Property() as left, right=right):
            right = folded(right)
            if isinstance(right, Constant):
                return _comparison(symbol, _place(left, names), right)
        case _:
            pass
    raise _UnknownShape


def _comparison(symbol: str, place: int, right: Constant) -> Condition:
    match right.value:
        case None if symbol == "==":
            return "null", place
        case bool(wanted):
            return "truth", place, wanted
        case str(text):
            return "text", place, text
        case float(number):
            return "double", place, symbol, number
        case int(number):
            return "integer", place, symbol, int(number), isinstance(number, Long)
        case _:
            pass
    raise _UnknownShape


def _place(node: Property, names: dict[str, int]) -> int:
    return names.setdefault(node.name, len(names))
