# SPDX-License-Identifier: Apache-2.0
"""Measure what the options `where` and `columns` save: the same rows with and without them.

Rates count the messages of the topic, read or not, so that they can be compared. Bytes are those of
the records that brokers return.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from cometmq.peers.comet import CometCluster
from cometmq.peers.content import create_topic
from cometmq.remoting.message.batch import BatchItem
from cometmq.spark.lag.job import session
from cometmq.spark.options.definitions import parse
from cometmq.spark.options.offsets_json import Queue
from cometmq.spark.read.batch import MessageReader
from cometmq.spark.read.fetching import Fetcher
from cometmq.spark.read.planning import QueueRange
from cometmq.spark.schemas import table_schema
from cometmq.spark.source import RocketMQDataSource
from cometmq.testing.spark import fill

TOPIC = "bench"
QUEUES = 4
ROUNDS = 3
TAGS = 20
CONDITIONS = {
    "one tag of 20": "tags = 't7'",
    "one queue of 4": "queue_id = 2",
    "one key": "keys = 'broker-a-1-77'",
    "the last tenth, by store time": "store_ts >= {last_tenth}",
}


def message(queue: Queue, number: int) -> BatchItem:
    key = f"{queue.broker_name}-{queue.queue_id}-{number}"
    text = f"TAGS\x01t{number % TAGS}\x02KEYS\x01{key}\x02UNIQ_KEY\x01{key}"
    return BatchItem(0, f"{key}:".ljust(100, "x").encode(), text)


def seconds(rows: DataFrame) -> float:
    begin = time.perf_counter()
    rows.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begin


def pulled_bytes(options: dict[str, str]) -> int:
    """Pull the records of a read in this process, and count their bytes."""
    parsed = parse(options)
    reader = MessageReader(parsed, table_schema(parsed))
    return sum(
        len(piece.body)
        for part in reader.partitions()
        if isinstance(part, QueueRange)
        for piece in Fetcher(part.span, part.addresses, parsed).pieces()
    )


def compare(
    spark: SparkSession,
    name: str,
    plain: dict[str, str],
    pushed: dict[str, str],
    condition: str,
    total: int,
) -> dict[str, Any]:
    """Read the same rows without and with the options, alternately."""

    def load(options: dict[str, str]) -> DataFrame:
        return spark.read.format("rocketmq").options(**options).load()

    def without() -> DataFrame:
        rows = load(plain)
        if condition:
            rows = rows.where(condition)
        return rows.select("tags", "body") if "columns" in pushed else rows

    assert without().count() == load(pushed).count()
    times = [(seconds(without()), seconds(load(pushed))) for _ in range(ROUNDS)]
    before, after = (statistics.median(it) for it in zip(*times, strict=True))
    return {
        "name": name,
        "rows_per_s_without": round(total / before),
        "rows_per_s": round(total / after),
        "times_as_fast": round(before / after, 1),
        "mb_without": round(pulled_bytes(plain) / 1e6, 1),
        "mb": round(pulled_bytes(pushed) / 1e6, 1),
        "load_average": round(os.getloadavg()[0], 1),
    }


def main(count: int) -> None:
    """Measure with `count` messages in each of four queues; print one line per option."""
    with (
        tempfile.TemporaryDirectory(prefix="cometmq-bench-") as folder,
        CometCluster(Path(folder) / "broker") as cluster,
        session("local[2]", {"spark.local.dir": folder}, name="bench") as spark,
    ):
        spark.dataSource.register(RocketMQDataSource)
        create_topic(cluster.namesrv_addr, cluster.broker_addrs, TOPIC, queue_count=QUEUES)
        fill(cluster.namesrv_addr, TOPIC, count * 9 // 10, make=message)
        last_tenth = time.time_ns() // 1_000_000 + 1
        time.sleep(0.01)
        fill(cluster.namesrv_addr, TOPIC, count // 10, first=count * 9 // 10, make=message)
        plain = {"nameServer": cluster.namesrv_addr, "subscribe": TOPIC}
        for name, condition in CONDITIONS.items():
            where = condition.format(last_tenth=last_tenth)
            moment = f"timestamp_millis({last_tenth})"
            figures = compare(
                spark,
                name,
                plain,
                {**plain, "where": where},
                condition.format(last_tenth=moment),
                count * QUEUES,
            )
            print(json.dumps(figures), flush=True)
        columns = {**plain, "columns": "tags,body"}
        figures = compare(spark, "two columns of 20", plain, columns, "", count * QUEUES)
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 250_000)
