# SPDX-License-Identifier: Apache-2.0
"""Expressions as trees, and the operands that each operator accepts.

The functions create nodes and raise SqlError for invalid operands; `str` renders a node the way
RocketMQ's error messages do.
"""

import re
from typing import Final, TypeAlias

import msgspec

from cometmq.broker.filters.sql.values import (
    DOUBLE_MAX,
    DOUBLE_MIN,
    INT_MAX,
    LONG_MAX,
    EvaluationError,
    Long,
    Value,
    compare,
    double_text,
)
from cometmq.remoting.sql.errors import SqlError, meaning_error, number_error, syntax_error

DEPTH_MAX: Final = 100
"""Maximum nesting depth of operators; a chain of AND or OR counts once."""
CHARS_MAX: Final = 8_192
"""Maximum length of an expression; parsing an expression of this length takes 25 ms, in steps."""


def check_length(text: str) -> None:
    """Raise SqlError if an expression is too long."""
    if len(text) > CHARS_MAX:
        raise SqlError(f"an expression may have at most {CHARS_MAX} characters, not {len(text)}")


class Property(msgspec.Struct, frozen=True):
    name: str
    depth: int = 1

    def __str__(self) -> str:
        return self.name


class Constant(msgspec.Struct, frozen=True):
    """A literal."""

    value: Value
    depth: int = 1

    def __str__(self) -> str:
        """Return the literal in expression syntax."""
        value = self.value
        if value is None:
            return "NULL"
        if isinstance(value, bool):
            return "TRUE" if value else "FALSE"
        if isinstance(value, str):
            return "'" + value.replace("'", "''") + "'"
        return double_text(value) if isinstance(value, float) else str(value)


class Minus(msgspec.Struct, frozen=True):
    """A negated number; null if the value is not a number."""

    operand: "Node"
    depth: int

    def __str__(self) -> str:
        return f"(- {self.operand})"


class Invert(msgspec.Struct, frozen=True):
    operand: "Node"
    depth: int

    def __str__(self) -> str:
        return f"(NOT {self.operand})"


class Cast(msgspec.Struct, frozen=True):
    """A property used as a condition: false if the property exists, because no string is true."""

    operand: Property
    depth: int

    def __str__(self) -> str:
        return str(self.operand)


class Compare(msgspec.Struct, frozen=True):
    """A comparison: ==, >, >=, <, <=."""

    symbol: str
    left: "Node"
    right: "Node"
    depth: int

    def __str__(self) -> str:
        return f"({self.left} {self.symbol} {self.right})"


class Logic(msgspec.Struct, frozen=True):
    """Conditions joined by one operator, && or ||."""

    symbol: str
    parts: tuple["Node", ...]
    depth: int

    def __str__(self) -> str:
        """Return the conditions as nested pairs in parentheses."""
        text = str(self.parts[0])
        for part in self.parts[1:]:
            text = f"({text} {self.symbol} {part})"
        return text


class Within(msgspec.Struct, frozen=True):
    """IN and NOT IN."""

    operand: Property
    texts: tuple[str, ...]
    is_negated: bool
    depth: int

    def __str__(self) -> str:
        word = "NOT IN" if self.is_negated else "IN"
        return f"{self.operand} {word} ( {', '.join(self.texts)} )"


class Search(msgspec.Struct, frozen=True):
    """CONTAINS, STARTSWITH, ENDSWITH and their negations."""

    word: str
    operand: "Node"
    text: str
    is_negated: bool
    depth: int

    def __str__(self) -> str:
        """Return the operator and operand; the searched string is not shown."""
        return f"({'NOT ' if self.is_negated else ''}{self.word} {self.operand})"


Node: TypeAlias = Property | Constant | Minus | Invert | Cast | Compare | Logic | Within | Search


def whole(image: str) -> Constant:
    """Return an integer constant: 32-bit if the value fits, otherwise 64-bit."""
    digits = image.rstrip("lL")
    if len(digits) > len(str(LONG_MAX)) or int(digits) > LONG_MAX:
        raise number_error(digits)
    number = int(digits)
    return Constant(number if number <= INT_MAX else Long(number))


_ZERO: Final = re.compile(r"[0.]*+(?:[eE]|$)")


def floating(image: str) -> Constant:
    """Return a double constant; raise SqlError if no double is near it.

    RocketMQ refuses zero as well, because it compares with the smallest positive double.
    """
    number = float(image)
    if number == float("inf"):
        raise meaning_error(f"{image} is greater than {DOUBLE_MAX}")
    if number == 0 and not _ZERO.match(image):
        raise meaning_error(f"{image} is less than {DOUBLE_MIN}")
    return Constant(number)


def text(image: str) -> Constant:
    """Return a string constant from its quoted form, in which quotes are doubled."""
    return Constant(unquoted(image))


def unquoted(image: str) -> str:
    """Return the text between the quotes."""
    return image[1:-1].replace("''", "'")


def minus(operand: Node) -> Minus:
    return Minus(operand, _above(operand))


def invert(operand: Node) -> Invert:
    condition = as_condition(operand)
    return Invert(condition, _above(condition))


def as_condition(node: Node) -> Node:
    """Return a node as a condition, a property as a Cast; raise SqlError for others."""
    if isinstance(node, Property):
        return Cast(node, 2)
    if not _is_condition(node):
        raise syntax_error(f"Expression will not result in a boolean value: {node}")
    return node


def logic(symbol: str, left: Node, right: Node) -> Logic:
    """Combine two conditions; a chain of the same operator becomes one node."""
    first, second = as_condition(left), as_condition(right)
    if isinstance(first, Logic) and first.symbol == symbol:
        parts = (*first.parts, second)
        return Logic(symbol, parts, _limited(max(first.depth, second.depth + 1)))
    return Logic(symbol, (first, second), _above(first, second))


def equal(left: Node, right: Node) -> Compare:
    for side in (left, right):
        if isinstance(side, Constant) and side.value is None:
            raise meaning_error(f"'{side}' cannot be compared.")
    if (
        isinstance(left, Constant)
        and isinstance(right, Constant)
        and isinstance(left.value, bool)
        and not isinstance(right.value, bool)
    ):
        raise meaning_error(f"'{left}' cannot be compared with '{right}'")
    return Compare("==", left, right, _above(left, right))


def is_null(operand: Node) -> Compare:
    return Compare("==", operand, Constant(None), _above(operand))


def ordered(symbol: str, left: Node, right: Node) -> Compare:
    """Build an ordering comparison; only properties and numbers have an order."""
    for side in (left, right):
        is_number = isinstance(side, Constant) and _is_number(side.value)
        if not is_number and (isinstance(side, Constant) or _is_condition(side)):
            raise meaning_error(f"Value '{side}' cannot be compared.")
    return Compare(symbol, left, right, _above(left, right))


def between(operand: Node, low: Node, high: Node) -> Logic:
    if isinstance(low, Constant) and isinstance(high, Constant):
        _check_bounds(low.value, high.value)
    return logic("&&", ordered(">=", operand, low), ordered("<=", operand, high))


def not_between(operand: Node, low: Node, high: Node) -> Logic:
    return logic("||", ordered("<", operand, low), ordered(">", operand, high))


def within(operand: Node, texts: tuple[str, ...], *, is_negated: bool) -> Within:
    if not isinstance(operand, Property):
        raise meaning_error(f"Expected a property for In expression, got: {operand}")
    return Within(operand, texts, is_negated, 2)


def search(word: str, operand: Node, wanted: str, *, is_negated: bool) -> Search:
    return Search(word, operand, wanted, is_negated, _above(operand))


def comparison_count(node: Node) -> int:
    """Return the maximum number of comparisons that a condition makes, as a measure of its cost."""
    match node:
        case Logic(parts=parts):
            return sum(map(comparison_count, parts))
        case Compare(left=left, right=right):
            return 1 + comparison_count(left) + comparison_count(right)
        case Search(operand=operand):
            return 1 + comparison_count(operand)
        case Invert(operand=operand) | Minus(operand=operand):
            return comparison_count(operand)
        case Within() | Cast():
            return 1
        case Property() | Constant():
            return 0


def _check_bounds(low: Value, high: Value) -> None:
    if low is None or high is None:
        raise meaning_error("Illegal values of between, values can not be null!")
    try:
        is_empty = compare(high, low) < 0
    except EvaluationError as error:
        raise meaning_error(str(error)) from error
    if is_empty:
        raise meaning_error(
            f"Illegal values of between, left value({_plain(low)})"
            f" must less than or equal to right value({_plain(high)})"
        )


def _plain(value: Value) -> str:
    shown = str(Constant(value))
    return value if isinstance(value, str) else shown.lower() if isinstance(value, bool) else shown


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_condition(node: Node) -> bool:
    if isinstance(node, Constant):
        return node.value is None or isinstance(node.value, bool)
    return not isinstance(node, Property | Minus)


def _above(*nodes: Node) -> int:
    return _limited(1 + max(node.depth for node in nodes))


def _limited(depth: int) -> int:
    if depth > DEPTH_MAX:
        raise SqlError(f"an expression may nest at most {DEPTH_MAX} operators")
    return depth
