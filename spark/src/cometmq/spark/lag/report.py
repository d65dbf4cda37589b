# SPDX-License-Identifier: Apache-2.0
"""The report job: from snapshots to the tables of a report.

What is read: progress of the long window for rates and status, the history of queue ends for the
arrival of unread messages, every tenth snapshot of bad groups for their curves. Tables of the
result are as small as the cluster has queues, so they end in the driver as Arrow tables.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cometmq.spark.lag import groups, recent, sections
from cometmq.spark.lag.aggregates import read_hours
from cometmq.spark.lag.arrival import arrivals
from cometmq.spark.lag.brokers import BrokerFacts, broker_facts
from cometmq.spark.lag.columns import REPORT_TABLES, SEVERITIES, STATUSES, Header, Report
from cometmq.spark.lag.history import History
from cometmq.spark.lag.matching import filtered
from cometmq.spark.lag.metrics import queues
from cometmq.spark.lag.movers import lag_before
from cometmq.spark.lag.rules import Rules
from cometmq.spark.tables import names
from cometmq.spark.tables.arrow import arrow_schema, table_of

CURVES_MAX: Final = 20
"""Groups whose curves are in the report."""
WEEK_MINUTES: Final = 7 * 24 * 60

_LAG_TOPICS: Final = (
    f"topic NOT IN ('{names.SCHEDULE_TOPIC}', '{names.HALF_TOPIC}', '{names.OP_TOPIC}')"
)
_FACTS: Final = (
    "cluster string, broker_name string, file_reserved_hours int, disk_fills boolean, "
    "reachable boolean, deletions array<struct<begin_us: bigint, end_us: bigint>>"
)
_KEY: Final = [name.strip("`") for name in recent.KEY.split(", ")]
_GROUP_KEY: Final = ["cluster", "group"]

Progress = Callable[[str], None]


def build(
    spark: SparkSession, history: History, rules: Rules, say: Progress = lambda _: None
) -> Report:
    """Return the report of the newest snapshot."""
    return _Job(spark, history, rules, say).run()


class _Job:
    """One report: what its steps share."""

    def __init__(self, spark: SparkSession, history: History, rules: Rules, say: Progress) -> None:
        self._spark = spark
        self._history = history
        self._rules = rules
        self._say = say
        self._last_id = history.newest_id()
        self._recent_id = self._last_id - rules.long_window_s // 60
        self._first_id = min(self._recent_id, self._last_id - rules.history_s // 60)

    def run(self) -> Report:
        self._say("reading brokers")
        rows = self._read("brokers", self._recent_id).toArrow().to_pylist()
        facts = broker_facts(rows, self._last_id, self._rules)
        snapshot_count = len({row["snapshot_id"] for row in rows})
        self._say("rates and status of queues")
        queue_table = self._queues(facts)
        self._say("groups and their curves")
        group_table, curves = self._groups(queue_table)
        tables = {
            "queue": self._sorted_queues(queue_table),
            "group": group_table,
            "broker": self._brokers(facts, queue_table),
            "history": curves,
            **self._sections(queue_table, group_table),
        }
        self._say("collecting")
        found = {name: _collected(name, tables[name]) for name in REPORT_TABLES if name in tables}
        group_rows = self._history.table("groups", self._recent_id, self._last_id)
        found["filtered"] = filtered(found["queue"], group_rows)
        found["holder"] = table_of(REPORT_TABLES["holder"], ())  # brokers are not asked here
        header = self._header(facts, found, snapshot_count)
        return Report(header, found)

    def _read(self, table: str, first_id: int) -> DataFrame:
        return self._history.read(self._spark, table, first_id, self._last_id)

    # -- queues ---------------------------------------------------------------------------------

    def _queues(self, facts: list[BrokerFacts]) -> DataFrame:
        progress = self._read("progress", self._recent_id).where(_LAG_TOPICS)
        series = recent.series(progress, self._rules).join(
            F.broadcast(self._facts_frame(facts)), ["cluster", "broker_name"]
        )
        series = series.withColumn("present", F.col("last_id") == self._last_id)
        series = self._small(series.where("present OR NOT reachable"))
        unread = series.where("lag > 0 AND c IS NOT NULL")
        unread = unread.select(*_KEY, F.greatest("c", "n").alias("position"))
        arrived = arrivals(self._read("offsets", self._first_id), unread)
        broadcasting = self._read("groups", self._first_id).where("message_model = 'BROADCASTING'")
        seen = broadcasting.select(*_GROUP_KEY).distinct().withColumn("seen_broadcast", F.lit(True))
        joined = series.join(arrived, _KEY, "left").join(F.broadcast(seen), _GROUP_KEY, "left")
        return self._small(queues(joined, self._rules))

    def _small(self, frame: DataFrame) -> DataFrame:
        """Return the rows as a table of their own: Spark plans what follows without their past."""
        return self._spark.createDataFrame(frame.toArrow())

    def _facts_frame(self, facts: list[BrokerFacts]) -> DataFrame:
        rows = [
            (
                it.row["cluster"],
                it.row["broker_name"],
                it.file_reserved_hours,
                it.disk_fills(self._rules),
                it.row["reachable"],
                it.deletions,
            )
            for it in facts
        ]
        return self._spark.createDataFrame(rows, _FACTS)

    def _sorted_queues(self, queue_table: DataFrame) -> DataFrame:
        order = F.expr(f"struct({groups.RANK})")
        return queue_table.orderBy(
            order,
            F.col("time_to_loss_s").asc_nulls_last(),
            F.col("lag_time_s").desc_nulls_last(),
            F.col("lag").desc_nulls_last(),
            *_KEY,
        )

    # -- groups ---------------------------------------------------------------------------------

    def _groups(self, queue_table: DataFrame) -> tuple[DataFrame, DataFrame]:
        table = self._small(groups.groups(queue_table))
        wanted = self._small(groups.behind(table, self._rules))
        sparse = self._history.read_sparse(self._spark, self._first_id, self._last_id)
        curves = self._small(groups.curves(sparse.where(_LAG_TOPICS), wanted))
        table = table.join(groups.since(curves, wanted), _GROUP_KEY, "left")
        for name, age in (("lag_change_last", None), ("lag_change_week", WEEK_MINUTES)):
            table = self._with_change(table, name, age)
        table = table.orderBy(
            F.expr(groups.RANK),
            F.col("time_to_loss_s").asc_nulls_last(),
            F.col("lag_time_s").desc_nulls_last(),
            F.col("lag_sum").desc_nulls_last(),
            *_GROUP_KEY,
        )
        table = self._small(table)
        worst = table.limit(CURVES_MAX).select(*_GROUP_KEY)
        return table, curves.join(F.broadcast(worst), _GROUP_KEY).orderBy(*_GROUP_KEY, "ts")

    def _with_change(self, table: DataFrame, name: str, age_minutes: int | None) -> DataFrame:
        before = lag_before(self._history.root, self._last_id, age_minutes)
        frame = self._spark.createDataFrame(before, "cluster string, `group` string, was bigint")
        joined = table.join(F.broadcast(frame), _GROUP_KEY, "left")
        return joined.withColumn(name, F.expr("lag_sum - was")).drop("was")

    # -- the rest -------------------------------------------------------------------------------

    def _brokers(self, facts: list[BrokerFacts], queue_table: DataFrame) -> DataFrame:
        counted = queue_table.groupBy("cluster", "broker_name").agg(
            F.count_distinct(F.expr("CASE WHEN severity IN ('error', 'critical') THEN `group` END"))
            .cast("int")
            .alias("groups_bad"),
            F.sum(F.expr("CASE WHEN status <> 'BROADCAST' THEN lag END")).alias("lag_sum"),
        )
        by_key = {(row["cluster"], row["broker_name"]): row for row in counted.collect()}
        rows: list[tuple[Any, ...]] = []
        for it in facts:
            row = it.row
            found = by_key.get((row["cluster"], row["broker_name"]))
            values = row | {
                "disk_ratio": row["commitlog_disk_ratio"],
                "disk_ratio_slope": it.disk_ratio_slope,
                "disk_full_s": it.disk_full_s,
                "groups_bad": 0 if found is None else found["groups_bad"],
                "lag_sum": None if found is None else found["lag_sum"],
            }
            rows.append(tuple(values[c.name] for c in REPORT_TABLES["broker"]))
        schema = ", ".join(f"{c.name} {c.type}" for c in REPORT_TABLES["broker"])
        return self._spark.createDataFrame(rows, schema)

    def _sections(self, queue_table: DataFrame, group_table: DataFrame) -> dict[str, DataFrame]:
        days, last_id = self._rules.silent_days, self._last_id
        offsets = self._read("offsets", self._recent_id)
        progress = self._read("progress", self._recent_id)
        silent = sections.silent_topics(offsets, last_id, days)
        hours = read_hours(self._spark, self._history.root, last_id, days)
        if hours is not None:
            silent = silent.union(sections.silent_groups(group_table, hours, last_id, days))
        return {
            "skew": sections.skew(queue_table),
            "silent": silent.orderBy("kind", "since_ts", "cluster", "name"),
            "backlog": sections.backlog(progress, offsets, last_id),
        }

    def _header(self, facts: list[BrokerFacts], tables: dict[str, pa.Table], count: int) -> Header:
        rules = self._rules
        moment = datetime.fromtimestamp(self._last_id * 60, tz=UTC)
        statuses = tables["group"]["status"].to_pylist()
        severities = set(tables["group"]["severity"].to_pylist())
        expected = sum(tables["group"]["queues"].to_pylist())
        present = sum(
            queues * covered
            for queues, covered in zip(
                *(tables["group"][name].to_pylist() for name in ("queues", "coverage")),
                strict=True,
            )
        )
        return Header(
            run_id=f"{moment:%Y%m%dT%H%M%SZ}",
            snapshot_ts=moment,
            snapshot_id=self._last_id,
            snapshot_count=count,
            window_s=rules.window_s,
            long_window_s=rules.long_window_s,
            history_s=rules.history_s,
            risk_hours=rules.risk_hours,
            allowed_lag=rules.allowed_lag,
            allowed_age_s=rules.allowed_age_s,
            timezone=rules.timezone,
            coverage=present / expected if expected else 1.0,
            unreachable=tuple(it.row["broker_name"] for it in facts if not it.row["reachable"]),
            severity=max(severities, key=SEVERITIES.index, default="ok"),
            status_counts={name: statuses.count(name) for name in STATUSES},
        )


def _collected(name: str, frame: DataFrame) -> pa.Table:
    columns = REPORT_TABLES[name]
    return frame.select(*(c.name for c in columns)).toArrow().cast(arrow_schema(columns))
