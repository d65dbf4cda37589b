# SPDX-License-Identifier: Apache-2.0
"""A report agrees with an independent implementation on random histories.

The histories include rewinds, gaps, recreated topics, deleted groups, unreachable brokers, repeated
rows, DST changes, and a leap day. Each kind is counted, so that none can silently disappear.
"""

import math
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pyarrow.parquet as pq
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
LEAP_DAY = date(2028, 2, 29)


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


def test_histories_contain_every_kind_of_trouble(batches: list[Batch]) -> None:
    counts: Counter[str] = Counter()
    for one in batches:
        counts += _kinds(one)
    assert counts.pop("histories") == 200
    wanted = {
        "rewind", "gap", "topic recreated", "deleted group", "broker away", "row twice",
        "leap day", "clocks go forward", "clocks go back",
    }  # fmt: skip
    assert {kind for kind, count in counts.items() if count >= 5} == wanted, counts


def _kinds(one: Batch) -> Counter[str]:
    """Count, from the files, the clusters that have each kind of problem."""
    brokers, progress = (_rows(one.root, name) for name in ("brokers", "progress"))
    by_kind: dict[str, set[str]] = {"histories": {row["cluster"] for row in brokers}}
    seen: dict[str, set[int]] = {}
    for row in brokers:
        seen.setdefault(row["cluster"], set()).add(row["snapshot_id"])
        if not row["reachable"]:
            by_kind.setdefault("broker away", set()).add(row["cluster"])
        if row["read_ts"].date() == LEAP_DAY:
            by_kind.setdefault("leap day", set()).add(row["cluster"])
    by_kind["gap"] = {it for it, ids in seen.items() if len(ids) <= max(ids) - min(ids)}
    series: dict[tuple[Any, ...], list[Row]] = {}
    for row in sorted(progress, key=lambda it: it["snapshot_id"]):
        series.setdefault(tuple(row[name] for name in KEY), []).append(row)
    for (cluster, *_), rows in series.items():
        for kind in _turns(rows, max(seen[cluster])):
            by_kind.setdefault(kind, set()).add(cluster)
    away = by_kind.get("broker away", set())
    by_kind["deleted group"] = by_kind.get("deleted group", set()) - away
    for key, row in one.expected.items():
        for kind in _changes_of_clocks(row, one.rules.timezone):
            by_kind.setdefault(kind, set()).add(key[0])
    return Counter({kind: len(clusters) for kind, clusters in by_kind.items()})


def _turns(rows: list[Row], last_id: int) -> set[str]:
    found = {"deleted group"} if rows[-1]["snapshot_id"] < last_id else set()
    for a, b in pairwise(rows):
        before, after = a["consumer_offset"], b["consumer_offset"]
        if b["max_offset"] < a["max_offset"]:
            found.add("topic recreated")
        elif before is not None and after is not None and after < before:
            found.add("rewind")
        if a["snapshot_id"] == b["snapshot_id"]:
            found.add("row twice")
    return found


def _changes_of_clocks(row: Row, zone: str) -> set[str]:
    """Return the DST changes between now and the next deletion of unread data."""
    if row["ttl_time_s"] is None or row["log_speed"]:
        return set()
    now = row["read_ts"].astimezone(UTC)
    offsets = [_utc_offset(now + timedelta(seconds=it), zone) for it in (0, row["ttl_time_s"])]
    if offsets[0] == offsets[1]:
        return set()
    return {"clocks go forward" if offsets[1] > offsets[0] else "clocks go back"}


def _utc_offset(when: datetime, zone: str) -> timedelta:
    offset = when.astimezone(ZoneInfo(zone)).utcoffset()
    assert offset is not None
    return offset


def _rows(root: Path, table: str) -> list[Row]:
    files = sorted((root / "raw" / table).glob("*/*/*.parquet"))
    tables = (pq.read_table(path, partitioning=None) for path in files)
    return [row for it in tables for row in it.to_pylist()]
