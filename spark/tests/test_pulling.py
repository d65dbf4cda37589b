# SPDX-License-Identifier: Apache-2.0
"""Filters by tag and by SQL are distinguished and validated before a broker is queried."""

import pytest

from cometmq.spark.cluster.pulling import Filter, filter_of
from cometmq.spark.errors import OptionError
from cometmq.spark.options.definitions import ExpressionType, parse


def test_everything_and_tags() -> None:
    assert filter_of(parse({})).takes_all
    tags = filter_of(parse({"subExpression": " b || a||a "}))
    assert tags == Filter("b || a||a", ExpressionType.TAG, ("a", "b"))
    assert not tags.takes_all


def test_sql_requires_its_expression_type() -> None:
    options = {"subExpression": "price > 5", "expressionType": "SQL92"}

    assert filter_of(parse(options)) == Filter("price > 5", ExpressionType.SQL92)
    assert not filter_of(parse(options)).takes_all


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"subExpression": "price > 5"}, "looks like SQL"),
        ({"subExpression": "a is null"}, "looks like SQL"),
        ({"subExpression": "||"}, "names no tag"),
        ({"expressionType": "SQL92"}, "requires a condition"),
    ],
)
def test_invalid_filters_are_named(options: dict[str, str], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        filter_of(parse(options))
