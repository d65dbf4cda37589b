# SPDX-License-Identifier: Apache-2.0
"""The report job: turns snapshots into the tables of a report.

It reads the progress over the long window (for rates and status), the history of queue ends (for
the arrival of unread messages), and every tenth snapshot of bad groups (for their curves). The
result has at most one row per queue and group, so it is collected in the driver as Arrow tables.
"""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import pyarrow as pa
from pyspark.sql import SparkSession

from cometmq.insight.judge import SEVERITIES
from cometmq.spark.lag.analysis.brokers import BrokerFacts, broker_facts, broker_table, limits_table
from cometmq.spark.lag.analysis.groups import group_tables, worst_first
from cometmq.spark.lag.analysis.queues import queue_table
from cometmq.spark.lag.analysis.series import KEY_COLUMNS
from cometmq.spark.lag.analysis.side_tables import side_tables
from cometmq.spark.lag.columns import REPORT_TABLES, STATUSES, Header, Report
from cometmq.spark.lag.history.inputs import Inputs, read_inputs
from cometmq.spark.lag.history.snapshots import History
from cometmq.spark.lag.rules import Rules
from cometmq.spark.tables.arrow import arrow_schema, table_of

Progress = Callable[[str], None]


def build(
    spark: SparkSession,
    history: History,
    rules: Rules,
    say: Progress = lambda _: None,
    *,
    last_id: int | None = None,
) -> Report:
    """Build the report of snapshot `last_id`, or of the newest if it is None."""
    if last_id is None:
        last_id = history.newest_id()
    say("reading the history")
    read = read_inputs(spark, history, last_id, rules)
    facts = broker_facts(read.brokers.to_pylist(), read.last_id, rules)
    say("rates and status of queues")
    queues = queue_table(read, limits_table(facts), rules)
    say("groups and their curves")
    groups, curves = group_tables(read, queues, rules)
    say("topics, backlogs, silent groups")
    tables = {
        "queue": worst_first(queues, "lag", *KEY_COLUMNS),
        "group": groups,
        "broker": broker_table(facts, queues),
        "history": curves,
        "holder": table_of(REPORT_TABLES["holder"], ()),  # filled by `--deep`
        **side_tables(read, queues, groups, rules.silent_days),
    }
    found = {name: _shaped(name, tables[name]) for name in REPORT_TABLES}
    return Report(_header(read, facts, found["group"], rules), found)


def _header(read: Inputs, facts: Iterable[BrokerFacts], groups: pa.Table, rules: Rules) -> Header:
    moment = datetime.fromtimestamp(read.last_id * 60, tz=UTC)
    statuses, severities, queues, coverage = (
        groups[name].to_pylist() for name in ("status", "severity", "queues", "coverage")
    )
    expected = sum(queues)
    present = sum(count * covered for count, covered in zip(queues, coverage, strict=True))
    return Header(
        run_id=f"{moment:%Y%m%dT%H%M%SZ}",
        snapshot_ts=moment,
        snapshot_id=read.last_id,
        snapshot_count=len(read.brokers["snapshot_id"].unique()),
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


def _shaped(name: str, table: pa.Table) -> pa.Table:
    columns = REPORT_TABLES[name]
    return table.select([c.name for c in columns]).cast(arrow_schema(columns)).combine_chunks()
