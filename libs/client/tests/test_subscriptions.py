# SPDX-License-Identifier: Apache-2.0
"""Subscriptions: tags, their codes and SQL conditions."""

import pytest

from cometmq.client import InvalidArgument, LitePullConsumer, MessageSelector
from cometmq.client.subscriptions import ExpressionType, doubt, subscription
from cometmq.client.testing import MemoryCluster


def test_tags_and_their_codes_are_named_once() -> None:
    wanted = subscription("T", " TagA || TagB||TagA ", version_ms=5)
    assert wanted.tags_set == ["TagA", "TagB"]
    assert wanted.code_set == [2598919, 2598920]
    assert (wanted.sub_version, wanted.expression_type) == (5, "TAG")


@pytest.mark.parametrize("text", ["*", "", "  "])
def test_no_tag_means_every_message(text: str) -> None:
    wanted = subscription("T", text, version_ms=0)
    assert (wanted.sub_string, wanted.tags_set) == ("*", [])


def test_a_condition_travels_as_it_is() -> None:
    wanted = subscription("T", "a > 1", ExpressionType.SQL92, version_ms=0)
    assert (wanted.sub_string, wanted.expression_type, wanted.tags_set) == ("a > 1", "SQL92", [])


@pytest.mark.parametrize(
    ("condition", "advice"),
    [
        ("color LIKE 'r%'", "LIKE does not exist"),
        ("a b c", "ignore everything from 'b' on"),
        ("a = 5 b = 6", "ignore everything from 'b' on"),
        ("(a = 5) (b = 6)", "ignore everything from '(' on"),
        ("price > 5 + 2", "ignore everything from '+' on"),
        ("price - 1 > 5", "ignore everything from '-' on"),
        ("price > 5 , 6", "ignore everything from ',' on"),
        ("price > 5 )", "ignore everything from ')' on"),
        ("a = 'x' + 'y'", "ignore everything from '+' on"),
        ("lower(color) = 'red'", "functions do not exist"),
        ("color = red", "write color = 'red'"),
        ("color <> red AND a > 1", "write color <> 'red'"),
        ("urgent", "write urgent = TRUE"),
    ],
)
def test_a_doubtful_condition_has_advice(condition: str, advice: str) -> None:
    assert advice in doubt(subscription("T", condition, ExpressionType.SQL92, version_ms=0))


@pytest.mark.parametrize(
    "condition",
    [
        "price BETWEEN 5 AND 10 AND color IN ('red', 'blue') AND (a IS NOT NULL OR b <> 'eu')",
        "a > -5 -- the rest of the line",
        "a = 'it''s LIKE b' AND NOT (b = 5L) /* a b */",
        "a > b",
        "TRUE",
        "name NOT STARTSWITH 'x' and flag = true",
    ],
)
def test_a_sound_condition_is_not_doubted(condition: str) -> None:
    assert doubt(subscription("T", condition, ExpressionType.SQL92, version_ms=0)) == ""


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        ("price >", "'price >' ends where a property or a value must follow"),
        ("price > > 5", "has > at line 1, column 9 where a property or a value must follow"),
        ("(price > 5", "ends where an operator or ')' must follow"),
        ("(price > 5\n  b", "has b at line 2, column 3 where an operator or ')' must follow"),
        ("a BETWEEN 1 OR 2", "has OR at line 1, column 13 where AND and the upper bound"),
        ("a IN (5)", "has 5 at line 1, column 7 where a text in single quotes must follow"),
        ("a IS 5", "where NULL or NOT NULL must follow"),
        ("a NOT = 5", "where BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH must follow"),
        ("color = 'red", "has ' at line 1, column 9: this text has no closing quote"),
        ('color = "red"', 'has " at line 1, column 9: write texts in single quotes'),
        ("a = 1 &&\n b = 2", "has & at line 1, column 7: write AND"),
        ("a = 1 || b = 2", "has | at line 1, column 7: write OR"),
        ("a != 1", "has != at line 1, column 3: for unequal, write <>"),
        ("!a", "has ! at line 1, column 1: write NOT"),
        ("a = 1 /* why", "this comment has no closing */"),
        ("a = 5\n AND # b", "has '#' at line 2, column 6, which begins no property, value or"),
        ("größe > 5", "has 'ö' at line 1, column 3"),
        ("  ", "ends where a property or a value must follow"),
    ],
)
def test_a_syntax_error_is_raised_with_its_place(condition: str, text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        subscription("T", condition, ExpressionType.SQL92, version_ms=0)
    assert text in str(caught.value)


async def test_a_syntax_error_is_raised_before_the_topic_exists(cluster: MemoryCluster) -> None:
    consumer = LitePullConsumer("cg", cluster.namesrv)
    with pytest.raises(InvalidArgument, match=r"SQL92 condition 'price >' ends where"):
        consumer.subscribe("New", MessageSelector.by_sql("price >"))
