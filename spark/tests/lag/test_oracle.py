# SPDX-License-Identifier: Apache-2.0
"""A report agrees with an independent implementation on random histories.

The histories include rewinds, gaps, recreated topics, deleted groups, unreachable brokers, repeated
rows, DST changes, and a leap day.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from cometmq.spark.lag.analysis.report import build
from cometmq.spark.lag.history.snapshots import History
from cometmq.spark.lag.rules import Rules

from .oracle import KEY, Row, queue_table
from .oracle_groups import GROUP_KEY, group_table
from .random_histories import batch, moment

HISTORIES = 50
"""Number of histories in each batch."""


class Batch(NamedTuple):
    """Histories that end at the same time, and the expected report."""

    root: Path
    rules: Rules
    expected: dict[tuple[Any, ...], Row]


BATCHES = [
    # DST starts: there is no 02:30 in Berlin
    ("2026-03-29T00:10", "Europe/Berlin", 70),
    # DST ends: 02:30 occurs twice
    ("2026-10-25T00:40", "Europe/Berlin", 90),
    ("2028-02-29T00:05", "Asia/Kolkata", 80),
    ("2027-12-31T23:59", "America/New_York", 40),
]


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> list[Batch]:
    found = []
    for number, (end, zone, minutes) in enumerate(BATCHES):
        root = tmp_path_factory.mktemp("batch")
        batch(root, seed=number, end=moment(end), minutes=minutes,
              first=number * HISTORIES, count=HISTORIES)  # fmt: skip
        rules = Rules(timezone=zone, risk_hours=6, long_window_s=2400, allowed_lag=number % 2)
        found.append(Batch(root, rules, queue_table(root, rules)))
    return found


@pytest.mark.parametrize("number", range(len(BATCHES)))
def test_report_equals_the_oracle(spark: SparkSession, batches: list[Batch], number: int) -> None:
    root, rules, expected = batches[number]

    report = build(spark, History(root), rules)

    found = {tuple(row[name] for name in KEY): row for row in report.rows("queue")}
    _assert_same(found, expected)
    groups = {tuple(row[name] for name in GROUP_KEY): row for row in report.rows("group")}
    _assert_same(groups, group_table(expected))
    assert len({row["status"] for row in expected.values()}) >= 8  # most statuses occur


def _assert_same(found: dict[Any, Row], expected: dict[Any, Row]) -> None:
    assert set(found) == set(expected)
    differences = [
        f"{key} {name}: {found[key][name]!r}, expected {value!r}"
        for key, row in expected.items()
        for name, value in row.items()
        if name != "present" and not _is_same(found[key][name], value)
    ]
    names = sorted({line.split(":")[0].split()[-1] for line in differences})
    assert not differences, f"{names}\n" + "\n".join(differences[:20])


def _is_same(found: Any, expected: Any) -> bool:
    if isinstance(found, float) and isinstance(expected, (int, float)):
        return math.isclose(found, expected, rel_tol=1e-6, abs_tol=2e-5)
    return bool(found == expected)
