# SPDX-License-Identifier: Apache-2.0
"""Generated expressions with every literal in both orders have the results of RocketMQ 4.9.4.

`data/java_random.jsonl` was recorded from RocketMQ's filter library with `SqlAnswers.java`;
tests/compat/test_sql_filters.py compares others with the library itself.
"""

import json
from pathlib import Path

import pytest

from cometmq.broker.filters.sql import SqlError, compile_sql
from cometmq.testing.broker.random_sql import SETS, Answer, Expressions, sql_difference

DATA = Path(__file__).parent / "data" / "java_random.jsonl"
PRESENT = SETS[1:]
RECORDED = [json.loads(line) for line in DATA.read_text().splitlines()]


def test_the_recording_covers_accepted_and_refused_expressions():
    assert [one["sql"] for one in RECORDED] == Expressions(1).take(len(RECORDED))
    assert sum("error" in one for one in RECORDED) > 200
    results = "".join(one.get("results", "") for one in RECORDED)
    assert len(results) > 10_000
    assert all(results.count(letter) > 100 for letter in "tfn!c")


def test_generated_expressions_are_refused_or_have_javas_results():
    answers = [Answer(one.get("results", ""), one.get("error", "")) for one in RECORDED]
    found = [
        sql_difference(one["sql"], answer) for one, answer in zip(RECORDED, answers, strict=True)
    ]
    assert [one for one in found if one] == []


@pytest.mark.parametrize("literal", ["TRUE", "FALSE", "true"])
@pytest.mark.parametrize("symbol", ["=", "<>"])
def test_a_truth_value_may_be_on_either_side(literal, symbol):
    """In RocketMQ, a property on the right of a truth value never matches."""
    forth, back = compile_sql(f"a {symbol} {literal}"), compile_sql(f"{literal} {symbol} a")
    matched = [forth.matches(one) for one in PRESENT]
    assert matched == [back.matches(one) for one in PRESENT]
    assert len(set(matched)) == 2


@pytest.mark.parametrize(
    "literal", ["0", "7", "12L", "-5", "5000000000", "1.5", ".5", "1E3", "0.0"]
)
@pytest.mark.parametrize(
    ("symbol", "mirrored"), [("=", "="), ("<>", "<>"), ("<", ">"), ("<=", ">="), (">", "<")]
)
def test_a_number_may_be_on_either_side(literal, symbol, mirrored):
    forth, back = compile_sql(f"a {symbol} {literal}"), compile_sql(f"{literal} {mirrored} a")
    assert [forth.matches(one) for one in PRESENT] == [back.matches(one) for one in PRESENT]


@pytest.mark.parametrize(
    "expression", ["a > 1e-400", "0.01e-330 < a", "a = 1e400", "a = 9223372036854775808"]
)
def test_a_literal_out_of_range_is_refused(expression):
    with pytest.raises(SqlError, match=r"java\.lang"):
        compile_sql(expression)


@pytest.mark.parametrize("literal", ["0.0", "0.", ".0", "00.00e9", "- 0.0", "0e0"])
def test_a_comparison_with_zero_works(literal):
    """RocketMQ refuses these literals."""
    values = ["-1", "-1e-300", "-0.0", "0", "0.0", "1e-300", "1", "x"]
    matched = {
        symbol: [compile_sql(f"a {symbol} {literal}").matches({"a": it}) for it in values]
        for symbol in ("=", "<", ">", "<=", "<>")
    }
    assert matched == {
        "=": [False, False, True, True, True, False, False, False],
        "<": [True, True, False, False, False, False, False, False],
        ">": [False, False, False, False, False, True, True, False],
        "<=": [True, True, True, True, True, False, False, False],
        "<>": [True, True, False, False, False, True, True, False],
    }
