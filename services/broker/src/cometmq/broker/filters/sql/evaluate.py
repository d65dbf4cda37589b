# SPDX-License-Identifier: Apache-2.0
"""Compiles an expression tree into a function that tests one message.

A node becomes a closure over the values of the properties that the expression uses, in the order of
`names`. Conditions follow three-valued logic: true, false or None (unknown); only true matches.

Hot path: runs once per message that a filtered pull tests (budget 1 us for two comparisons); see
bench/micro/bench_sql.py. The most common comparisons (a property with a constant) have their own
closures.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from cometmq.broker.filters.sql.nodes import (
    Cast,
    Compare,
    Constant,
    Invert,
    Logic,
    Minus,
    Node,
    Property,
    Search,
    Within,
)
from cometmq.broker.filters.sql.values import (
    EvaluationError,
    Long,
    LongText,
    Value,
    compare,
    compare_doubles,
    is_true,
    parse_double,
    read_as,
)

Values: TypeAlias = Sequence[str | None]
"""The values of the properties that the expression uses; None if a property is missing."""
Evaluate: TypeAlias = Callable[[Values], Value]

_TESTS: Final[dict[str, Callable[[int, int], bool]]] = {
    "==": operator.eq,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_FINDS: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def compiled(node: Node, names: dict[str, int]) -> Evaluate:
    """Return the function for a node; add the properties that it uses to `names`."""
    return _MAKERS[type(node)](node, names)


def _property(node: Property, names: dict[str, int]) -> Evaluate:
    return operator.itemgetter(_place(node, names))


def _place(node: Property, names: dict[str, int]) -> int:
    return names.setdefault(node.name, len(names))


def _constant(node: Constant, _: dict[str, int]) -> Evaluate:
    value = node.value
    return lambda _: value


def _minus(node: Minus, names: dict[str, int]) -> Evaluate:
    operand = compiled(node.operand, names)

    def evaluate(values: Values) -> Value:
        value = operand(values)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return Long(-value) if isinstance(value, Long) else 0 - value  # 0.0, not -0.0

    return evaluate


def _invert(node: Invert, names: dict[str, int]) -> Evaluate:
    operand = compiled(node.operand, names)

    def evaluate(values: Values) -> Value:
        value = operand(values)
        return None if value is None else not value

    return evaluate


def _cast(node: Cast, names: dict[str, int]) -> Evaluate:
    place = _place(node.operand, names)
    return lambda values: None if values[place] is None else False


def _logic(node: Logic, names: dict[str, int]) -> Evaluate:
    parts = tuple(compiled(part, names) for part in node.parts)
    decisive = node.symbol == "||"  # if one part has this value, so has the whole

    def evaluate(values: Values) -> Value:
        result: Value = not decisive
        for part in parts:
            value = part(values)
            if value is decisive:
                return decisive
            if value is None:
                result = None
        return result

    return evaluate


def _within(node: Within, names: dict[str, int]) -> Evaluate:
    place = _place(node.operand, names)
    texts = frozenset(node.texts)
    is_negated = node.is_negated

    def evaluate(values: Values) -> Value:
        value = values[place]
        return None if value is None else (value in texts) is not is_negated

    return evaluate


def _search(node: Search, names: dict[str, int]) -> Evaluate:
    operand = compiled(node.operand, names)
    find, wanted, is_negated = _FINDS[node.word], node.text, node.is_negated

    def evaluate(values: Values) -> Value:
        value = operand(values)
        if not wanted or not isinstance(value, str):
            return False
        if isinstance(value, LongText):
            return value.finds(find, wanted) is not is_negated
        return find(value, wanted) is not is_negated

    return evaluate


def _compare(node: Compare, names: dict[str, int]) -> Evaluate:
    """Return the cheapest closure for these operands."""
    left, right = node.left, folded(node.right)
    if isinstance(left, Property) and isinstance(right, Constant):
        return _property_with_constant(node.symbol, _place(left, names), right.value)
    first, second = compiled(left, names), compiled(right, names)
    return _equality(first, second) if node.symbol == "==" else _order(node.symbol, first, second)


def folded(node: Node) -> Node:
    """Return a signed number as a single constant; return any other node unchanged."""
    if isinstance(node, Minus) and isinstance(node.operand, Constant):
        return Constant(_minus(node, {})(()))
    return node


def _property_with_constant(symbol: str, place: int, constant: Value) -> Evaluate:
    if constant is None:
        return (lambda values: values[place] is None) if symbol == "==" else lambda _: None
    if isinstance(constant, str):
        return lambda values: None if values[place] is None else values[place] == constant
    if isinstance(constant, bool):
        wanted = constant
        return lambda values: None if (value := values[place]) is None else is_true(value) is wanted
    if isinstance(constant, float):
        return _with_double(_TESTS[symbol], place, constant)
    return _with_integer(_TESTS[symbol], place, constant)


def _with_integer(test: Callable[[Any, Any], bool], place: int, constant: int) -> Evaluate:
    def evaluate(values: Values) -> Value:
        value = values[place]
        if value is None:
            return None
        if len(value) < 10 and value.isdigit() and value.isascii():  # fast path for most values
            return test(int(value), constant)
        return test(read_as(value, constant), constant)

    return evaluate


def _with_double(test: Callable[[int, int], bool], place: int, constant: float) -> Evaluate:
    def evaluate(values: Values) -> Value:
        value = values[place]
        if value is None:
            return None
        return test(compare_doubles(read_as(value, constant), constant), 0)

    return evaluate


def _equality(first: Evaluate, second: Evaluate) -> Evaluate:
    def evaluate(values: Values) -> Value:
        left, right = first(values), second(values)
        if left is None:
            return True if right is None else None
        return False if right is None else compare(left, right) == 0

    return evaluate


def _order(symbol: str, first: Evaluate, second: Evaluate) -> Evaluate:
    test = _TESTS[symbol]

    def evaluate(values: Values) -> Value:
        left = first(values)
        if left is None:
            return None
        right = second(values)
        if right is None:
            return None
        if isinstance(left, str) and isinstance(right, str):
            left, right = parse_double(left), parse_double(right)
        return test(compare(left, right), 0)

    return evaluate


_MAKERS: Final[dict[type, Callable[[Any, dict[str, int]], Evaluate]]] = {
    Property: _property,
    Constant: _constant,
    Minus: _minus,
    Invert: _invert,
    Cast: _cast,
    Compare: _compare,
    Logic: _logic,
    Within: _within,
    Search: _search,
}


def matcher(node: Node) -> tuple[tuple[str, ...], Callable[[Values], bool]]:
    """Return the properties that a condition uses, and the function that tests their values.

    The function raises Paused if an evaluation must be repeated with the same values.
    """
    names: dict[str, int] = {}
    evaluate = compiled(node, names)

    def matches(values: Values) -> bool:
        try:
            return evaluate(values) is True
        except EvaluationError:
            return False

    return tuple(names), matches
