# SPDX-License-Identifier: Apache-2.0
"""Reads all that a report needs from the history, before anything is computed."""

from collections.abc import Mapping
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from cometmq.spark.lag.history.aggregates import read_hours
from cometmq.spark.lag.history.reports import Lags, lag_before
from cometmq.spark.lag.history.snapshots import History
from cometmq.spark.lag.rules import Rules

WEEK_MINUTES: Final = 7 * 24 * 60


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
