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
        ("a b c", "ignore everything from 'b' on: join conditions by AND or OR"),
        ("(a = 5) (b = 6)", "ignore everything from '(' on"),
        ("price > 5 + 2", "ignore everything from '+' on"),
        ("price > 5 )", "ignore everything from ')' on"),
        ("color = red", "write color = 'red'"),
        ("color <> red AND a > 1", "write color <> 'red'"),
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
        ("price >", r'"<EOF>" at line 1, column 7.*<ID>'),
        ("price > > 5", r"column 9.*<DECIMAL_LITERAL>"),
        ("(price > 5\n  b", r"line 2, column 3.*\"\)\""),
        ("a NOT = 5", r"column 3.*BETWEEN"),
        ("color = 'red", r"Lexical error at line 1, column 13"),
        ("a != 1", r"line 1, column 3"),
        ("a = 5\n AND # b", r"line 2, column 6"),
        ("  ", r"'  ': Encountered \"<EOF>\""),
    ],
)
def test_a_syntax_error_is_raised_with_its_place(condition: str, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        subscription("T", condition, ExpressionType.SQL92, version_ms=0)


async def test_a_syntax_error_is_raised_before_the_topic_exists(cluster: MemoryCluster) -> None:
    consumer = LitePullConsumer("cg", cluster.namesrv)
    with pytest.raises(InvalidArgument, match=r"SQL92 condition 'price >'"):
        consumer.subscribe("New", MessageSelector.by_sql("price >"))
