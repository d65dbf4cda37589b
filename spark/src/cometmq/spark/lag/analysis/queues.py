# SPDX-License-Identifier: Apache-2.0
"""The table `queue` as SQL: lag, rates, and the time until unread data is deleted; when the first
unread message arrived, from the history of queue ends.

Each definition is a column; each step can use the columns of the previous steps.
"""

from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from cometmq.insight.judge import sql
from cometmq.remoting import names
from cometmq.spark.lag.analysis.brokers import BROKER_KEY
from cometmq.spark.lag.analysis.series import (
    GROUP_KEY,
    KEY,
    KEY_COLUMNS,
    LAG_TOPICS,
    condense,
    r_squared,
    seconds,
    slope,
    standard_error,
)
from cometmq.spark.lag.columns import QUEUE, STATUSES
from cometmq.spark.lag.history.inputs import Inputs
from cometmq.spark.lag.rules import Rules
from cometmq.spark.tables.columns import SYSTEM_PREFIXES, SYSTEM_TOPICS

Step = dict[str, str]

T_STATISTIC: Final = 2.0
"""A slope is significant if it exceeds this many standard errors."""

_TIMES: Final[Step] = {
    "position": "greatest(c, n)",
    "lag_age_s": f"""CASE WHEN lag = 0 THEN 0D
        WHEN c IS NOT NULL AND next_ts IS NOT NULL
        THEN greatest(0D, {seconds("read_ts", "next_ts")}) END""",
    "lag_interp_s": """CASE
        WHEN lag = 0 THEN 0D
        WHEN c IS NULL OR after_us IS NULL THEN NULL
        WHEN before_us IS NULL THEN greatest(0D, (unix_micros(read_ts) - after_us) / 1e6D)
        ELSE greatest(0D, (unix_micros(read_ts) - before_us
              - (after_us - before_us) * ((position - before_m)
                 / CAST(after_m - before_m AS double))) / 1e6D) END""",
    "lag_time_s": "coalesce(lag_age_s, lag_interp_s)",
    "lag_time_method": """CASE
        WHEN lag = 0 THEN 'zero'
        WHEN lag_age_s IS NOT NULL THEN 'exact'
        WHEN lag_interp_s IS NULL THEN 'unknown'
        WHEN before_us IS NULL THEN 'extrap_min' ELSE 'interp' END""",
    "lag_span_s": f"""CASE WHEN lag = 0 THEN 0D
        WHEN consume_ts IS NOT NULL AND last_update_ts IS NOT NULL
        THEN greatest(0D, {seconds("last_update_ts", "consume_ts")}) END""",
    "retention_ratio": "try_divide(100D * (m - c), m - n)",
}

_RATES: Final[Step] = {
    "rate_in": slope("rm"),
    "rate_out": slope("rc"),
    "rate_in_long": slope("lm"),
    "rate_out_long": slope("lc"),
    "rate_min": f"greatest({slope('ln')}, try_divide(trimmed.gone, -trimmed.at))",
    "drain": slope("rd"),
    "drain_se": standard_error("rd"),
    "rate_r2": r_squared("rd"),
    "log_speed": f"CASE WHEN c_min = c_max THEN 0D ELSE {slope('rl')} END",
    "points": "CAST(rd_n AS int)",
}

_ETA: Final[Step] = {
    "drains": f"coalesce(drain > 0 AND drain > {T_STATISTIC} * drain_se, false)",
    "eta_catchup_s": "CASE WHEN lag = 0 THEN 0D WHEN drains THEN lag / drain END",
    "eta_low_s": "CASE WHEN lag = 0 THEN 0D WHEN drains THEN lag / (drain + drain_se) END",
    "eta_high_s": "CASE WHEN lag = 0 THEN 0D WHEN drains THEN lag / (drain - drain_se) END",
}

_MAY_BE_LOST: Final = "lag > 0 AND c IS NOT NULL"
# A group that reads everything before the disk is full loses nothing. One that was fine a few
# minutes ago is given two windows to prove it, if there is so much time.
_KEEPS_UP: Final = """fine_now OR (fine_once AND disk_forced_s > 2 * window_s)
    OR coalesce(eta_high_s < disk_forced_s, false)"""
_READS: Final = "greatest(0D, coalesce(rate_out_long, 0D))"
# Expired files are deleted only in the hours of `deleteWhen`, so this is the first such interval
# after expiry; a full disk deletes them at once.
_DIES: Final = """CASE WHEN unix_micros(read_ts) + disk_full_s * 1e6D <= dies_us THEN dies_us
    ELSE array_min(transform(
        filter(deletions, s -> s.end_us > dies_us), s -> greatest(s.begin_us, dies_us))) END"""

# If a group reads the log at a speed v < 1, the age of its next message grows by 1 - v per second.
_LOSS: Final[Step] = {
    "dies_us": """CASE WHEN lag_time_s IS NOT NULL AND file_reserved_hours IS NOT NULL
        THEN greatest(unix_micros(read_ts), unix_micros(read_ts)
        + CAST((file_reserved_hours * 3600D - lag_time_s) * 1e6D AS bigint)) END""",
    "ttl_time_s": f"""CASE
        WHEN NOT ({_MAY_BE_LOST}) THEN NULL
        WHEN coalesce(log_speed, 0D) <= 0 THEN ({_DIES} - unix_micros(read_ts)) / 1e6D
        WHEN log_speed < 1 AND dies_us IS NOT NULL
            THEN greatest(0D, file_reserved_hours * 3600D - lag_time_s) / (1 - log_speed) END""",
    "ttl_trim_s": f"""CASE
        WHEN {_MAY_BE_LOST} AND disk_fills AND rate_min > {_READS}
        THEN greatest(0, c - n) / (rate_min - {_READS}) END""",
    "ttl_full_s": f"""CASE
        WHEN NOT ({_MAY_BE_LOST}) OR disk_forced_s IS NULL OR {_KEEPS_UP} THEN NULL
        WHEN sweep_s IS NULL THEN disk_forced_s
        WHEN (m - n) / sweep_s > {_READS}
        THEN disk_forced_s + greatest(0, c - n) / ((m - n) / sweep_s - {_READS}) END""",
    "ttl_disk_s": "least(ttl_trim_s, ttl_full_s)",
    "time_to_loss_s": f"""CASE WHEN {_MAY_BE_LOST} AND lost > 0 THEN 0D
        ELSE least(ttl_time_s, ttl_disk_s) END""",
    "ttl_model": """CASE
        WHEN time_to_loss_s IS NULL THEN 'none'
        WHEN lost > 0 THEN 'lost'
        WHEN time_to_loss_s = ttl_disk_s THEN 'disk' ELSE 'time' END""",
}

_HAS_SYSTEM_PREFIX: Final = " OR ".join(f"startswith(topic, '{it}')" for it in SYSTEM_PREFIXES)
_KIND: Final = f"""CASE
    WHEN startswith(topic, '{names.RETRY_PREFIX}') THEN 'RETRY'
    WHEN startswith(topic, '{names.DLQ_PREFIX}') THEN 'DLQ'
    WHEN topic IN ({", ".join(f"'{it}'" for it in sorted(SYSTEM_TOPICS))})
        OR {_HAS_SYSTEM_PREFIX} THEN 'SYSTEM' ELSE 'NORMAL' END"""
"""Delayed and half messages do not occur here: the table `backlog` has them."""

# A point counts as in time if either its lag or the age of its first unread message is within the
# limit, so that bursts and rarely used queues raise no alarm.
_KNOWN: Final = "present AND points_w >= points_min"
STATUS: Final = sql(
    {
        "broadcasts": "broadcast OR seen_broadcast",
        "loses": f"losing AND {_KNOWN}",
        "at_risk": f"time_to_loss_s < risk_s AND {_KNOWN}",
        "known": _KNOWN,
        "never_committed": "c IS NULL AND m > n AND always_online",
        "counted": "lag IS NOT NULL",
        "late": "NOT fine_now",
        "always_late": "NOT (fine_now OR fine_once)",
        "rewound": "went_back AND c < c_max",
        "online": "online",
        "stands": "c_min = c_max",
        "rests": "rest_s > 0",
        "rested": "rest_s >= window_s / 2",
        "drains": "drains",
    }
)
_SEVERITY: Final = (
    "CASE status "
    + " ".join(f"WHEN '{name}' THEN '{severity}'" for name, severity in STATUSES.items())
    + " END"
)

_NAMES: Final[Step] = {
    "consumer_offset": "c",
    "min_offset": "n",
    "max_offset": "m",
    "topic_kind": _KIND,
}


def with_steps(frame: DataFrame, *steps: Step) -> DataFrame:
    """Append each step's columns; a definition may use columns defined earlier in the same step."""
    for step in steps:
        frame = frame.selectExpr("*", *(f"{sql} AS {name}" for name, sql in step.items()))
    return frame


def queue_table(read: Inputs, limits: pa.Table, rules: Rules) -> pa.Table:
    """Compute the table `queue`, plus the column `present`; `limits` has a row per broker."""
    series = condense(read.progress.where(LAG_TOPICS), rules)
    series = series.join(F.broadcast(read.frame(limits)), BROKER_KEY)
    series = series.withColumn("present", F.col("last_id") == read.last_id)
    # Absent queues are deleted, except those of brokers that did not answer.
    series = read.frame(series.where("present OR NOT reachable").toArrow())
    unread = series.where("lag > 0 AND c IS NOT NULL")
    unread = unread.select(*KEY_COLUMNS, F.greatest("c", "n").alias("position"))
    broadcasting = read.past_groups.where("message_model = 'BROADCASTING'")
    seen = broadcasting.select(*GROUP_KEY).distinct().withColumn("seen_broadcast", F.lit(True))
    series = series.join(arrivals(read.past_offsets, unread), KEY_COLUMNS, "left")
    series = series.join(F.broadcast(seen), GROUP_KEY, "left")
    numbers: Step = {
        "points_min": str(rules.points_min),
        "risk_s": f"{rules.risk_hours * 3600}D",
        "window_s": str(rules.window_s),
    }
    verdict: Step = {"status": STATUS, "severity": _SEVERITY}
    series = with_steps(series, numbers, _TIMES, _RATES, _ETA, _LOSS, verdict, _NAMES)
    return series.select(*(c.name for c in QUEUE), "present").toArrow()


_BOUNDS: Final = f"""
SELECT /*+ BROADCAST(s) */ {KEY},
       max(CASE WHEN o.max_offset <= s.position THEN o.snapshot_id END) AS before_id,
       max_by(o.max_offset, o.snapshot_id) FILTER (WHERE o.max_offset <= s.position) AS before_m,
       max_by(unix_micros(o.read_ts), o.snapshot_id)
           FILTER (WHERE o.max_offset <= s.position) AS before_us,
       min(CASE WHEN o.max_offset > s.position THEN o.snapshot_id END) AS after_id,
       min_by(o.max_offset, o.snapshot_id) FILTER (WHERE o.max_offset > s.position) AS after_m,
       min_by(unix_micros(o.read_ts), o.snapshot_id)
           FILTER (WHERE o.max_offset > s.position) AS after_us
FROM {{offsets}} o JOIN {{unread}} s USING (cluster, broker_name, topic, queue_id)
WHERE o.snapshot_id > coalesce(s.since_id, -1)
GROUP BY {KEY}
"""


def arrivals(offsets: DataFrame, unread: DataFrame) -> DataFrame:
    """Find, for each series, the two snapshots between which its first unread message arrived.

    `unread` has the key columns and `position`, the first unread offset. It must be small enough to
    broadcast.
    """
    sql = offsets.sparkSession.sql
    unread = unread.withColumn("since_id", F.lit(None).cast("bigint"))
    found = sql(_BOUNDS, offsets=offsets, unread=unread)
    found = offsets.sparkSession.createDataFrame(
        found.toArrow()
    )  # both queries below use it: scan once
    again = found.where("after_id < before_id")
    if again.isEmpty():
        return found
    # A recreated queue may have passed this offset in its earlier life, so count only later
    # snapshots.
    later = unread.drop("since_id").join(
        again.select(*KEY_COLUMNS, F.col("before_id").alias("since_id")), KEY_COLUMNS
    )
    fixed = sql(_BOUNDS, offsets=offsets, unread=later).select(
        *KEY_COLUMNS,
        F.col("after_id").alias("after_id_2"),
        F.col("after_m").alias("after_m_2"),
        F.col("after_us").alias("after_us_2"),
    )
    joined = found.join(F.broadcast(fixed), KEY_COLUMNS, "left")
    columns = ("after_id", "after_m", "after_us")
    return joined.withColumns({name: F.coalesce(f"{name}_2", name) for name in columns}).drop(
        *(f"{name}_2" for name in columns)
    )
