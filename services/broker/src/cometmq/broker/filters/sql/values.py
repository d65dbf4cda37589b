# SPDX-License-Identifier: Apache-2.0
"""The values in filter expressions, and RocketMQ's rules for comparing them.

Properties are strings. A number in the expression determines the type that a property's value is
parsed as: `a > 5` parses `a` as an int, `a > 5000000000` as a long, `a > 5.0` as a double. If the
value cannot be parsed as that type, the evaluation fails and the message does not match.

Compatibility: these are Java's conversions, including surprising ones (`1.5` is not an int, `0x1p3`
is a double, `NaN` equals itself and is greater than everything else).
"""

import math
import operator
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Final, Self, TypeAlias

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
DOUBLE_MAX: Final = "1.7976931348623157E308"
DOUBLE_MIN: Final = "4.9E-324"
_SMALLEST: Final = float(DOUBLE_MIN)

Value: TypeAlias = str | int | float | bool | None


class EvaluationError(Exception):
    """Two values cannot be compared, so the message does not match."""


class Long(int):
    """A Java long (64 bits); a plain int stands for a Java int (32 bits)."""

    __slots__ = ()


LONG_CHARS_MIN: Final = 64
"""A value of at least this length is kept as LongText."""


class Paused(Exception):  # not an error: the same evaluation is repeated later
    """The evaluation has used up its allowance."""


class Allowance:
    """The steps of about 2 ns that one evaluation may still spend on long values."""

    __slots__ = ("steps",)

    def __init__(self, steps: int) -> None:
        self.steps = steps


class LongText(str):
    """A long value of a property. It caches the result of each parse and search, because one
    expression may repeat them hundreds of times.

    A paused evaluation is repeated from its beginning; with the cached results, it soon reaches the
    point where it paused.
    """

    __slots__ = ("_allowance", "_found", "_numbers")

    _allowance: Allowance
    _found: dict[tuple[object, str], bool]
    _numbers: dict[object, int | float | EvaluationError]

    def __new__(cls, text: str, allowance: Allowance) -> Self:
        """All values of one record are created with the same `allowance`."""
        self = super().__new__(cls, text)
        self._allowance, self._found, self._numbers = allowance, {}, {}
        return self

    def finds(self, find: Callable[[str, str], bool], wanted: str) -> bool:
        """Return the result of a search; raise Paused if the allowance is used up."""
        known = self._found.get((find, wanted))
        if known is None:
            if self._allowance.steps <= 0:
                raise Paused
            # Measured worst case: 2 ns for each character, and for each 20 of the searched string
            # up to 100, beyond which Python uses a faster algorithm.
            size = len(self) if find is operator.contains else len(wanted)
            self._allowance.steps -= size * (1 + min(len(wanted), 100) // 20)
            known = self._found[find, wanted] = find(self, wanted)
        return known

    def number(self, kind: object, parse: Callable[[str], float]) -> float:
        """Return the cached result of `parse`, or raise its EvaluationError."""
        known = self._numbers.get(kind)
        if known is None:
            try:
                known = parse(str(self))
            except EvaluationError as error:
                known = error
            self._numbers[kind] = known
        if isinstance(known, EvaluationError):
            raise known
        return known


_DIGITS_MAX: Final = 19
_BLANKS: Final = "".join(map(chr, range(33)))  # removed by Java's trim
_DOUBLE: Final = re.compile(
    r"[+-]?(?:NaN|Infinity|((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?)"
)
_HEX_DOUBLE: Final = re.compile(
    r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?"
)


def parse_int(text: str, highest: int = INT_MAX) -> int:
    """Parse a string as Java's Integer.valueOf does, or as Long.valueOf if given LONG_MAX."""
    if isinstance(text, LongText):
        return int(text.number(highest, lambda text: parse_int(text, highest)))
    digits = text[1:] if text[:1] in {"+", "-"} else text
    if not digits.isdecimal() or (not digits.isascii() and max(digits) > "\uffff"):
        raise _no_number(text)
    if len(digits) > _DIGITS_MAX:
        digits = digits.lstrip("0") or "0"
        if len(digits) > _DIGITS_MAX:
            raise _no_number(text)
    number = -int(digits) if text[0] == "-" else int(digits)
    if not -highest - 1 <= number <= highest:
        raise _no_number(text)
    return number


def parse_double(text: str) -> float:
    """Parse a string as Java's Double.valueOf does."""
    if isinstance(text, LongText):
        return text.number(float, parse_double)
    trimmed = text.strip(_BLANKS)
    if not trimmed:
        raise EvaluationError("java.lang.NumberFormatException: empty String")
    match = _DOUBLE.fullmatch(trimmed)
    if match is not None:
        return float(trimmed.rstrip("fFdD") if match[1] else trimmed)
    match = _HEX_DOUBLE.fullmatch(trimmed)
    if match is None:
        raise _no_number(text)
    try:
        return float.fromhex(match[1])
    except OverflowError:
        return -math.inf if trimmed[0] == "-" else math.inf


def _no_number(text: str) -> EvaluationError:
    return EvaluationError(f'java.lang.NumberFormatException: For input string: "{text}"')


def compare_doubles(left: float, right: float) -> int:
    """Compare in a total order: -0.0 before 0.0, NaN last and equal to itself."""
    if left < right:
        return -1
    if left > right:
        return 1
    return _rank(left) - _rank(right)


def _rank(number: float) -> int:
    if number != number:  # noqa: PLR0124  # NaN
        return 2
    return int(number != 0 or math.copysign(1, number) > 0)


def compare(left: Value, right: Value) -> int:
    """Compare two non-null values, converting the left one to the right one's type.

    Raise EvaluationError where Java throws an exception; return -1 for values without an order.
    """
    if isinstance(left, str) and isinstance(right, str):
        return (left > right) - (left < right)
    if isinstance(left, bool) or isinstance(right, bool):
        return _compare_booleans(left, right)
    if isinstance(left, str):
        left = read_as(left, right)
    elif isinstance(right, str):
        right = read_as(right, left)
    assert not isinstance(left, str | None)
    assert not isinstance(right, str | None)
    if isinstance(left, float) or isinstance(right, float):
        return compare_doubles(float(left), float(right))
    return (left > right) - (left < right)


def _compare_booleans(left: Value, right: Value) -> int:
    # RocketMQ fails if the boolean is on the left of a string: no message matches `TRUE = a`.
    if isinstance(left, str):
        left = is_true(left)
    elif isinstance(right, str):
        right = is_true(right)
    if isinstance(left, bool) and isinstance(right, bool):
        return left - right
    return -1


def is_true(text: str) -> bool:
    """Parse a string as Java's Boolean.valueOf does."""
    return len(text) == 4 and text.lower() == "true"


def read_as(text: str, sample: Value) -> int | float:
    """Parse a string as a number of the sample's type; -0.0 equals a literal 0.0."""
    if isinstance(sample, float):
        return parse_double(text) + 0.0
    return parse_int(text, LONG_MAX if isinstance(sample, Long) else INT_MAX)


def double_text(number: float) -> str:
    """Format a number as Java prints it."""
    if not math.isfinite(number):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(number, "NaN")
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return repr(number)
    if abs(number) == _SMALLEST:  # Java prints at least two digits
        return f"{'-' if number < 0 else ''}{DOUBLE_MIN}"
    shortest = Decimal(repr(number)).normalize()
    sign, digits, _ = shortest.as_tuple()
    rest = "".join(map(str, digits[1:])) or "0"
    return f"{'-' if sign else ''}{digits[0]}.{rest}E{shortest.adjusted()}"
