# SPDX-License-Identifier: Apache-2.0
"""Hourly aggregates: what remains of an hour after its snapshots have been vacuumed.

Layout
    agg10/progress/dt=../hour-HH.parquet    rows of the last snapshot in each ten minutes
    agg60/stats/dt=../hour-HH.parquet       one row per series

Invariant
    `t` counts from the start of the hour and `y` from the first value, which keeps the sums
    precise. Sums of several hours merge exactly.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from cometmq.spark.collect.snapshot import hour_of
from cometmq.spark.tables.arrow import arrow_schema
from cometmq.spark.tables.columns import columns, ddl

AGG10: Final = "agg10/progress"
AGG60: Final = "agg60/stats"
SLOT_MINUTES: Final = 10
KEY: Final = ("cluster", "group", "broker_name", "topic", "queue_id")

STATS: Final = columns("""
    hour_ts     timestamp! Start of the hour
    cluster     string!    Cluster
    group       string!    Consumer group
    broker_name string!    Broker
    topic       string!    Topic
    queue_id    int!       Queue
    n           bigint!    Snapshots with a committed offset
    t           double!    Sum of t: seconds since the start of the hour
    tt          double!    Sum of t * t
    y           double!    Sum of y: lag minus `lag_first`
    ty          double!    Sum of t * y
    lag_first   bigint!    Lag at the first snapshot
    lag_last    bigint!    Lag at the last snapshot
    lag_min     bigint!    Lowest lag
    lag_max     bigint!    Highest lag
    c_min       bigint!    Lowest committed offset
    c_max       bigint!    Highest committed offset
    resets      bigint!    Number of times the committed offset went backwards
    online      boolean!   Whether the group had a member at any time
""")


def agg10(progress: pa.Table) -> pa.Table:
    """Keep only the last snapshot of each ten-minute slot."""
    ids = progress["snapshot_id"].to_numpy()
    unique = np.unique(ids)
    is_last = np.diff(unique // SLOT_MINUTES, append=-1) != 0
    return progress.filter(pa.array(np.isin(ids, unique[is_last])))


def agg60(progress: pa.Table, hour: datetime) -> pa.Table:
    """Aggregate one hour of each series; `progress` must be sorted by series and snapshot."""
    rows = progress.filter(pc.is_valid(progress["consumer_offset"]))
    schema = arrow_schema(STATS)
    if not rows.num_rows:
        return schema.empty_table()
    rows = rows.filter(pa.array(_changes(rows, (*KEY, "snapshot_id"))))  # drop duplicate rows
    starts = np.flatnonzero(_changes(rows, KEY))
    c = rows["consumer_offset"].to_numpy()
    n, m = rows["min_offset"].to_numpy(), rows["max_offset"].to_numpy()
    lag = np.maximum(0, m - np.maximum(c, n))
    micros = rows["read_ts"].cast(pa.int64()).to_numpy()
    t = (micros - round(hour.timestamp() * 1e6)) / 1e6
    counts = np.diff(np.append(starts, len(c)))
    ends = starts + counts - 1
    y = (lag - np.repeat(lag[starts], counts)).astype(np.float64)
    went_back = np.append([False], c[1:] < c[:-1])
    went_back[starts] = False
    online = rows["online"].to_numpy(zero_copy_only=False)
    values: dict[str, Any] = {
        "hour_ts": np.full(len(starts), round(hour.timestamp() * 1e6)),
        **{name: rows[name].take(pa.array(starts)) for name in KEY},
        "n": counts,
        **{
            name: np.add.reduceat(terms, starts)
            for name, terms in (("t", t), ("tt", t * t), ("y", y), ("ty", t * y))
        },
        "lag_first": lag[starts],
        "lag_last": lag[ends],
        "lag_min": np.minimum.reduceat(lag, starts),
        "lag_max": np.maximum.reduceat(lag, starts),
        "c_min": np.minimum.reduceat(c, starts),
        "c_max": np.maximum.reduceat(c, starts),
        "resets": np.add.reduceat(went_back.astype(np.int64), starts),
        "online": np.logical_or.reduceat(online, starts),
    }
    return pa.Table.from_arrays(
        [_array(values[field.name], field.type) for field in schema], schema=schema
    )


def _array(values: Any, type_: pa.DataType) -> pa.Array | pa.ChunkedArray:
    return values if isinstance(values, pa.ChunkedArray) else pa.array(values, type=type_)


def _changes(rows: pa.Table, names: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Mark each row that differs from the previous row in at least one of the columns."""
    changed = np.zeros(rows.num_rows, dtype=bool)
    changed[0] = True
    for name in names:
        codes = rows[name].combine_chunks().dictionary_encode()
        indices = (codes.indices if isinstance(codes, pa.DictionaryArray) else codes).to_numpy()
        changed[1:] |= indices[1:] != indices[:-1]
    return changed


def hour_file(root: Path, dataset: str, hour: datetime) -> Path:
    return root / dataset / f"dt={hour:%Y-%m-%d}" / f"hour-{hour:%H}.parquet"


def read_hours(spark: SparkSession, root: Path, last_id: int, days: float) -> DataFrame | None:
    """Read the hourly rows of the last `days` days; None if the history is shorter than that."""
    end = hour_of(last_id)
    begin = end - timedelta(days=days)
    if not (root / AGG60).is_dir() or not hour_file(root, AGG60, begin).exists():
        return None
    hours = (begin + timedelta(hours=it) for it in range(int(days * 24) + 1))
    files = [str(path) for it in hours if (path := hour_file(root, AGG60, it)).exists()]
    return spark.read.schema(ddl(STATS).replace(" NOT NULL", "")).parquet(*files)
