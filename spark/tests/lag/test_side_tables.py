# SPDX-License-Identifier: Apache-2.0
"""Suggested commands can be pasted into a shell, whatever the names are."""

import shlex
from datetime import UTC, datetime, timedelta

from pyspark.sql import SparkSession

from cometmq.spark.lag.analysis.side_tables import silent_groups, silent_topics

NAMES = ["plain-1_x.y", "%RETRY%g", "a|b", "$(reboot)", "it's", "a; b", "end\n", "\\"]
NOW = datetime(2027, 5, 12, 10, tzinfo=UTC)
LAST_ID = int(NOW.timestamp()) // 60
OLD = NOW - timedelta(days=8)


def test_names_are_single_shell_words(spark: SparkSession) -> None:
    offsets = spark.createDataFrame(
        [(LAST_ID, name, name, "NORMAL", OLD) for name in NAMES],
        "snapshot_id bigint, cluster string, topic string, topic_kind string, "
        "last_update_ts timestamp",
    )
    groups = spark.createDataFrame(
        [(name, name, 5, False) for name in NAMES],
        "cluster string, `group` string, lag_sum bigint, online boolean",
    )
    hours = spark.createDataFrame(
        [(NOW - timedelta(days=7), name, name, "b", "t", 0, 4, 4, False) for name in NAMES],
        "hour_ts timestamp, cluster string, `group` string, broker_name string, topic string, "
        "queue_id int, c_min bigint, c_max bigint, online boolean",
    )
    topic_rows = silent_topics(offsets, LAST_ID, 7).collect()
    group_rows = silent_groups(groups, hours, LAST_ID, 7).collect()
    assert {row["name"] for row in topic_rows} == set(NAMES)
    assert {row["name"] for row in group_rows} == set(NAMES)
    for row in topic_rows:
        assert shlex.split(row["command"]) == ["mqadmin", "deleteTopic", "-c", row["name"], "-t",
                                               row["name"]]  # fmt: skip
    for row in group_rows:
        assert shlex.split(row["command"]) == ["mqadmin", "deleteSubGroup", "-r", "true", "-c",
                                               row["name"], "-g", row["name"]]  # fmt: skip
    plain = min(row["command"] for row in topic_rows if row["name"] == NAMES[0])
    assert "'" not in plain
