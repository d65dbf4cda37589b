# SPDX-License-Identifier: Apache-2.0
"""Invariants of every report, checked on histories drawn by Hypothesis."""

import random
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from cometmq.insight.judge import SEVERITIES
from cometmq.spark.collect.snapshot import snapshot_path
from cometmq.spark.lag.analysis.report import build
from cometmq.spark.lag.columns import STATUSES
from cometmq.spark.lag.history.snapshots import History
from cometmq.spark.lag.history.upkeep import compact
from cometmq.spark.lag.rules import Rules

from .drawn_histories import BASE, Drawn, drawn, histories, rows_of, write
from .oracle import KEY, queue_table
from .random_histories import moment

END = moment("2027-05-12T10:06")
LATER = timedelta(days=400)
RULES_USED = Rules(risk_hours=6, long_window_s=1800)
OFFSETS = ("consumer_offset", "min_offset", "max_offset")
DRAWN = 400
MINUTE_S = 60

Found = dict[tuple[Any, ...], dict[str, Any]]


def _report(spark: SparkSession, root: Path) -> Found:
    table = build(spark, History(root), RULES_USED).table("queue")
    return {tuple(row[name] for name in KEY): row for row in table.to_pylist()}


@pytest.fixture(scope="module")
def all_drawn() -> list[Drawn]:
    return drawn(histories(), DRAWN)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, all_drawn: list[Drawn]) -> Path:
    folder = tmp_path_factory.mktemp("drawn")
    write(folder, all_drawn, END)
    return folder


@pytest.fixture(scope="module")
def base(spark: SparkSession, root: Path) -> Found:
    return _report(spark, root)


def test_drawn_histories_cover_every_status(root: Path, all_drawn: list[Drawn]) -> None:
    expected = queue_table(root, RULES_USED)
    assert len(all_drawn) == DRAWN
    assert {row["status"] for row in expected.values()} == set(STATUSES)
    methods = {row["lag_time_method"] for row in expected.values()}
    assert methods == {"zero", "exact", "interp", "extrap_min", "unknown"}


def test_report_of_drawn_histories_equals_the_oracle(base: Found, root: Path) -> None:
    expected = queue_table(root, RULES_USED)
    names = set(next(iter(expected.values()))) - {"present"}
    _assert_same({key: {it: row[it] for it in names} for key, row in base.items()},
                 {key: {it: row[it] for it in names} for key, row in expected.items()},
                 near=1e-6)  # fmt: skip


def test_figures_are_plausible(base: Found) -> None:
    for row in base.values():
        c, n, m = (row[name] for name in OFFSETS)
        assert row["lag"] is None or row["lag"] >= 0
        assert row["lost"] >= 0
        if c is not None and c <= m:
            assert row["lag"] + row["lost"] <= m - c
        for name in ("lag_age_s", "lag_interp_s", "lag_span_s", "time_to_loss_s", "eta_low_s"):
            assert row[name] is None or row[name] >= 0
        if row["eta_catchup_s"] and row["eta_high_s"]:
            assert row["eta_low_s"] <= row["eta_catchup_s"] <= row["eta_high_s"]
        assert row["severity"] == STATUSES[row["status"]]
        assert (row["time_to_loss_s"] is None) == (row["ttl_model"] == "none")
        assert n <= m


def test_higher_offsets_arrived_later(base: Found, all_drawn: list[Drawn]) -> None:
    """Each arrival lies between the last snapshot without the message and the first with it."""
    by_queue: dict[str, list[tuple[int, float]]] = {}
    for (cluster, *_), row in base.items():
        position = max(row["consumer_offset"] or 0, row["min_offset"])
        if row["lag"] and row["lag_interp_s"] is not None:
            arrived = row["read_ts"].timestamp() - row["lag_interp_s"]
            before, after = _around(position, _ends(all_drawn, cluster))
            assert before - 1e-5 <= arrived <= after + 1e-5, (cluster, row)
            by_queue.setdefault(cluster, []).append((position, arrived))
    pairs = [pair for it in by_queue.values() for pair in pairwise(sorted(it))]
    assert sum(a[0] < b[0] for a, b in pairs) > DRAWN // 10  # otherwise the test is vacuous
    assert all(a[1] <= b[1] + 1e-5 for a, b in pairs)


def _ends(all_drawn: list[Drawn], cluster: str) -> list[tuple[float, int]]:
    """Return the end of a queue at each snapshot."""
    last_id = int(END.timestamp()) // MINUTE_S
    minutes = rows_of(all_drawn[int(cluster[1:])], cluster, BASE, last_id)
    rows = [it["offsets"][0] for it in minutes if it]
    return [(row["read_ts"] / 1e6, row["max_offset"]) for row in rows]


def _around(position: int, ends: list[tuple[float, int]]) -> tuple[float, float]:
    index = max((i for i, (_, m) in enumerate(ends) if m <= position), default=-1)
    after = next(at for at, m in ends[index + 1 :] if m > position)
    return (after if index < 0 else ends[index][0]), after


def test_report_does_not_depend_on_absolute_offsets(
    spark: SparkSession, base: Found, all_drawn: list[Drawn], tmp_path: Path
) -> None:
    """The offsets of each cluster are shifted by a different number."""
    write(tmp_path, all_drawn, END, is_shifted=True)
    _assert_same(_report(spark, tmp_path), base, but=OFFSETS)


def test_report_does_not_depend_on_date_order_duplicates_or_compaction(
    spark: SparkSession, base: Found, all_drawn: list[Drawn], tmp_path: Path
) -> None:
    write(tmp_path, all_drawn, END + LATER)
    random_ = random.Random(1)
    for path in tmp_path.glob("raw/*/*/*/*.parquet"):
        table = pq.read_table(path, partitioning=None)
        indices = [*range(table.num_rows), *range(0, table.num_rows, 3)]
        random_.shuffle(indices)
        pq.write_table(table.take(pa.array(indices, pa.int64())), path)
    assert (
        len(compact(History(tmp_path), END + LATER)) == 1
    )  # of the previous hour; one hour is left raw

    _assert_same(_report(spark, tmp_path), base, but=("read_ts",))


def test_an_uneventful_minute_improves_no_status(
    spark: SparkSession, base: Found, all_drawn: list[Drawn], tmp_path: Path
) -> None:
    write(tmp_path, all_drawn, END)
    last_id = History(tmp_path).newest_id()
    for path in tmp_path.glob(f"raw/*/*/*/snap-{last_id}.parquet"):
        table = _minute_later(pq.read_table(path, partitioning=None))
        pq.write_table(table, snapshot_path(tmp_path, path.parts[-4], last_id + 1))
    found = _report(spark, tmp_path)
    assert set(found) == set(base)
    for key, row in base.items():
        after = found[key]
        assert _rank(after) >= _rank(row) or _may_be_better(row, after), (key, row, after)
        if row["ttl_model"] == after["ttl_model"] == "time" and row["log_speed"] == 0:
            # Time to loss shrinks by a minute, until the hour of deletion is over.
            left = row["time_to_loss_s"]
            assert left == 0 or abs(after["time_to_loss_s"] - (left - MINUTE_S)) < 1e-5


def _rank(row: dict[str, Any]) -> int:
    return SEVERITIES.index(row["severity"])


def _may_be_better(row: dict[str, Any], after: dict[str, Any]) -> bool:
    """Return whether the status may improve in a minute without events.

    A loss or a rewind is only reported for the length of a window. The forecast of a loss changes
    with the rates, and disappears after the hour of deletion. UNKNOWN means that the window has too
    few snapshots.
    """
    if row["status"] in ("LOST", "REWIND") or "UNKNOWN" in (row["status"], after["status"]):
        return True
    return row["status"] == "AT_RISK" and not _is_soon(after["time_to_loss_s"])


def _is_soon(seconds: float | None) -> bool:
    return seconds is not None and seconds < RULES_USED.risk_hours * 3600


def _minute_later(table: pa.Table) -> pa.Table:
    """Return a snapshot taken a minute later, with unchanged store times."""
    for index, field in enumerate(table.schema):
        if field.name == "snapshot_id":
            table = table.set_column(index, field, pc.add(table[field.name], 1))
        elif field.name in ("read_ts", "max_read_ts"):
            later = pc.add(table[field.name].cast(pa.int64()), MINUTE_S * 1_000_000)
            table = table.set_column(index, field, later.cast(field.type))
    return table


def _assert_same(
    found: Found, expected: Found, *, but: tuple[str, ...] = (), near: float = 1e-9
) -> None:
    assert set(found) == set(expected)
    for key, row in expected.items():
        for name, value in row.items():
            if name not in but:
                assert _is_same(found[key][name], value, near), (key, name, found[key], row)


def _is_same(found: Any, expected: Any, near: float) -> bool:
    if isinstance(found, float) and isinstance(expected, (int, float)):
        return abs(found - expected) <= max(2e-5, near * abs(expected))
    return bool(found == expected)
