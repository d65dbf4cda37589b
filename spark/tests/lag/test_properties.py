# SPDX-License-Identifier: Apache-2.0
"""What must hold of every report, whatever the history: looked at on random histories."""

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from cometmq.spark.collect.writer import snapshot_path
from cometmq.spark.lag.columns import SEVERITIES, STATUSES
from cometmq.spark.lag.compact import compact
from cometmq.spark.lag.history import History, snapshot_id_in
from cometmq.spark.lag.report import build
from cometmq.spark.lag.rules import Rules
from cometmq.spark.lag.status import RULES, STATUS

from .histories import batch, moment
from .oracle import KEY

END = moment("2027-05-12T10:20")
RULES_USED = Rules(risk_hours=6, long_window_s=1800)
OFFSETS = ("consumer_offset", "min_offset", "max_offset")
WEEK_MINUTES = 7 * 24 * 60

Found = dict[tuple[Any, ...], dict[str, Any]]
Change = Callable[[pa.Table], pa.Table]


def _report(spark: SparkSession, root: Path) -> Found:
    table = build(spark, History(root), RULES_USED).table("queue")
    return {tuple(row[name] for name in KEY): row for row in table.to_pylist()}


def _copy(source: Path, target: Path, change: Change, *, minutes: int = 0) -> Path:
    """Write every snapshot again, changed."""
    for path in source.glob("raw/*/*/*/*.parquet"):
        table, name = pq.read_table(path, partitioning=None), path.parts[-4]
        to = snapshot_path(target, name, snapshot_id_in(path) + minutes)
        to.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(change(table), to)
    return target


def _shifted(table: pa.Table, *, offset: int = 0, minutes: int = 0) -> pa.Table:
    """Return the rows with all offsets and all moments later."""
    for index, field in enumerate(table.schema):
        if field.name in OFFSETS:
            table = table.set_column(index, field, pc.add(table[field.name], offset))
        elif field.name == "snapshot_id":
            table = table.set_column(index, field, pc.add(table[field.name], minutes))
        elif pa.types.is_timestamp(field.type):
            later = pc.add(table[field.name].cast(pa.int64()), minutes * 60_000_000)
            table = table.set_column(index, field, later.cast(field.type))
    return table


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Histories in which no offset is 0: that one says "has consumed nothing"."""
    plain = tmp_path_factory.mktemp("plain")
    batch(plain, seed=9, end=END, minutes=45, first=0, count=25)
    return _copy(plain, tmp_path_factory.mktemp("base"), lambda it: _shifted(it, offset=1000))


@pytest.fixture(scope="module")
def base(spark: SparkSession, root: Path) -> Found:
    return _report(spark, root)


def test_figures_are_possible(base: Found) -> None:
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


def test_the_further_a_group_is_the_younger_is_what_it_reads(base: Found) -> None:
    by_queue: dict[Any, list[tuple[int, float]]] = {}
    for key, row in base.items():
        if row["lag_time_method"] == "interp":
            queue = (key[0], *key[2:], row["read_ts"])
            by_queue.setdefault(queue, []).append((row["consumer_offset"], row["lag_interp_s"]))
    pairs = [sorted(it) for it in by_queue.values() if len(it) > 1]
    assert pairs  # else this says nothing
    for positions in pairs:
        ages = [age for _, age in positions]
        assert ages == sorted(ages, reverse=True)


def test_all_offsets_later_is_the_same_report(
    spark: SparkSession, root: Path, base: Found, tmp_path: Path
) -> None:
    far = _copy(root, tmp_path, lambda it: _shifted(it, offset=10**12))
    _assert_same(_report(spark, far), base, but=OFFSETS)


def test_a_week_later_in_another_order_is_the_same_report(
    spark: SparkSession, root: Path, base: Found, tmp_path: Path
) -> None:
    random_ = random.Random(1)

    def change(table: pa.Table) -> pa.Table:
        indices = [*range(table.num_rows), *range(0, table.num_rows, 3)]
        random_.shuffle(indices)
        return _shifted(table.take(indices), minutes=WEEK_MINUTES)

    later = _copy(root, tmp_path, change, minutes=WEEK_MINUTES)
    _assert_same(_report(spark, later), base, but=("read_ts",))


def test_compacted_hours_give_the_same_report(
    spark: SparkSession, root: Path, base: Found, tmp_path: Path
) -> None:
    copy = _copy(root, tmp_path, lambda it: it)
    assert len(compact(History(copy), moment("2027-05-12T10:30"))) == 1
    _assert_same(_report(spark, copy), base)


def test_a_minute_in_which_nothing_happens_makes_nothing_better(
    spark: SparkSession, root: Path, base: Found, tmp_path: Path
) -> None:
    copy = _copy(root, tmp_path, lambda it: it)
    last_id = History(copy).newest_id()
    for path in copy.glob(f"raw/*/*/*/snap-{last_id}.parquet"):
        table = _minute_later(pq.read_table(path, partitioning=None))
        to = snapshot_path(copy, path.parts[-4], last_id + 1)
        to.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, to)
    found = _report(spark, copy)
    rank = SEVERITIES.index
    for key, row in base.items():
        # What was lost or went back is told for the time of the window, then it is past.
        if row["status"] not in ("LOST", "REWIND") and key in found:
            after = found[key]
            assert rank(after["severity"]) >= rank(row["severity"]), (key, row, after)


def _minute_later(table: pa.Table) -> pa.Table:
    """Return a snapshot that was taken a minute later; what was stored when stays."""
    for index, field in enumerate(table.schema):
        if field.name == "snapshot_id":
            table = table.set_column(index, field, pc.add(table[field.name], 1))
        elif field.name in ("read_ts", "max_read_ts"):
            later = pc.add(table[field.name].cast(pa.int64()), 60_000_000)
            table = table.set_column(index, field, later.cast(field.type))
    return table


def test_every_state_has_one_status(spark: SparkSession) -> None:
    """Also where facts are missing."""
    random_ = random.Random(3)
    flags = (
        "broadcast", "seen_broadcast", "present", "losing", "always_online", "fine_now",
        "online", "fine_once", "went_back", "drains",
    )  # fmt: skip
    numbers = ("points_w", "points_min", "time_to_loss_s", "risk_s", "c", "m", "n", "lag",
               "c_min", "c_max")  # fmt: skip
    rows = [
        tuple(random_.choice([None, False, True, True]) for _ in flags)
        + tuple(random_.choice([None, 0, 3, 9]) for _ in numbers)
        for _ in range(5000)
    ]
    schema = ", ".join([*(f"{it} boolean" for it in flags), *(f"{it} bigint" for it in numbers)])
    frame = spark.createDataFrame(rows, schema).selectExpr(f"{STATUS} AS status")
    found = set(frame.toArrow()["status"].to_pylist())
    assert found == set(STATUSES)
    assert {name for name, _ in RULES} | {"OK"} == set(STATUSES)


def _assert_same(found: Found, expected: Found, *, but: tuple[str, ...] = ()) -> None:
    assert set(found) == set(expected)
    for key, row in expected.items():
        for name, value in row.items():
            if name not in but:
                assert _is_same(found[key][name], value, name), (key, name)


def _is_same(found: Any, expected: Any, name: str) -> bool:
    if isinstance(expected, float) and isinstance(found, float):
        return name == "retention_ratio" or math.isclose(
            found, expected, rel_tol=1e-9, abs_tol=1e-6
        )
    return bool(found == expected)
