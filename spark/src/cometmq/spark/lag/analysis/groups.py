# SPDX-License-Identifier: Apache-2.0
"""The table `group`, one row per group with its worst queue, and the lag curves of groups."""

from typing import Final

from pyspark.sql import DataFrame

from cometmq.spark.lag.analysis.series import KEY, LAG
from cometmq.spark.lag.columns import BAD, SEVERITIES, STATUSES

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

_CURVES: Final = f"""
SELECT cluster, `group`, snapshot_id, min(read_ts) AS ts,
       sum({LAG}) AS lag, sum(m) AS max_offset, sum(c) AS consumer_offset,
       bool_and(coalesce({LAG} <= fine_lag, true))
           AND count(*) >= max(count(*)) OVER (
               PARTITION BY cluster, `group` ORDER BY snapshot_id) AS fine
FROM (SELECT /*+ BROADCAST(q) */ DISTINCT {KEY},
             snapshot_id, read_ts, consumer_offset AS c, min_offset AS n, max_offset AS m, fine_lag
      FROM {{progress}} JOIN {{queues}} q USING ({KEY}))
GROUP BY cluster, `group`, snapshot_id
HAVING sum({LAG}) IS NOT NULL
"""


def groups(queues: DataFrame) -> DataFrame:
    """Compute the table `group`, without `since_ts` and the changes in lag."""
    return queues.sparkSession.sql(_GROUPS, queues=queues)


def curves(progress: DataFrame, wanted: DataFrame) -> DataFrame:
    """Sum the lag of the groups of the given queues at each snapshot.

    `fine` tells whether each queue was within its acceptable lag (`fine_lag`). A snapshot that
    lacks queues of earlier ones shows no group as fine: a broker that restarts does not answer.
    """
    return progress.sparkSession.sql(_CURVES, progress=progress, queues=wanted)
