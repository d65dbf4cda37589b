# SPDX-License-Identifier: Apache-2.0
"""The report job: turns snapshots into the tables of a report.

It reads the progress over the long window (for rates and status), the history of queue ends (for
the arrival of unread messages), and every tenth snapshot of bad groups (for their curves). The
result has at most one row per queue and group, so it is collected in the driver as Arrow tables.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cometmq.remoting import names
from cometmq.spark.lag.analysis import driver_steps, groups, side_tables
from cometmq.spark.lag.analysis.arrival import arrivals
from cometmq.spark.lag.analysis.brokers import BrokerFacts, broker_facts
from cometmq.spark.lag.analysis.driver_steps import GROUP_KEY
from cometmq.spark.lag.analysis.filtered import filtered
from cometmq.spark.lag.analysis.queues import queues
from cometmq.spark.lag.analysis.series import KEY_COLUMNS, condense
from cometmq.spark.lag.columns import REPORT_TABLES, SEVERITIES, STATUSES, Header, Report
from cometmq.spark.lag.history.aggregates import read_hours
from cometmq.spark.lag.history.reports import lag_before
from cometmq.spark.lag.history.snapshots import History
from cometmq.spark.lag.rules import Rules
from cometmq.spark.tables.arrow import arrow_schema, table_of

CURVES_MAX: Final = 20
"""Number of groups whose curves the report contains."""
WEEK_MINUTES: Final = 7 * 24 * 60

_LAG_TOPICS: Final = (
    f"topic NOT IN ('{names.SCHEDULE_TOPIC}', '{names.HALF_TOPIC}', '{names.OP_HALF_TOPIC}')"
)
_SPAN: Final = pa.struct([("begin_us", pa.int64()), ("end_us", pa.int64())])
_FACTS: Final = pa.schema(
    [
        ("cluster", pa.string()),
        ("broker_name", pa.string()),
        ("file_reserved_hours", pa.int32()),
        ("disk_fills", pa.bool_()),
        ("disk_full_s", pa.float64()),
        ("disk_forced_s", pa.float64()),
        ("sweep_s", pa.float64()),
        ("reachable", pa.bool_()),
        ("deletions", pa.list_(_SPAN)),
    ]
)

Progress = Callable[[str], None]


def build(
    spark: SparkSession, history: History, rules: Rules, say: Progress = lambda _: None
) -> Report:
    return _Job(spark, history, rules, say).run()


class _Job:
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
        rows = self._history.table("brokers", self._recent_id, self._last_id).to_pylist()
        facts = broker_facts(rows, self._last_id, self._rules)
        snapshot_count = len({row["snapshot_id"] for row in rows})
        self._say("rates and status of queues")
        queue_table = self._queues(facts)
        self._say("groups and their curves")
        group_table, curves = self._groups(queue_table)
        self._say("topics, backlogs, silent groups")
        tables = {
            "queue": driver_steps.worst_first(queue_table, "lag", *KEY_COLUMNS),
            "group": group_table,
            "broker": _brokers(facts, queue_table),
            "history": curves,
            "holder": table_of(REPORT_TABLES["holder"], ()),  # filled by `--deep`
            **self._sections(queue_table, group_table),
        }
        found = {name: _shaped(name, tables[name]) for name in REPORT_TABLES}
        header = self._header(facts, found, snapshot_count)
        return Report(header, found)

    def _read(self, table: str, first_id: int) -> DataFrame:
        return self._history.read(self._spark, table, first_id, self._last_id)

    # -- queues ---------------------------------------------------------------------------------

    def _queues(self, facts: list[BrokerFacts]) -> pa.Table:
        progress = self._read("progress", self._recent_id).where(_LAG_TOPICS)
        series = condense(progress, self._rules).join(
            F.broadcast(self._facts_frame(facts)), ["cluster", "broker_name"]
        )
        series = series.withColumn("present", F.col("last_id") == self._last_id)
        # Absent queues are deleted, except those of brokers that did not answer.
        series = self._frame(series.where("present OR NOT reachable").toArrow())
        unread = series.where("lag > 0 AND c IS NOT NULL")
        unread = unread.select(*KEY_COLUMNS, F.greatest("c", "n").alias("position"))
        arrived = arrivals(self._read("offsets", self._first_id), unread)
        broadcasting = self._read("groups", self._first_id).where("message_model = 'BROADCASTING'")
        seen = broadcasting.select(*GROUP_KEY).distinct().withColumn("seen_broadcast", F.lit(True))
        series = series.join(arrived, KEY_COLUMNS, "left")
        series = series.join(F.broadcast(seen), GROUP_KEY, "left")
        return queues(series, self._rules).toArrow()

    def _frame(self, table: pa.Table) -> DataFrame:
        """Create a DataFrame without lineage, so that Spark does not repeat the earlier steps."""
        return self._spark.createDataFrame(table)

    def _facts_frame(self, facts: list[BrokerFacts]) -> DataFrame:
        rows = [
            {
                "cluster": it.row["cluster"],
                "broker_name": it.row["broker_name"],
                "file_reserved_hours": it.file_reserved_hours,
                "disk_fills": it.disk_fills(self._rules),
                "disk_full_s": it.disk_full_s,
                "disk_forced_s": it.disk_forced_s,
                "sweep_s": it.sweep_s,
                "reachable": it.row["reachable"],
                "deletions": [{"begin_us": begin, "end_us": end} for begin, end in it.deletions],
            }
            for it in facts
        ]
        return self._frame(pa.Table.from_pylist(rows, schema=_FACTS))

    # -- groups ---------------------------------------------------------------------------------

    def _groups(self, queue_table: pa.Table) -> tuple[pa.Table, pa.Table]:
        table = groups.groups(self._frame(queue_table)).toArrow()
        wanted = driver_steps.behind(table, queue_table, self._rules)
        sparse = self._history.read_sparse(self._spark, self._first_id, self._last_id)
        curves = groups.curves(sparse.where(_LAG_TOPICS), self._frame(wanted)).toArrow()
        table = driver_steps.with_since(table, curves)
        members = self._history.table("groups", self._last_id, self._last_id)
        table = driver_steps.with_members(table, members)
        for name, age in (("lag_change_last", None), ("lag_change_week", WEEK_MINUTES)):
            before = lag_before(self._history.root, self._last_id, age)
            table = driver_steps.with_change(table, name, before)
        table = driver_steps.worst_first(table, "lag_sum", *GROUP_KEY)
        curves = driver_steps.rows_of_groups(curves, table.slice(0, CURVES_MAX))
        return table, curves.sort_by([(name, "ascending") for name in (*GROUP_KEY, "ts")])

    # -- the rest -------------------------------------------------------------------------------

    def _sections(self, queue_table: pa.Table, group_table: pa.Table) -> dict[str, pa.Table]:
        days, last_id = self._rules.silent_days, self._last_id
        progress, offsets = (self._read(name, self._recent_id) for name in ("progress", "offsets"))
        silent = side_tables.silent_topics(self._read("offsets", last_id), last_id, days)
        hours = read_hours(self._spark, self._history.root, last_id, days)
        if hours is not None:
            known = self._frame(group_table)
            silent = silent.union(side_tables.silent_groups(known, hours, last_id, days))
        by_name = [(name, "ascending") for name in ("kind", "since_ts", "cluster", "name")]
        return {
            "skew": side_tables.skew(self._frame(queue_table)).toArrow(),
            "filtered": self._filtered(queue_table),
            "silent": silent.toArrow().sort_by(by_name),
            "backlog": side_tables.backlog(progress, offsets, last_id).toArrow(),
        }

    def _filtered(self, queue_table: pa.Table) -> pa.Table:
        if not pc.any(queue_table["filtered"]).as_py():
            return table_of(REPORT_TABLES["filtered"], ())
        return filtered(queue_table, self._history.table("groups", self._recent_id, self._last_id))

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


def _brokers(facts: list[BrokerFacts], queue_table: pa.Table) -> pa.Table:
    sums = driver_steps.by_broker(queue_table)
    none = {"groups_bad": 0, "lag_sum": None}
    rows = [
        it.row
        | {
            "disk_ratio": it.row["commitlog_disk_ratio"],
            "disk_ratio_slope": it.disk_ratio_slope,
            "disk_full_s": it.disk_full_s,
        }
        | sums.get((it.row["cluster"], it.row["broker_name"]), none)
        for it in facts
    ]
    return pa.Table.from_pylist(rows, schema=arrow_schema(REPORT_TABLES["broker"]))


def _shaped(name: str, table: pa.Table) -> pa.Table:
    columns = REPORT_TABLES[name]
    return table.select([c.name for c in columns]).cast(arrow_schema(columns)).combine_chunks()
