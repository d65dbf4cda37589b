# SPDX-License-Identifier: Apache-2.0
"""The smaller tables of a report: skewed topics, filters, silent groups and topics, backlogs."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from cometmq.remoting import names
from cometmq.spark.lag.analysis.series import LAG
from cometmq.spark.lag.columns import REPORT_TABLES
from cometmq.spark.lag.history.inputs import Inputs
from cometmq.spark.tables.arrow import table_of
from cometmq.spark.tables.rows import Sample

HOT_RATIO: Final = 3
HOT_RATE: Final = 100
"""Messages per second; slower queues are never called hot."""

# Topics that have several queues, hot topics first.
_SKEW: Final = f"""
WITH queue AS (
    SELECT cluster, topic, broker_name, queue_id, max(rate_in) AS rate, max(lag) AS lag
    FROM {{queues}} WHERE topic_kind = 'NORMAL'
    GROUP BY cluster, topic, broker_name, queue_id),
ranked AS (
    SELECT *,
           row_number() OVER (PARTITION BY cluster, topic
                              ORDER BY coalesce(rate, 0), broker_name, queue_id) AS rate_place,
           row_number() OVER (PARTITION BY cluster, topic
                              ORDER BY coalesce(lag, 0), broker_name, queue_id) AS lag_place
    FROM queue),
topics AS (
    SELECT cluster, topic, CAST(count(*) AS int) AS queues,
           max(rate) AS rate_in_max, avg(rate) AS rate_in_mean,
           try_divide(2 * sum(rate_place * coalesce(rate, 0)), count(*) * sum(coalesce(rate, 0)))
               - (count(*) + 1) / count(*) AS rate_in_gini,
           max_by(broker_name, rate_place) AS hot_broker_name,
           max_by(queue_id, rate_place) AS hot_queue_id,
           max(lag) AS lag_max,
           try_divide(2D * sum(lag_place * coalesce(lag, 0)), count(*) * sum(coalesce(lag, 0)))
               - (count(*) + 1) / count(*) AS lag_gini
    FROM ranked GROUP BY cluster, topic)
SELECT *, coalesce(rate_in_max > {HOT_RATIO} * rate_in_mean AND rate_in_max > {HOT_RATE}, false)
           AS hot
FROM topics WHERE queues > 1
ORDER BY hot DESC, rate_in_gini DESC NULLS LAST, cluster, topic
"""

_PROGRESS_KIND: Final = f"""CASE WHEN startswith(topic, '{names.RETRY_PREFIX}') THEN 'RETRY'
    WHEN topic = '{names.SCHEDULE_TOPIC}' THEN 'DELAY'
    WHEN topic = '{names.HALF_TOPIC}' THEN 'HALF' END"""

# Waiting retries, dead letters, delayed and half messages over the long window.
_BACKLOG: Final = f"""
WITH found AS (
    SELECT cluster, {_PROGRESS_KIND} AS kind, snapshot_id,
           CASE {_PROGRESS_KIND} WHEN 'RETRY' THEN `group`
               WHEN 'DELAY' THEN format_string('%02d', queue_id + 1) ELSE topic END AS name,
           broker_name, topic, queue_id, read_ts, {LAG} AS waiting, {LAG} AS growing
    FROM (SELECT *, consumer_offset AS c, min_offset AS n, max_offset AS m FROM {{progress}})
    UNION
    SELECT cluster, 'DLQ', snapshot_id, substr(topic, {len(names.DLQ_PREFIX) + 1}), broker_name,
           topic, queue_id, read_ts, max_offset - min_offset, max_offset
    FROM {{offsets}} WHERE topic_kind = 'DLQ'),
sums AS (
    SELECT cluster, kind, name, snapshot_id, min(read_ts) AS ts,
           sum(waiting) AS waiting, sum(growing) AS growing
    FROM found WHERE kind IS NOT NULL GROUP BY cluster, kind, name, snapshot_id),
slopes AS (
    SELECT cluster, kind, name, max(snapshot_id) AS last_id,
           max_by(waiting, snapshot_id) AS backlog,
           regr_slope(growing, (snapshot_id - {{last_id}}) * 60D) AS rate
    FROM sums GROUP BY cluster, kind, name)
SELECT cluster, kind, name, backlog, rate,
       coalesce(rate > 0 AND backlog > 0 AND kind IN ('RETRY', 'DLQ'), false) AS flagged
FROM slopes WHERE last_id = {{last_id}} AND (backlog > 0 OR rate <> 0)
ORDER BY flagged DESC, kind, backlog DESC, cluster, name
"""


def _word(column: str) -> str:
    """Build SQL that quotes a name for the shell: brokers accept any characters in names."""
    quoted = f"""concat("'", replace({column}, "'", "'\\\\''"), "'")"""
    return f"CASE WHEN {column} RLIKE '[^%_a-zA-Z0-9.-]' THEN {quoted} ELSE {column} END"


_SILENT_TOPICS: Final = f"""
SELECT cluster, 'TOPIC' AS kind, topic AS name, max(last_update_ts) AS since_ts,
       CAST(NULL AS bigint) AS lag_sum,
       concat('mqadmin deleteTopic -c ', {_word("cluster")}, ' -t ', {_word("topic")}) AS command
FROM {{offsets}} WHERE topic_kind = 'NORMAL' AND snapshot_id = {{last_id}}
GROUP BY cluster, topic
HAVING max(last_update_ts) < {{before}} AND count(last_update_ts) > 0
"""

_SILENT_GROUPS: Final = f"""
WITH moved AS (
    SELECT cluster, `group`, min(hour_ts) AS since_ts,
           bool_or(c_min <> c_max) AS moved_within, bool_or(online) AS was_online
    FROM (SELECT cluster, `group`, broker_name, topic, queue_id, min(hour_ts) AS hour_ts,
                 min(c_min) AS c_min, max(c_max) AS c_max, bool_or(online) AS online
          FROM {{hours}} WHERE hour_ts >= {{before}}
          GROUP BY cluster, `group`, broker_name, topic, queue_id)
    GROUP BY cluster, `group`)
SELECT g.cluster, 'GROUP' AS kind, g.`group` AS name, m.since_ts, g.lag_sum,
       concat('mqadmin deleteSubGroup -r true -c ', {_word("g.cluster")},
              ' -g ', {_word("g.`group`")}) AS command
FROM {{groups}} g JOIN moved m ON g.cluster = m.cluster AND g.`group` = m.`group`
WHERE NOT g.online AND NOT m.was_online AND NOT coalesce(m.moved_within, false)
  AND m.since_ts < {{before}} + INTERVAL 2 HOURS
"""


def side_tables(
    read: Inputs, queues: pa.Table, groups: pa.Table, silent_days: float
) -> dict[str, pa.Table]:
    sql = read.spark.sql
    silent = silent_topics(read.offsets, read.last_id, silent_days)
    if read.hours is not None:
        known = read.frame(groups)
        silent = silent.union(silent_groups(known, read.hours, read.last_id, silent_days))
    by_name = [(name, "ascending") for name in ("kind", "since_ts", "cluster", "name")]
    return {
        "skew": sql(_SKEW, queues=read.frame(queues)).toArrow(),
        "filtered": filtered(queues, read.groups),
        "silent": silent.toArrow().sort_by(by_name),
        "backlog": sql(
            _BACKLOG, progress=read.progress, offsets=read.offsets, last_id=read.last_id
        ).toArrow(),
    }


def silent_topics(offsets: DataFrame, last_id: int, days: float) -> DataFrame:
    """List topics that have received no message for `days` days."""
    before = f"timestamp_seconds({last_id * 60 - days * 86_400:.0f})"
    sql = _SILENT_TOPICS.replace("{last_id}", str(last_id)).replace("{before}", before)
    return offsets.sparkSession.sql(sql, offsets=offsets)


def silent_groups(groups: DataFrame, hours: DataFrame, last_id: int, days: float) -> DataFrame:
    """List groups without members that have consumed nothing for `days` days.

    `hours` is the dataset `agg60/stats`; a group is omitted if its hours do not go back far enough.
    """
    before = f"timestamp_seconds({last_id * 60 - days * 86_400:.0f})"
    sql = _SILENT_GROUPS.replace("{before}", before)
    return groups.sparkSession.sql(sql, groups=groups, hours=hours)


_Z: Final = 1.96


class _Topic(NamedTuple):
    cluster: str
    group: str
    topic: str


def filtered(queues: pa.Table, groups: pa.Table) -> pa.Table:
    """Build one row per filtered topic with unread messages.

    `queues` is the report's table `queue`; `groups` is the snapshot table `groups` over the long
    window.
    """
    unread = _unread(queues)
    tries = _newest_tries(groups)
    words = _expressions(groups, {it.group for it in unread})
    rows = [_row(it, unread[it], tries, words.get(it)) for it in unread]
    rows.sort(key=lambda row: (-row[4], row[:3]))
    return table_of(REPORT_TABLES["filtered"], rows)


def wilson(sample: Sample) -> tuple[float, float]:
    """Compute the 95 % Wilson score interval of the matching share."""
    count, share = sample.tried, sample.matched / sample.tried
    centre = share + _Z**2 / (2 * count)
    half = _Z * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2))
    scale = 1 + _Z**2 / count
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def _unread(queues: pa.Table) -> dict[_Topic, Counter[str]]:
    wanted = queues.filter(pc.and_(queues["filtered"], pc.greater(queues["lag"], 0)))
    found: defaultdict[_Topic, Counter[str]] = defaultdict(Counter)
    for row in wanted.select(["cluster", "group", "topic", "broker_name", "lag"]).to_pylist():
        topic = _Topic(row["cluster"], row["group"], row["topic"])
        found[topic][row["broker_name"]] += row["lag"]
    return found


def _newest_tries(groups: pa.Table) -> dict[tuple[_Topic, str], Sample]:
    rows = groups.filter(pc.is_valid(groups["tried"])).sort_by("snapshot_id").to_pylist()
    return {
        (_Topic(row["cluster"], row["group"], topic), row["broker_name"]): Sample(tried, matched)
        for row in rows
        for topic, tried, matched in _counts(row)
        if tried > 0
    }


def _counts(row: Mapping[str, Any]) -> Iterator[tuple[str, int, int]]:
    matched = dict(row["matched"])
    for topic, tried in row["tried"]:
        yield topic, tried, matched[topic]


def _expressions(groups: pa.Table, names: set[str]) -> dict[_Topic, str]:
    rows = groups.filter(pc.is_in(groups["group"], pa.array(sorted(names), pa.string())))
    rows = rows.select(["cluster", "group", "subscriptions", "snapshot_id"]).sort_by("snapshot_id")
    return {
        _Topic(row["cluster"], row["group"], topic): text
        for row in rows.to_pylist()
        for topic, text in row["subscriptions"]
    }


def _row(
    topic: _Topic,
    unread: Counter[str],
    tries: Mapping[tuple[_Topic, str], Sample],
    expression: str | None,
) -> tuple[Any, ...]:
    samples = {it: tries[topic, it] for it in unread if (topic, it) in tries}
    tried = sum(it.tried for it in samples.values()) if samples else None
    matched = sum(it.matched for it in samples.values()) if samples else None
    known = (*topic, expression, unread.total(), tried, matched)
    if len(samples) < len(unread):
        return (*known, None, None, None)
    shares = ((unread[name], it.matched / it.tried, *wilson(it)) for name, it in samples.items())
    sums = [
        sum(parts) for parts in zip(*((n * a, n * b, n * c) for n, a, b, c in shares), strict=True)
    ]
    return (*known, *(round(it) for it in sums))
