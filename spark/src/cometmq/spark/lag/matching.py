# SPDX-License-Identifier: Apache-2.0
"""The table `filtered`: what groups with a filter really have to read, from tried messages.

The share of messages that match is known from the newest tries at each broker, with Wilson's
interval of 95 %. The bounds of brokers are added up, so that of the sum is a little too wide.
"""

from typing import Final

from pyspark.sql import DataFrame

_Z: Final = 1.96

_BOUND: Final = f"""(matched / tried + {_Z**2 / 2} / tried {{sign}} {_Z} * sqrt(
    matched * (tried - matched) / CAST(tried AS double) + {_Z**2 / 4}) / tried)
    / (1 + {_Z**2} / tried)"""

_FILTERED: Final = """
WITH said AS (
    SELECT cluster, `group`, broker_name, snapshot_id, subscriptions, topic, tried,
           matched[topic] AS matched
    FROM (SELECT *, coalesce(tried, map()) AS tries FROM {groups})
    LATERAL VIEW OUTER explode(tries) AS topic, tried),
newest AS (
    SELECT cluster, `group`, broker_name, topic,
           max_by(tried, snapshot_id) AS tried, max_by(matched, snapshot_id) AS matched
    FROM said WHERE tried > 0 GROUP BY cluster, `group`, broker_name, topic),
words AS (
    SELECT cluster, `group`, max_by(subscriptions, snapshot_id) AS subscriptions
    FROM {groups} WHERE cardinality(subscriptions) > 0 GROUP BY cluster, `group`),
unread AS (
    SELECT cluster, `group`, broker_name, topic, sum(lag) AS lag
    FROM {queues} WHERE filtered AND lag > 0 GROUP BY cluster, `group`, broker_name, topic)
SELECT u.cluster, u.`group`, u.topic, max(w.subscriptions[u.topic]) AS expression,
       sum(u.lag) AS lag, sum(n.tried) AS tried, sum(n.matched) AS matched,
       {matching}
FROM unread u
LEFT JOIN newest n ON u.cluster = n.cluster AND u.`group` = n.`group`
    AND u.broker_name = n.broker_name AND u.topic = n.topic
LEFT JOIN words w ON u.cluster = w.cluster AND u.`group` = w.`group`
GROUP BY u.cluster, u.`group`, u.topic
ORDER BY lag DESC, u.cluster, u.`group`, u.topic
"""

_SHARES: Final = {
    "lag_matching": "matched / tried",
    "lag_low": _BOUND.format(sign="-"),
    "lag_high": _BOUND.format(sign="+"),
}


def filtered(queues: DataFrame, groups: DataFrame) -> DataFrame:
    """Return a row per topic of which a group wants only some messages and has unread ones."""
    matching = ",\n".join(
        f"CASE WHEN bool_and(tried IS NOT NULL)"
        f" THEN CAST(round(sum(lag * ({share}))) AS bigint) END AS {name}"
        for name, share in _SHARES.items()
    )
    sql = _FILTERED.replace("{matching}", matching)
    return queues.sparkSession.sql(sql, queues=queues, groups=groups)
