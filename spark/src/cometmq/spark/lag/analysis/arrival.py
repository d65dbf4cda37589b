# SPDX-License-Identifier: Apache-2.0
"""Finds when the first unread message arrived, from the history of queue ends.

The message arrived between the last snapshot whose `max_offset` did not exceed its offset and the
next snapshot.
"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from cometmq.spark.lag.analysis.series import KEY, KEY_COLUMNS

QUEUE: Final = ["cluster", "broker_name", "topic", "queue_id"]

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
