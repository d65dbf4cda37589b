# SPDX-License-Identifier: Apache-2.0
"""Compiled filters agree with an independent, slow evaluator."""

from collections.abc import Mapping
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.filters.sql import SqlError, compile_sql
from cometmq.broker.filters.sql.parser import parse
from cometmq.remoting.sql.lexer import END, tokens

from .slow_sql import Condition, Impossible, conditions, property_sets


@given(conditions, property_sets)
def test_compiled_filters_agree_with_the_slow_evaluator(
    condition: Condition, properties: Mapping[str, str]
) -> None:
    try:
        expected = condition.meaning(properties) is True
    except Impossible:
        expected = False

    assert compile_sql(condition.text).matches(properties) is expected


@given(conditions)
def test_a_tree_prints_as_an_equivalent_expression(condition: Condition) -> None:
    words = str(parse(condition.text))
    for symbol, word in (("&&", " AND "), ("||", " OR "), ("==", "=")):
        words = words.replace(symbol, word)
    if " IN (" in words or "= NULL" in words or "CONTAINS" in words:
        return  # these have their own form
    assert str(parse(words)) == str(parse(condition.text))


@given(st.text("ab5.'-+*/()<>=, \n\tENOTINAND$_#é", max_size=60))
def test_any_text_is_a_filter_or_an_error(text: str) -> None:
    with suppress(SqlError):
        assert isinstance(compile_sql(text).matches({"a": "5"}), bool)


@given(st.text("ab5.'-+()<>=, \n\tNOT", max_size=40))
def test_tokens_and_spaces_cover_the_whole_text(text: str) -> None:
    try:
        found = list(tokens(text))
    except SqlError:
        return
    assert found[-1].kind == END
    end = 0
    for token in found:
        assert text[token.start :].startswith(token.image)
        assert token.start >= end
        assert not text[end : token.start].strip(" \n\t") or "--" in text
        end = token.start + len(token.image)
