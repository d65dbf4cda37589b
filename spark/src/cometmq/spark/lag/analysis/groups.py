# SPDX-License-Identifier: Apache-2.0
"""The table `group`, one row per group with its worst queue, and the lag curves of groups.

Steps on tables with a row per queue or group run on Arrow in the driver, where they take
milliseconds. Spark spends about a second on any query, however small: planning, code generation,
stages.
"""

from datetime import timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from cometmq.insight.judge import BAD, SEVERITIES
from cometmq.spark.lag.analysis.series import GROUP_KEY, KEY, KEY_COLUMNS, LAG, LAG_TOPICS
from cometmq.spark.lag.columns import STATUSES
from cometmq.spark.lag.history.inputs import Inputs, Lags
from cometmq.spark.lag.rules import Rules

CURVES_MAX: Final = 20
"""Number of groups whose curves the report contains."""

_FINE: Final = ("OK", "UNKNOWN", "BROADCAST")
_NAMES: Final = tuple(STATUSES)
RANK: Final = (
    "CASE status " + " ".join(f"WHEN '{s}' THEN {i}" for i, s in enumerate(_NAMES)) + " END"
)
_BAD_LIST: Final = ", ".join(f"'{it}'" for it in SEVERITIES if it in BAD)
WORST_FIRST: Final = f"{RANK}, time_to_loss_s ASC NULLS LAST, lag_time_s DESC NULLS LAST"

_GROUPS: Final = f"""
WITH ranked AS (
    SELECT *, {RANK} AS rank,
           row_number() OVER (
               PARTITION BY cluster, `group`
               ORDER BY {WORST_FIRST}, lag DESC NULLS LAST, topic, broker_name, queue_id) AS place,
           status <> 'BROADCAST' AS counts
    FROM {{queues}})
SELECT cluster, `group`,
       max(CASE WHEN place = 1 THEN status END) AS status,
       max(CASE WHEN place = 1 THEN severity END) AS severity,
       bool_or(online) AS online, bool_or(filtered) AS filtered,
       CAST(count(DISTINCT topic) AS int) AS topics, CAST(count(*) AS int) AS queues,
       CAST(count(CASE WHEN severity IN ({_BAD_LIST}) THEN 1 END) AS int) AS queues_bad,
       sum(CASE WHEN counts THEN lag END) AS lag_sum,
       max(CASE WHEN counts THEN lag END) AS lag_max,
       max(CASE WHEN counts THEN lag_time_s END) AS lag_time_s,
       sum(CASE WHEN counts THEN lost END) AS lost_sum,
       sum(rate_in) AS rate_in, sum(rate_out) AS rate_out,
       CASE WHEN NOT bool_or(counts AND eta_catchup_s IS NULL)
            THEN max(CASE WHEN counts THEN eta_catchup_s END) END AS eta_catchup_s,
       min(CASE WHEN counts THEN time_to_loss_s END) AS time_to_loss_s,
       coalesce(min_by(ttl_model, time_to_loss_s) FILTER (WHERE counts), 'none') AS ttl_model,
       max(CASE WHEN place = 1 THEN topic END) AS worst_topic,
       max(CASE WHEN place = 1 THEN broker_name END) AS worst_broker_name,
       max(CASE WHEN place = 1 THEN queue_id END) AS worst_queue_id,
       max(CASE WHEN place = 1 THEN lag END) AS worst_lag,
       avg(CAST(present AS double)) AS coverage
FROM ranked
GROUP BY cluster, `group`
"""

# `fine` tells whether each queue was within its acceptable lag (`fine_lag`). A snapshot that lacks
# queues of earlier ones shows no group as fine: a broker that restarts does not answer. If it had
# all committed offsets, only queues without any remain; empty ones count as read.
_CURVES: Final = f"""
SELECT cluster, `group`, snapshot_id, min(read_ts) AS ts,
       sum({LAG}) AS lag, sum(m) AS max_offset,
       coalesce(sum(c), sum(CASE WHEN m <= n THEN m END)) AS consumer_offset,
       bool_and(coalesce({LAG} <= fine_lag, true))
           AND count(*) >= max(count(*)) OVER (
               PARTITION BY cluster, `group` ORDER BY snapshot_id) AS fine,
       coalesce(count(*) > lag(count(*)) OVER (
               PARTITION BY cluster, `group` ORDER BY snapshot_id), false) AS grew
FROM (SELECT /*+ BROADCAST(q) */ DISTINCT {KEY},
             snapshot_id, read_ts, consumer_offset AS c, min_offset AS n, max_offset AS m, fine_lag
      FROM {{progress}} JOIN {{queues}} q USING ({KEY}))
GROUP BY cluster, `group`, snapshot_id
HAVING sum({LAG}) IS NOT NULL
"""


def group_tables(read: Inputs, queues: pa.Table, rules: Rules) -> tuple[pa.Table, pa.Table]:
    """Compute the table `group`, worst first, and the curves of its first groups."""
    sql = read.spark.sql
    table = sql(_GROUPS, queues=read.frame(queues)).toArrow()
    wanted = behind(table, queues, rules)
    progress = read.past_progress.where(LAG_TOPICS)
    points = sql(_CURVES, progress=progress, queues=read.frame(wanted)).toArrow()
    table = with_since(table, points, timedelta(seconds=rules.window_s / rules.points_min))
    table = with_members(table, read.groups.filter(pc.field("snapshot_id") == read.last_id))
    for name, before in read.earlier_lags.items():
        table = with_change(table, name, before)
    table = worst_first(table, "lag_sum", *GROUP_KEY)
    points = rows_of_groups(points, table.slice(0, CURVES_MAX)).drop_columns("grew")
    return table, points.sort_by([(name, "ascending") for name in (*GROUP_KEY, "ts")])


def behind(groups: pa.Table, queues: pa.Table, rules: Rules) -> pa.Table:
    """Select the queues whose curves are needed, with the highest acceptable lag of each.

    For a group that is behind, all queues are needed: the lag of the whole group would not show
    that one of its queues hangs.
    """
    is_behind = pc.invert(pc.is_in(groups["status"], value_set=pa.array(_FINE)))
    wanted = rows_of_groups(queues, groups.filter(is_behind))
    wanted = wanted.filter(pc.not_equal(wanted["status"], "BROADCAST"))
    by_age = pc.multiply(pc.coalesce(wanted["rate_in"], 0.0), rules.allowed_age_s)
    fine = pc.add(pc.max_element_wise(by_age, 0.0), float(rules.allowed_lag))
    return wanted.select(KEY_COLUMNS).append_column("fine_lag", fine)


def with_since(groups: pa.Table, curves: pa.Table, apart: timedelta) -> pa.Table:
    """Add the time since which each group has been behind without interruption.

    It may have been behind for longer if no snapshot shows the group before that, if the last one
    before that is more than `apart` earlier, because the collector was down in between, or if it
    lacks queues, because a broker was down.
    """
    fine = curves.filter(curves["fine"])
    last_fine = fine.group_by(GROUP_KEY).aggregate([("ts", "max")])
    points = curves.select([*GROUP_KEY, "ts"]).join(last_fine, GROUP_KEY)
    is_after = pc.fill_null(pc.greater(points["ts"], points["ts_max"]), True)
    after = points.filter(is_after)
    first = after.group_by(GROUP_KEY).aggregate([("ts", "min"), ("ts_max", "min")])
    first = first.rename_columns([*GROUP_KEY, "since_ts", "fine_ts"])
    is_far = pc.greater(pc.subtract(first["since_ts"], first["fine_ts"]), pa.scalar(apart))
    first = first.append_column("is_far", pc.fill_null(is_far, True))
    grown = curves.select([*GROUP_KEY, "ts", "grew"]).rename_columns(
        [*GROUP_KEY, "since_ts", "grew"]
    )
    first = first.join(grown, [*GROUP_KEY, "since_ts"])
    first = first.append_column("since_at_least", pc.or_(first["is_far"], first["grew"]))
    return groups.join(first.drop_columns(["fine_ts", "is_far", "grew"]), GROUP_KEY)


def with_members(groups: pa.Table, counts: pa.Table) -> pa.Table:
    """Add the number of connected members: the highest number at one broker, because each member
    connects to all of them.
    """
    most = counts.group_by(GROUP_KEY).aggregate([("online_clients", "max")])
    return groups.join(most.rename_columns([*GROUP_KEY, "members"]), GROUP_KEY)


def with_change(groups: pa.Table, name: str, before: Lags) -> pa.Table:
    """Add the difference between the lag of each group and its lag in an earlier report."""
    keys = zip(*(groups[key].to_pylist() for key in GROUP_KEY), strict=True)
    old = pa.array([before.get(key) for key in keys], type=pa.int64())
    return groups.append_column(name, pc.subtract(groups["lag_sum"], old))


def rows_of_groups(rows: pa.Table, groups: pa.Table) -> pa.Table:
    return rows.join(groups.select(GROUP_KEY), GROUP_KEY, join_type="left semi")


def worst_first(table: pa.Table, lag: str, *key: str) -> pa.Table:
    """Sort rows by severity, then by the time until loss, then by unread messages; nulls last."""
    severity = pc.index_in(table["severity"], value_set=pa.array(SEVERITIES))
    status = pc.index_in(table["status"], value_set=pa.array(STATUSES))
    order = [
        ("severity_rank", "descending"),
        ("time_to_loss_s", "ascending"),
        (lag, "descending"),
        ("status_rank", "ascending"),
        *((name, "ascending") for name in key),
    ]
    ranked = table.append_column("severity_rank", severity).append_column("status_rank", status)
    return table.take(pc.sort_indices(ranked, sort_keys=order))
