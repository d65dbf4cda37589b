# SPDX-License-Identifier: Apache-2.0
"""Hundreds of expressions give the same errors, trees and results as in RocketMQ 4.9.4.

`data/java_answers.jsonl` was recorded from RocketMQ's filter library. A result is one letter for
each set of properties: true, false, null, or ! for an exception.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.filters.sql import SqlError
from cometmq.broker.filters.sql.evaluate import compiled
from cometmq.broker.filters.sql.parser import parse
from cometmq.broker.filters.sql.values import EvaluationError
from cometmq.testing.broker.random_sql import REFUSED_ZERO
from cometmq.testing.remoting.cases import check_each

LINES = (Path(__file__).parent / "data" / "java_answers.jsonl").read_text().splitlines()
ANSWERS: list[dict[str, Any]] = [json.loads(line) for line in LINES]
REFUSED = [one for one in ANSWERS if one.get("error", REFUSED_ZERO) != REFUSED_ZERO]
TAKEN = [one for one in ANSWERS if "error" not in one]
# RocketMQ shows a hash set in its own order, and the smallest double differently.
NOT_SHOWN_ALIKE = {"a not in ('5','abc','x','y','z')", "a > 4.9e-324"}
# RocketMQ fails to compare a truth value with a string that is on its right.
TRUTH_ON_THE_LEFT = {"true = a", "TRUE <> a", "(a=1) = 'true'", "(a = 1) = a"}
FEW = [
    *({}, {"a": "5"}, {"a": "abc"}, {"a": "3.14"}, {"a": "true"}),
    *({"a": "1", "b": "2", "c": "3"}, {"a": " 7 "}, {"a": "it's"}, {"a": "é"}),
]
MANY = [
    {"b": "2", "c": "3"} | ({} if value is None else {"a": value})
    for value in (
        *(None, "5", "-5", "+5", "abc", "3.14", "true", "TRUE", "false", " 7 ", "", "2147483648"),
        *("9223372036854775808", "1e3", "NaN", "Infinity", "-Infinity", "inf", "1_0", "0x10"),
        *("5d", "5f", "5.", "-0.0", "0", "0x1p3", "٣", "1e400", "\u00a07", "10", "05"),
    )
] + [{}]


def test_the_recording_is_whole() -> None:
    assert len(REFUSED) > 120
    assert len(TAKEN) > 130
    assert len(by_condition(ANSWERS)) == len(ANSWERS)
    assert sum(len(one["results"]) for one in TAKEN) > 2_500


def by_condition(answers: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {f"{answer['sql']} with {answer.get('set')}": answer for answer in answers}


def test_the_error_is_javas() -> None:
    check_each(check_error, by_condition(REFUSED))


def check_error(answer: dict[str, Any]) -> None:
    with pytest.raises(SqlError) as caught:
        parse(answer["sql"])
    assert str(caught.value) == answer["error"]


def test_the_tree_is_javas() -> None:
    check_each(check_tree, by_condition(TAKEN))


def check_tree(answer: dict[str, Any]) -> None:
    if "contains" in answer["sql"]:
        assert str(parse(answer["sql"])) == "(CONTAINS a)"  # in 4.9.4 it ends after the `a`
    elif answer["sql"] not in NOT_SHOWN_ALIKE:
        assert str(parse(answer["sql"])) == answer["text"]


def test_the_results_are_javas() -> None:
    answers = [one for one in TAKEN if one["results"] and "contains" not in one["sql"]]
    check_each(check_results, by_condition(answers))


def check_results(answer: dict[str, Any]) -> None:
    names: dict[str, int] = {}
    evaluate = compiled(parse(answer["sql"]), names)
    sets = FEW if answer["set"] == "few" else MANY
    results = ""
    for properties in sets:
        try:
            result: Any = evaluate([properties.get(name) for name in names])
        except EvaluationError:
            results += "!"
        else:
            results += {True: "t", False: "f", None: "n"}[result]
    if answer["sql"] in TRUTH_ON_THE_LEFT:
        assert all(java in ("!", own) for own, java in zip(results, answer["results"], strict=True))
    else:
        assert results == answer["results"]
