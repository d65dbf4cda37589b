# SPDX-License-Identifier: Apache-2.0
"""Random SQL92 expressions that use every literal, operator and order of operands, and the answers
of RocketMQ's filter to them.

`SqlAnswers.java` in tests/peers gets the input from `java_input`; `parse_answers` reads its output.
"""

import random
from typing import Final, NamedTuple

from cometmq.broker.filters.sql.evaluate import Evaluate, compiled
from cometmq.broker.filters.sql.parser import parse
from cometmq.broker.filters.sql.values import EvaluationError
from cometmq.remoting.sql.errors import SqlError

_NUMBERS: Final = (
    *("0", "5", "7L", "12l", "-5", "- 5", "+5", "- -5", "2147483647", "2147483648", "-2147483648"),
    *("-2147483649", "9223372036854775807", "9223372036854775808", "-9223372036854775808L"),
    *("5.0", ".5", "5.", "-1.5", "1E3", "15e-1", "5E+0", "1e400", "1e-400", "0.0", "4.9e-324"),
)
_TEXTS: Final = ("''", "'5'", "'x'", "'it''s'", "''''", "'true'", "'grün'", "'a b'", "'5.0'")
_TRUTHS: Final = ("TRUE", "FALSE", "true")
_NAMES: Final = ("a", "b", "Missing", "$c")
_ORDERS: Final = ("=", "<>", "<", "<=", ">", ">=")

VALUES: Final = (
    *("5", "-5", "7", "0", "-0.0", "1.5", "5.0", "1e3", "2147483648", "9223372036854775807"),
    *("x", "it's", "'", "true", "TRUE", "false", "grün", "NaN", "Infinity", " 5 ", "5d", "a b"),
)
SETS: Final[tuple[dict[str, str], ...]] = (
    {},
    *({"a": value, "b": VALUES[-1 - at], "$c": "5"} for at, value in enumerate(VALUES)),
)
"""The properties with which each expression is evaluated."""


_CLASS_CAST: Final = "java.lang.ClassCastException"  # its text depends on the release of Java


REFUSED_ZERO: Final = "java.lang.RuntimeException: 0.0 is less than 4.9E-324"


class Answer(NamedTuple):
    """RocketMQ's answer to one expression: a letter for each of SETS (see
    `SqlAnswers.java`), or the error.
    """

    results: str
    error: str


class Expressions:
    """An endless source of expressions, determined by a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # repeats a run, hides nothing

    def take(self, count: int) -> list[str]:
        """Return different expressions."""
        found: dict[str, None] = {}
        while len(found) < count:
            found[self._condition(self._random.choice((0, 0, 1, 2)))] = None
        return list(found)

    def _condition(self, depth: int) -> str:
        chance, condition = self._random, self._condition
        if depth == 0:
            return self._comparison()
        match chance.randrange(5):
            case 0:
                return f"NOT ({condition(depth - 1)})"
            case 1:
                return f"({condition(depth - 1)}) {chance.choice(('=', '<>'))} {self._operand()}"
            case 2:
                return f"{self._operand()} {chance.choice(('=', '<>'))} ({condition(depth - 1)})"
            case _:
                word = chance.choice(("AND", "OR", "and"))
                return f"({condition(depth - 1)}) {word} {condition(depth - 1)}"

    def _comparison(self) -> str:
        chance, operand = self._random, self._operand
        negation = chance.choice(("", "NOT "))
        match chance.randrange(9):
            case 0:
                return f"{operand()} IS {negation}NULL"
            case 1:
                texts = ", ".join(chance.choices(_TEXTS, k=chance.choice((1, 3))))
                return f"{chance.choice(_NAMES)} {negation}IN ({texts})"
            case 2:
                return f"{operand()} {negation}BETWEEN {operand()} AND {operand()}"
            case 3:
                return chance.choice((*_TRUTHS, *_NAMES, "NULL", f"NOT {operand()}"))
            case kind:
                literal = chance.choice((_NUMBERS, _NUMBERS, _TEXTS, _TRUTHS))
                sides = [chance.choice(_NAMES), chance.choice(literal)]
                if kind == 4:
                    sides = [operand(), operand()]
                chance.shuffle(sides)
                return f"{sides[0]} {chance.choice(_ORDERS)} {sides[1]}"

    def _operand(self) -> str:
        kinds = (_NAMES, _NAMES, _NUMBERS, _NUMBERS, _TEXTS, _TRUTHS)
        return self._random.choice(self._random.choice(kinds))


def java_input(expressions: list[str]) -> str:
    """Return the input of `SqlAnswers.java`."""
    sets = "\x03".join(
        "\x02".join(f"{name}\x01{value}" for name, value in one.items()) for one in SETS
    )
    return "".join(f"{text.encode().hex()}\n" for text in (sets, *expressions))


def parse_answers(output: str) -> list[Answer]:
    """Return the answers in the output of `SqlAnswers.java`."""
    return [
        Answer("", bytes.fromhex(line[1:]).decode()) if line.startswith("E") else Answer(line, "")
        for line in output.splitlines()
    ]


def sql_difference(expression: str, answer: Answer) -> str:
    """Return how CometMQ's answer differs from Java's; an empty string if it does not.

    Where Java fails to compare a truth value with a text, or refuses the literal 0.0, CometMQ
    compares them.
    """
    if answer.error == REFUSED_ZERO:
        return ""
    try:
        node = parse(expression)
    except SqlError as error:
        is_same = str(error) == answer.error or answer.error.startswith(_CLASS_CAST)
        return "" if is_same else f"{expression}: {error} instead of {answer}"
    names: dict[str, int] = {}
    evaluate = compiled(node, names)
    results = "".join(_result(evaluate, [one.get(name) for name in names]) for one in SETS)
    if answer.error or len(answer.results) != len(SETS):
        return f"{expression}: {results} instead of {answer}"
    is_equal = all(java in (own, "c") for own, java in zip(results, answer.results, strict=True))
    return "" if is_equal else f"{expression}: {results} instead of {answer.results}"


def _result(evaluate: Evaluate, values: list[str | None]) -> str:
    try:
        value = evaluate(values)
    except EvaluationError:
        return "!"
    return "n" if value is None else "t" if value is True else "f"
