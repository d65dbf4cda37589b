# SPDX-License-Identifier: Apache-2.0
"""Subscriptions: tags, their codes and SQL conditions."""

import pytest

from cometmq.client.subscriptions import ExpressionType, subscription


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
