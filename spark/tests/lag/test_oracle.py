# SPDX-License-Identifier: Apache-2.0
"""A report equals an independent implementation on random histories.

Among them: rewinds, gaps, topics made anew, deleted groups, brokers that are away, repeated rows,
the days on which the clocks change, and a leap day.
"""

import math
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cometmq.spark.lag.history import History
from cometmq.spark.lag.report import build
from cometmq.spark.lag.rules import Rules

from .histories import batch, moment
from .oracle import KEY, queue_table

BATCHES = [
    # the night in which clocks go forward: there is no 02:30 in Berlin
    ("2026-03-29T01:10", "Europe/Berlin", 70),
    # the one in which they go back: 02:30 comes twice
    ("2026-10-25T00:40", "Europe/Berlin", 90),
    ("2028-02-29T00:05", "Asia/Kolkata", 80),
    ("2027-12-31T23:59", "America/New_York", 40),
]
HISTORIES = 50
"""In each of them."""


@pytest.mark.parametrize(("number", "end", "zone", "minutes"),
                         [(i, *it) for i, it in enumerate(BATCHES)])  # fmt: skip
def test_a_report_equals_the_oracle(
    spark: SparkSession, tmp_path: Path, number: int, end: str, zone: str, minutes: int
) -> None:
    batch(tmp_path, seed=number, end=moment(end), minutes=minutes,
          first=number * HISTORIES, count=HISTORIES)  # fmt: skip
    rules = Rules(timezone=zone, risk_hours=6, long_window_s=2400, allowed_lag=number % 2)
    expected = queue_table(tmp_path, rules)

    report = build(spark, History(tmp_path), rules)

    found = {tuple(row[name] for name in KEY): row for row in report.table("queue").to_pylist()}
    assert set(found) == set(expected)
    differences = [
        f"{key} {name}: {found[key][name]!r}, expected {value!r}"
        for key, row in expected.items()
        for name, value in row.items()
        if not _is_same(found[key][name], value)
    ]
    names = sorted({line.split(":")[0].split()[-1] for line in differences})
    assert not differences, f"{names}\n" + "\n".join(differences[:20])
    assert len({row["status"] for row in expected.values()}) >= 8  # the histories are rich


def _is_same(found: Any, expected: Any) -> bool:
    if isinstance(found, float) and isinstance(expected, (int, float)):
        return math.isclose(found, expected, rel_tol=1e-6, abs_tol=2e-5)
    return found == expected
