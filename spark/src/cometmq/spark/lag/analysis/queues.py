# SPDX-License-Identifier: Apache-2.0
"""The table `queue` as SQL: lag, rates, and the time until unread data is deleted.

Each definition is a column; each step can use the columns of the previous steps.
"""

from typing import Final

from pyspark.sql import DataFrame

from cometmq.remoting import names
from cometmq.spark.lag.analysis import regression
from cometmq.spark.lag.analysis.series import seconds
from cometmq.spark.lag.analysis.status import STATUS
from cometmq.spark.lag.columns import QUEUE, STATUSES
from cometmq.spark.lag.rules import Rules
from cometmq.spark.tables.topic_kinds import SYSTEM_PREFIXES, SYSTEM_TOPICS

Step = dict[str, str]

T_STATISTIC: Final = 2.0
"""A slope counts if it exceeds this many standard errors."""

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
    "rate_in": regression.slope("rm"),
    "rate_out": regression.slope("rc"),
    "rate_in_long": regression.slope("lm"),
    "rate_out_long": regression.slope("lc"),
    "rate_min": regression.slope("ln"),
    "drain": regression.slope("rd"),
    "drain_se": regression.standard_error("rd"),
    "rate_r2": regression.r_squared("rd"),
    "log_speed": f"CASE WHEN c_min = c_max THEN 0D ELSE {regression.slope('rl')} END",
    "points": "CAST(rd_n AS int)",
}

_ETA: Final[Step] = {
    "drains": f"coalesce(drain > 0 AND drain > {T_STATISTIC} * drain_se, false)",
    "eta_catchup_s": "CASE WHEN lag = 0 THEN 0D WHEN drains THEN lag / drain END",
    "eta_low_s": "CASE WHEN lag = 0 THEN 0D WHEN drains THEN lag / (drain + drain_se) END",
    "eta_high_s": "CASE WHEN lag = 0 THEN 0D WHEN drains THEN lag / (drain - drain_se) END",
}

_MAY_BE_LOST: Final = "lag > 0 AND c IS NOT NULL"
# Expired files are deleted only in the hours of `deleteWhen`, so this is the first such interval
# after expiry.
_DIES: Final = """array_min(transform(
    filter(deletions, s -> s.end_us > dies_us), s -> greatest(s.begin_us, dies_us)))"""

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
    "ttl_disk_s": f"""CASE
        WHEN {_MAY_BE_LOST} AND disk_fills AND rate_min > coalesce(rate_out_long, 0D)
        THEN greatest(0, c - n) / (rate_min - coalesce(rate_out_long, 0D)) END""",
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


def queues(series: DataFrame, rules: Rules) -> DataFrame:
    """Compute the table `queue`, plus the column `present`.

    `series` has the columns of `series.condense` and `arrival.arrivals`, the broker facts
    (`file_reserved_hours`, `deletions`, `disk_fills`), `present` (whether the newest snapshot has
    the series) and `seen_broadcast`.
    """
    numbers: Step = {
        "points_min": str(rules.points_min),
        "risk_s": f"{rules.risk_hours * 3600}D",
    }
    frame = with_steps(
        series, numbers, _TIMES, _RATES, _ETA, _LOSS, {"status": STATUS, "severity": _SEVERITY}
    )
    frame = with_steps(frame, _NAMES)
    return frame.select(*(c.name for c in QUEUE), "present")
