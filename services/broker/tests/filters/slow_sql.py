# SPDX-License-Identifier: Apache-2.0
"""Conditions with their meanings, built without the parser: slow, simple and exact.

A condition is its text plus a function of properties that returns True, False or None (unknown), or
raises Impossible.
"""

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import NamedTuple

from hypothesis import strategies as st

NAMES = ("a", "b", "Price", "$x_1")
WORDS = ("", "x", "it's", "true", "TRUE", "5", "-5", "5.5", "1e1", "4000000000", " 6 ", "é", "0")


class Impossible(Exception): ...


Truth = bool | None
Meaning = Callable[[Mapping[str, str]], Truth]


class Condition(NamedTuple):
    text: str
    meaning: Meaning


def number_of(text: str, literal: str) -> Decimal:
    """Parse a property as the type of the literal that it is compared with."""
    if re.fullmatch(r"-?\d+", literal):
        bits = 32 if abs(int(literal)) < 2**31 else 64
        if not re.fullmatch(r"[+-]?\d+", text) or not -(2 ** (bits - 1)) <= int(text) < 2 ** (
            bits - 1
        ):
            raise Impossible
        return Decimal(text)
    if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text.strip(" ")):
        raise Impossible
    return Decimal(text.strip(" "))


def holds(order: int, symbol: str) -> bool:
    return {
        "=": order == 0,
        "<>": order != 0,
        "<": order < 0,
        "<=": order <= 0,
        ">": order > 0,
        ">=": order >= 0,
    }[symbol]


def with_number(name: str, symbol: str, literal: str) -> Condition:
    def meaning(properties: Mapping[str, str]) -> Truth:
        if name not in properties:
            return None
        difference = number_of(properties[name], literal) - Decimal(literal)
        return holds(int(difference.compare(Decimal(0))), symbol)

    return Condition(f"{name} {symbol} {literal}", meaning)


def with_text(name: str, symbol: str, word: str) -> Condition:
    def meaning(properties: Mapping[str, str]) -> Truth:
        if name not in properties:
            return None
        return (properties[name] == word) == (symbol == "=")

    quoted = word.replace("'", "''")
    return Condition(f"{name} {symbol} '{quoted}'", meaning)


def one_of(name: str, words: list[str], negated: bool) -> Condition:
    def meaning(properties: Mapping[str, str]) -> Truth:
        return None if name not in properties else (properties[name] in words) != negated

    quoted = ", ".join("'" + word.replace("'", "''") + "'" for word in words)
    return Condition(f"{name} {'NOT ' if negated else ''}IN ({quoted})", meaning)


def missing(name: str, negated: bool) -> Condition:
    return Condition(
        f"{name} IS {'NOT ' if negated else ''}NULL",
        lambda properties: (name in properties) == negated,
    )


def containing(name: str, word: str, negated: bool) -> Condition:
    def meaning(properties: Mapping[str, str]) -> Truth:
        value = properties.get(name)
        return False if not word or value is None else (word in value) != negated

    quoted = word.replace("'", "''")
    return Condition(f"{name} {'NOT ' if negated else ''}CONTAINS '{quoted}'", meaning)


def inverted(one: Condition) -> Condition:
    def meaning(properties: Mapping[str, str]) -> Truth:
        truth = one.meaning(properties)
        return None if truth is None else not truth

    return Condition(f"NOT ({one.text})", meaning)


def joined(parts: list[Condition], word: str) -> Condition:
    def meaning(properties: Mapping[str, str]) -> Truth:
        unknown = False
        for part in parts:
            truth = part.meaning(properties)
            if truth is (word == "OR"):
                return truth
            unknown |= truth is None
        return None if unknown else word == "AND"

    return Condition(f" {word} ".join(f"({part.text})" for part in parts), meaning)


names = st.sampled_from(NAMES)
words = st.sampled_from(WORDS) | st.text("ab' é\\", max_size=4)
literals = st.sampled_from(
    ["0", "5", "-5", "2147483647", "2147483648", "-4000000000", "5.5", ".5", "1e1", "-2.5E-1"]
)
simple = st.one_of(
    st.builds(with_number, names, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), literals),
    st.builds(with_text, names, st.sampled_from(["=", "<>"]), words),
    st.builds(one_of, names, st.lists(words, min_size=1, max_size=6), st.booleans()),
    st.builds(missing, names, st.booleans()),
    st.builds(containing, names, words, st.booleans()),
    st.sampled_from(
        [
            Condition("TRUE", lambda _: True),
            Condition("false", lambda _: False),
            Condition("NULL", lambda _: None),
        ]
    ),
)
conditions = st.recursive(
    simple,
    lambda inner: (
        st.builds(inverted, inner)
        | st.builds(joined, st.lists(inner, min_size=2, max_size=4), st.sampled_from(["AND", "OR"]))
    ),
    max_leaves=12,
)
property_sets = st.dictionaries(
    names, st.sampled_from([word for word in WORDS if word]) | st.text("ab' é\\", min_size=1)
)
