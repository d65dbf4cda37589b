# SPDX-License-Identifier: Apache-2.0
"""Expressions and properties that are as expensive as the limits on their length allow."""

from collections.abc import Callable
from random import Random
from typing import Final

from cometmq.broker.filters.sql.nodes import CHARS_MAX

PROPERTY_BYTES: Final = 32_000
NAMES: Final = ("p", "q", "key")


def _needle(random: Random) -> str:
    size = random.choice((2, 5, 10, 60, 99, 120, 900, 3_000))
    letters = ["a"] * size
    letters[random.choice((0, size // 2, size - 1))] = random.choice("ab")
    return "".join(letters)


def _digits(random: Random) -> str:
    return random.choice(("5", "-7", "9223372036854775807", "1.5", "3E10", "1E-300", "2147483648"))


def _texts(random: Random) -> str:
    return ",".join(f"'x{number}'" for number in range(random.choice((1, 50, 1_000))))


_TERMS: Final[tuple[Callable[[Random, str], str], ...]] = (
    lambda random, name: f"{name} CONTAINS '{_needle(random)}'",
    lambda random, name: f"{name} NOT CONTAINS '{_needle(random)}'",
    lambda random, name: f"{name} STARTSWITH '{_needle(random)}'",
    lambda random, name: f"{name} ENDSWITH '{_needle(random)}'",
    lambda random, name: f"{name} = '{_needle(random)}'",
    lambda random, name: f"{name} {random.choice(('=', '<>', '<', '>='))} {_digits(random)}",
    lambda random, name: f"{_digits(random)} < {name}",
    lambda random, name: f"{name} BETWEEN -5 AND 9223372036854775807",
    lambda random, name: f"{name} NOT BETWEEN 1.5 AND 1E300",
    lambda random, name: f"{name} = {random.choice(NAMES)}",
    lambda random, name: f"{name} > {random.choice(NAMES)}",
    lambda random, name: f"{name} <> TRUE",
    lambda random, name: f"{name} IS NOT NULL AND {name} = 'x'",
    lambda random, name: f"{name} NOT IN ({_texts(random)}) AND FALSE",
    lambda random, name: f"v{random.randrange(300)} = 'x'",
)


def expression(random: Random) -> str:
    """Return a long expression, which matches only if all of it was evaluated."""
    kinds = random.sample(_TERMS, random.choice((1, 1, 2, len(_TERMS))))
    before, after = random.choice((("", ""), ("NOT (" * 60, ")" * 60), ("(((", ")))")))
    terms = [random.choice(kinds)(random, random.choice(NAMES[: random.choice((1, 3))]))]
    size = len(before) + len(after) + len(terms[0])
    while True:
        term = random.choice(kinds)(random, random.choice(NAMES[: random.choice((1, 3))]))
        size += len(term) + 4
        if size > CHARS_MAX:
            return before + " OR ".join(terms) + after
        terms.append(term)


def properties(random: Random) -> str:
    """Return properties of nearly the maximum size."""
    size = PROPERTY_BYTES
    kind = random.randrange(8)
    if kind == 0:
        return f"p\x01{'a' * size}"
    if kind == 1:
        return f"p\x01{'9' * size}"
    if kind == 2:
        return f"p\x01{'0' * size}5"
    if kind == 3:
        return f"p\x01{' ' * (size - 9)}.{'3' * 7}"
    if kind == 4:
        return f"p\x01{'é' * (size // 2)}"
    if kind == 5:
        return "b\x01c\x02" * (size // 4 - 10) + "p\x017"
    if kind == 6:
        return "p\x01\x02" * (size // 3 - 10) + "q\x017"
    third = (size - 20) // 3
    return "\x02".join(f"{name}\x01{random.choice('a93') * third}" for name in NAMES)
