# SPDX-License-Identifier: Apache-2.0

import pytest

from cometmq.broker.filters.sql import (
    CACHE_CHARS_MAX,
    CHARS_MAX,
    SqlError,
    compile_sql,
    is_compiled,
)
from cometmq.broker.filters.sql.nodes import DEPTH_MAX
from cometmq.broker.filters.sql.parser import parse


def matches(expression: str, **properties: str) -> bool:
    return compile_sql(expression).matches(properties)


@pytest.mark.parametrize(
    ("expression", "wanted", "unwanted"),
    [
        ("a = 3", {"a": "3"}, {"a": "4"}),
        ("a <> 3", {"a": "4"}, {"a": "3"}),
        ("a > 3", {"a": "4"}, {"a": "3"}),
        ("a >= 3", {"a": "3"}, {"a": "2"}),
        ("a < 3", {"a": "2"}, {"a": "3"}),
        ("a <= 3", {"a": "3"}, {"a": "4"}),
        ("3 < a", {"a": "4"}, {"a": "3"}),
        ("a = -3", {"a": "-3"}, {"a": "3"}),
        ("a = +3", {"a": "3"}, {"a": "-3"}),
        ("a > 3.5", {"a": "3.6"}, {"a": "3.4"}),
        ("a > .5E1", {"a": "5.5"}, {"a": "4"}),
        ("a = 'x'", {"a": "x"}, {"a": "X"}),
        ("a = 'it''s'", {"a": "it's"}, {"a": "its"}),
        ("a = TRUE", {"a": "tRuE"}, {"a": "yes"}),
        ("a = false", {"a": "yes"}, {"a": "true"}),
        ("a > b", {"a": "10", "b": "9"}, {"a": "9", "b": "10"}),
        ("a = b", {"a": "x", "b": "x"}, {"a": "x", "b": "y"}),
        ("a BETWEEN 2 AND 10", {"a": "10"}, {"a": "11"}),
        ("a NOT BETWEEN 2 AND 10", {"a": "1"}, {"a": "2"}),
        ("a between b and c", {"a": "2", "b": "1", "c": "3"}, {"a": "4", "b": "1", "c": "3"}),
        ("a IN ('3', '4')", {"a": "4"}, {"a": "5"}),
        ("a NOT IN ('3', '4')", {"a": "5"}, {"a": "4"}),
        ("a IS NULL", {"b": "1"}, {"a": "1"}),
        ("a IS NOT NULL", {"a": "1"}, {"b": "1"}),
        ("NOT (a = 1)", {"a": "2"}, {"a": "1"}),
        ("a = 1 AND b = 2", {"a": "1", "b": "2"}, {"a": "1", "b": "3"}),
        ("a = 1 OR b = 2", {"b": "2"}, {"b": "3"}),
        ("a = 1 OR b = 2 AND c = 3", {"a": "1"}, {"b": "2"}),
        ("(a = 1 OR b = 2) AND c = 3", {"b": "2", "c": "3"}, {"a": "1"}),
        ("(a = 1) = (b = 2)", {"a": "0", "b": "0"}, {"a": "1", "b": "0"}),
        ("a /* so */ = -- and\n 1", {"a": "1"}, {"a": "2"}),
        ("a = 1 whatever follows", {"a": "1"}, {"a": "2"}),
        ("TAGS is not null and TAGS='''''tag'''''", {"TAGS": "''tag''"}, {"TAGS": "tag"}),
        ("a CONTAINS 'x'", {"a": "axb"}, {"a": "ab"}),
        ("a NOT CONTAINS 'x'", {"a": "ab"}, {"a": "axb"}),
        ("a StartsWith 'ax'", {"a": "axb"}, {"a": "bax"}),
        ("a NOT STARTSWITH 'ax'", {"a": "bax"}, {"a": "axb"}),
        ("a ENDSWITH 'xb'", {"a": "axb"}, {"a": "xba"}),
        ("a NOT ENDSWITH 'xb'", {"a": "xba"}, {"a": "axb"}),
        ("'axb' CONTAINS 'x' AND a = 1", {"a": "1"}, {"a": "2"}),
    ],
)
def test_productions(expression: str, wanted: dict[str, str], unwanted: dict[str, str]) -> None:
    assert matches(expression, **wanted)
    assert not matches(expression, **unwanted)
    assert not matches(f"NOT ({expression.removesuffix(' whatever follows')})", **wanted)


@pytest.mark.parametrize("word", ["contains", "startswith", "endswith"])
def test_empty_texts_and_missing_properties_never_match(word: str) -> None:
    for condition in (f"a {word} ''", f"a NOT {word} ''"):
        assert not matches(condition, a="x")
    for condition in (f"a {word} 'x'", f"a NOT {word} 'x'", f"5 {word} '5'", f"5 NOT {word} '5'"):
        assert not matches(condition)


@pytest.mark.parametrize("word", ["contains", "STARTSWITH", "endsWith"])
def test_the_new_operators_remain_valid_property_names(word: str) -> None:
    assert matches(f"{word} = 1", **{word: "1"})
    assert matches(f"NOT {word} AND {word} > 0", **{word: "1"})
    assert matches(f"{word} {word} '1'", **{word: "1"})
    with pytest.raises(SqlError, match="STRING_LITERAL"):
        parse(f"a {word} 5")
    with pytest.raises(SqlError, match="STRING_LITERAL"):
        parse(f"a NOT {word} x")


@pytest.mark.parametrize(
    "expression", ["a = 1 OR b > 5", "b > 5 OR a = 2", "NOT (b = 5)", "TRUE = a", "a > b"]
)
def test_incomparable_values_do_not_match(expression: str) -> None:
    assert not matches(expression, a="2", b="text")


def test_unknown_is_not_false() -> None:
    assert not matches("a = 1")
    assert not matches("NOT (a = 1)")
    assert not matches("a <> 1")
    assert matches("(a = 1) IS NULL")
    assert matches("a = 1 OR TRUE")
    assert not matches("a = 1 AND TRUE")


def test_recently_used_filters_stay_cached() -> None:
    used = compile_sql("a = 78")
    padding = " " * (CHARS_MAX - 20)
    for number in range(CACHE_CHARS_MAX // CHARS_MAX + 2):
        compile_sql(f"b = {number}{padding}")
        assert compile_sql("a = 78") is used
    assert not is_compiled(f"b = 0{padding}")
    assert is_compiled(f"b = {number}{padding}")


def test_the_length_of_an_expression_is_bounded() -> None:
    text = "a = '" + "x" * CHARS_MAX + "'"
    with pytest.raises(SqlError, match="8192 characters"):
        parse(text)


def test_long_chains_are_flat() -> None:
    chain = " OR ".join(f"a={number}" for number in range(800))
    assert matches(chain, a="799")
    assert not matches(chain, a="800")
    assert parse(chain).depth == 3


@pytest.mark.parametrize("text", ["NOT ", "- ", "a = ("])
def test_nesting_is_bounded(text: str) -> None:
    deep = text * (DEPTH_MAX + 1) + "a" + ")" * (DEPTH_MAX + 1)
    with pytest.raises(SqlError, match="100 operators"):
        parse(deep)


@pytest.mark.parametrize(
    ("expression", "count"),
    [
        ("a", 1),
        ("TRUE", 1),
        ("a = 1", 1),
        ("a BETWEEN 1 AND 5 AND NOT (b = 1 OR c IN ('x'))", 4),
        ("(a = 1) = (b = 2)", 3),
        ("-a CONTAINS 'x'", 1),
        (" OR ".join(["a = 1"] * 40), 40),
    ],
)
def test_the_cost_of_an_expression_is_its_comparisons(expression: str, count: int) -> None:
    assert compile_sql(expression).comparison_count == count
