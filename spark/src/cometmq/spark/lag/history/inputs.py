# SPDX-License-Identifier: Apache-2.0
"""Reads all that a report needs from the history, and from the reports kept there."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from cometmq.spark.lag.columns import Report
from cometmq.spark.lag.history.aggregates import read_hours
from cometmq.spark.lag.history.snapshots import History, read_whole
from cometmq.spark.lag.rules import Rules
from cometmq.spark.tables.arrow import versioned
from cometmq.spark.tables.files import write_parquet

WEEK_MINUTES: Final = 7 * 24 * 60


Lags = dict[tuple[str, str], int | None]
"""Unread messages by cluster and group."""


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """The history up to snapshot `last_id`: small tables in memory, others as DataFrames.

    Names with `past_` cover `Rules.history_s`, the others the long window.
    """

    spark: SparkSession
    last_id: int
    brokers: pa.Table
    groups: pa.Table
    progress: DataFrame
    offsets: DataFrame
    past_groups: DataFrame
    past_offsets: DataFrame
    past_progress: DataFrame
    """Thinned out: compacted hours have one snapshot per ten minutes."""
    hours: DataFrame | None
    """Hourly sums of the last `Rules.silent_days`; None if the history is shorter."""
    earlier_lags: Mapping[str, Lags]
    """Lag of each group in earlier reports, by the column that shows the difference."""

    def frame(self, table: pa.Table) -> DataFrame:
        """Create a DataFrame without lineage, so that Spark does not repeat the earlier steps."""
        return self.spark.createDataFrame(table)


def read_inputs(spark: SparkSession, history: History, last_id: int, rules: Rules) -> Inputs:
    """Read what a report of a snapshot needs; raise HistoryError if a file is damaged."""
    recent = (last_id - rules.long_window_s // 60, last_id)
    past = (min(recent[0], last_id - rules.history_s // 60), last_id)
    return Inputs(
        spark=spark,
        last_id=last_id,
        brokers=history.table("brokers", *recent),
        groups=history.table("groups", *recent),
        progress=history.read(spark, "progress", *recent),
        offsets=history.read(spark, "offsets", *recent),
        past_groups=history.read(spark, "groups", *past),
        past_offsets=history.read(spark, "offsets", *past),
        past_progress=history.read_sparse(spark, *past),
        hours=read_hours(spark, history.root, last_id, rules.silent_days),
        earlier_lags={
            "lag_change_last": lag_before(history.root, last_id, None),
            "lag_change_week": lag_before(history.root, last_id, WEEK_MINUTES),
        },
    )


REPORT: Final = "report"
KEPT: Final = ("queue", "group", "broker")
NEAR_MINUTES: Final = 30
"""Maximum distance of an earlier report from the requested time."""


_RUN_ID: Final = "run_id=%Y%m%dT%H%M%SZ"
_FILE: Final = "part.parquet"


def lag_before(root: Path, snapshot_id: int, age_minutes: int | None) -> Lags:
    """Read the lag of each group in an earlier report.

    `age_minutes` selects the report closest to that age; None selects the previous report.
    """
    runs = {it: path for it, path in _runs(root) if it < snapshot_id}
    if age_minutes is None:
        chosen = max(runs, default=None)
    else:
        wanted = snapshot_id - age_minutes
        chosen = min(runs, key=lambda it: abs(it - wanted), default=None)
        if chosen is not None and abs(chosen - wanted) > NEAR_MINUTES:
            chosen = None
    if chosen is None:
        return {}
    rows = read_whole(runs[chosen] / _FILE, columns=["cluster", "group", "lag_sum"]).to_pylist()
    return {(row["cluster"], row["group"]): row["lag_sum"] for row in rows}


def _runs(root: Path) -> list[tuple[int, Path]]:
    found = []
    for path in (root / REPORT / "group").glob("dt=*/run_id=*"):
        try:
            moment = datetime.strptime(path.name, _RUN_ID).replace(tzinfo=UTC)
        except ValueError:
            continue  # not written by a report
        if (path / _FILE).exists():
            found.append((int(moment.timestamp()) // 60, path))
    return found


def keep(root: Path, report: Report) -> None:
    """Save the tables for later reports; a report of the same snapshot is replaced."""
    header = report.header
    for name in KEPT:
        day = f"dt={header.snapshot_ts:%Y-%m-%d}"
        path = root / REPORT / name / day / f"run_id={header.run_id}" / _FILE
        write_parquet(path, versioned(report.tables[name]))
