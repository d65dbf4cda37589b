# SPDX-License-Identifier: Apache-2.0
"""A Spark job as a user submits it: reads a topic, builds a report, prints a line of JSON."""

import argparse
import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cometmq.spark.lag.analysis.report import build
from cometmq.spark.lag.history.snapshots import History
from cometmq.spark.lag.rules import Rules
from cometmq.spark.source import RocketMQDataSource


def read(spark: SparkSession, namesrv: str, topic: str) -> DataFrame:
    """Read the topic in at least eight ranges."""
    return (
        spark.read.format("rocketmq")
        .option("nameServer", namesrv)
        .option("subscribe", topic)
        .option("minPartitions", 8)
        .option("arrowBatchRows", 1000)
        .option("includeProperties", "raw")
        .load()
        .select("keys", "body")
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("namesrv")
    parser.add_argument("topic")
    parser.add_argument("history")
    arguments = parser.parse_args()
    spark = SparkSession.builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    spark.dataSource.register(RocketMQDataSource)
    messages = read(spark, arguments.namesrv, arguments.topic)
    row = messages.agg(
        F.count("*").alias("count"),
        F.countDistinct("keys").alias("keys"),
        F.sum(F.crc32("body")).alias("checksum"),
    ).collect()[0]
    found = row.asDict()
    report = build(spark, History(Path(arguments.history)), Rules())
    found["groups"] = report.table("group")["group"].to_pylist()
    # The prefix distinguishes this line from Spark's own output.
    sys.stdout.write(f"RESULT {json.dumps(found)}\n")
    spark.stop()


if __name__ == "__main__":
    main()
