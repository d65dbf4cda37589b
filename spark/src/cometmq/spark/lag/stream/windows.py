# SPDX-License-Identifier: Apache-2.0
"""The streaming job: recomputes the status of every queue each minute and reports changes.

It reads only the snapshots of the last W, not the history or disk usage. It therefore cannot
compute the time to loss and never reports AT_RISK; the report does. After a restart it continues
from the checkpoint and announces every status other than OK once more.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from cometmq.spark.lag.analysis import regression
from cometmq.spark.lag.analysis.queues import T_STATISTIC, with_steps
from cometmq.spark.lag.analysis.series import KEY, KEY_COLUMNS, LAG, LOST
from cometmq.spark.lag.analysis.status import STATUS
from cometmq.spark.lag.rules import Rules
from cometmq.spark.lag.stream.hysteresis import Change, Hysteresis
from cometmq.spark.tables.files import write_parquet

SLIDE_S: Final = 60
LATENESS: Final = "2 minutes"
FOLDER: Final = "stream/status"

_AGE: Final = (
    "CASE WHEN next_ts IS NOT NULL THEN (unix_micros(read_ts) - unix_micros(next_ts)) / 1e6D END"
)

_POINTS: Final = f"""
SELECT {KEY}, snapshot_id, read_ts, c, n, m, online, lag, {LOST} AS lost, broadcast,
       coalesce(lag <= {{allowed_lag}}, false) OR coalesce(age <= {{allowed_age_s}}, false) AS fine
FROM (SELECT *, {LAG} AS lag, {_AGE} AS age,
             coalesce(message_model = 'BROADCASTING', false) AS broadcast
      FROM (SELECT *, consumer_offset AS c, min_offset AS n, max_offset AS m FROM {{progress}}))
"""

_NEWEST: Final = "max_by({0}, snapshot_id) AS {1}"


def windows(progress: DataFrame, rules: Rules) -> DataFrame:
    """Compute the status of each series in each window W, for a stream or a batch."""
    points = progress.sparkSession.sql(
        _POINTS.replace("{allowed_lag}", str(rules.allowed_lag)).replace(
            "{allowed_age_s}", f"{rules.allowed_age_s}D"
        ),
        progress=progress,
    )
    newest = [
        _NEWEST.format(*pair)
        for pair in (
            ("c", "c"), ("n", "n"), ("m", "m"), ("lag", "lag"), ("online", "online"),
            ("fine", "fine_now"), ("lost", "lost"), ("read_ts", "read_ts"),
        )
    ]  # fmt: skip
    aggregates = [
        *newest,
        "size(collect_set(snapshot_id)) AS points_w",
        "min(c) AS c_min",
        "max(c) AS c_max",
        "min(CASE WHEN c IS NOT NULL THEN struct(-c AS c, read_ts AS at) END) AS arrived",
        "min_by(lost, snapshot_id) < max_by(lost, snapshot_id) AS losing",
        "bool_or(broadcast) AS broadcast",
        "bool_or(fine) AS fine_once",
        "bool_and(online) AS always_online",
        "regr_count(d, t) AS rd_n",
        "regr_slope(d, t) AS slope",
        "regr_sxx(d, t) AS sxx",
        "regr_syy(d, t) AS syy",
        "regr_sxy(d, t) AS sxy",
    ]
    keyed = points.selectExpr(
        "*",
        "CAST(c - m AS double) AS d",
        # Small times keep the sums of squares precise; only a window that spans the wrap-around is
        # wrong.
        f"(unix_micros(read_ts) / 1e6D) % {10 * 86_400} AS t",
        f"window(read_ts, '{rules.window_s} seconds', '{SLIDE_S} seconds') AS w",
    )
    grouped = keyed.groupBy("w", *KEY_COLUMNS)
    return _with_status(grouped.agg(*map(_expression, aggregates)), rules)


def _expression(sql: str) -> Any:
    from pyspark.sql import functions  # noqa: PLC0415  # needs a session

    return functions.expr(sql)


def _with_status(frame: DataFrame, rules: Rules) -> DataFrame:
    steps = {
        "points_min": str(rules.points_min),
        "seen_broadcast": "false",
        "present": "true",
        "time_to_loss_s": "CAST(NULL AS double)",
        "risk_s": "0D",
        "window_s": str(rules.window_s),
        "rest_s": "CASE WHEN c = c_max THEN (unix_micros(read_ts) - unix_micros(arrived.at)) / 1e6D"
        " ELSE 0D END",
        "went_back": "c < c_max",
        "drain": f"CASE WHEN rd_n >= {regression.POINTS_MIN} THEN slope END",
        "residual": "greatest(0, syy - try_divide(sxy * sxy, sxx))",
        "drain_se": "sqrt(try_divide(residual, (rd_n - 2) * sxx))",
        "drains": f"coalesce(drain > 0 AND drain > {T_STATISTIC} * drain_se, false)",
        "status": STATUS,
    }
    columns = ("lag", "lost", "drain", "read_ts", "status")
    return with_steps(frame, steps).selectExpr("w.end AS window_end", *KEY.split(", "), *columns)


class Sink:
    """Handles micro-batches: writes full windows to a file and announces changes."""

    def __init__(
        self, root: Path, tell: Callable[[Change], None], alerts: Mapping[str, str] | None = None
    ) -> None:
        """Write under `root`; with `alerts` (options of the sink) also send changes as messages."""
        self._root = root
        self._tell = tell
        self._alerts = alerts
        self._hysteresis = Hysteresis()

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Process the windows that a batch has updated; idempotent for repeated batches."""
        # Several windows contain the newest snapshot; only the one that ends first is full.
        newest = "(SELECT max(read_ts) FROM {batch})"
        sql = (
            f"SELECT * FROM {{batch}} WHERE window_end > {newest}"
            f" AND window_end <= {newest} + INTERVAL {SLIDE_S} SECONDS"
        )
        table = batch.sparkSession.sql(sql, batch=batch).toArrow()
        path = self._root / FOLDER / f"batch-{batch_id:09d}.parquet"
        write_parquet(path, table)
        rows = sorted(table.to_pylist(), key=lambda row: row["window_end"])
        found = {tuple(row[name] for name in KEY_COLUMNS): row["status"] for row in rows}
        changes = self._hysteresis.update(found)
        for change in changes:
            self._tell(change)
        if changes and self._alerts is not None:
            send(batch.sparkSession, changes, self._alerts)


def send(spark: SparkSession, changes: Iterable[Change], options: Mapping[str, str]) -> None:
    """Send changes as messages: JSON body, the status as tag, the group as key."""
    rows = [(line_of(it).encode(), it.status, it.series[1]) for it in changes]
    frame = spark.createDataFrame(rows, "body binary, tags string, keys string").coalesce(1)
    frame.write.format("rocketmq").options(**options).mode("append").save()


def start(
    spark: SparkSession,
    root: Path,
    options: dict[str, str],
    rules: Rules,
    sink: Sink,
) -> StreamingQuery:
    """Start the streaming query; `options` configure the data source."""
    progress = spark.readStream.format("rocketmq").options(table="progress", **options).load()
    result = windows(progress.withWatermark("read_ts", LATENESS), rules)
    writer = result.writeStream.outputMode("update").foreachBatch(sink)
    writer = writer.option("checkpointLocation", str(root / "stream" / "checkpoint"))
    return writer.trigger(processingTime=f"{SLIDE_S} seconds").start()


def line_of(change: Change) -> str:
    return msgspec.json.encode(change).decode()
