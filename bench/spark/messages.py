# SPDX-License-Identifier: Apache-2.0
"""Measure how fast batches and streams read the table `messages` from a local broker."""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from cometmq.peers.comet import CometCluster
from cometmq.peers.content import create_topic
from cometmq.spark.lag.job import session
from cometmq.spark.source import RocketMQDataSource
from cometmq.testing.spark import fill

TOPIC = "bench"
QUEUES = 4
ROUNDS = 3
TARGETS = {"raw": 200_000, "map": 80_000}
STREAM_ROUNDS = 5
STREAM_ADDS_MAX = 0.10


def batch(spark: SparkSession, options: dict[str, str]) -> Callable[[int], float]:
    """Return a function that reads all messages into a noop sink and returns the seconds taken."""

    def run(_: int) -> float:
        begin = time.perf_counter()
        rows = spark.read.format("rocketmq").options(**options).load()
        rows.write.format("noop").mode("overwrite").save()
        return time.perf_counter() - begin

    return run


def stream(spark: SparkSession, options: dict[str, str], folder: str) -> Callable[[int], float]:
    """Return a function that reads all messages as one micro-batch and returns the seconds."""

    def run(number: int) -> float:
        rows = spark.readStream.format("rocketmq").options(**options).load()
        query = (
            rows.writeStream.format("noop")
            .option("checkpointLocation", f"{folder}/{number}-{time.time_ns()}")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        done = [one for one in query.recentProgress if one.numInputRows]
        return sum(one.durationMs["triggerExecution"] for one in done) / 1000

    return run


def measure(form: str, count: int, run: Callable[[int], float]) -> dict[str, Any]:
    """Measure rows per second over several rounds, after a warm-up round."""
    run(0)
    rates = [count / run(number) for number in range(1, ROUNDS + 1)]
    return {
        "name": f"batch {form}",
        "rows_per_s": round(statistics.median(rates)),
        "best_rows_per_s": round(max(rates)),
        "target_rows_per_s": TARGETS.get(form),
        "load_average": round(os.getloadavg()[0], 1),
    }


def compare(
    count: int, once: Callable[[int], float], streamed: Callable[[int], float]
) -> dict[str, Any]:
    """Run batch and stream alternately under the same load; return the overhead of streaming."""
    streamed(0)
    times = [(once(number), streamed(number)) for number in range(1, STREAM_ROUNDS + 1)]
    adds = statistics.median(late / early - 1 for early, late in times)
    return {
        "name": "stream raw",
        "rows_per_s": round(statistics.median(count / late for _, late in times)),
        "batch_rows_per_s": round(statistics.median(count / early for early, _ in times)),
        "adds": round(adds, 3),
        "adds_of_rounds": [round(late / early - 1, 3) for early, late in times],
        "target_adds": STREAM_ADDS_MAX,
        "reached": adds <= STREAM_ADDS_MAX,
        "load_average": round(os.getloadavg()[0], 1),
    }


def main(count: int) -> list[dict[str, Any]]:
    """Measure with `count` messages in each of four queues; print and return the results."""
    figures = []
    with (
        tempfile.TemporaryDirectory(prefix="cometmq-bench-") as folder,
        CometCluster(Path(folder) / "broker") as cluster,
        session("local[2]", {"spark.local.dir": folder}, name="bench") as spark,
    ):
        spark.dataSource.register(RocketMQDataSource)
        create_topic(cluster.namesrv_addr, cluster.broker_addrs, TOPIC, queue_count=QUEUES)
        fill(cluster.namesrv_addr, TOPIC, count)
        total = count * QUEUES
        for form in ("raw", "map", "none"):
            options = {
                "nameServer": cluster.namesrv_addr,
                "subscribe": TOPIC,
                "startingOffsets": "earliest",
                "includeProperties": form,
            }
            once = batch(spark, options)
            figures.append(measure(form, total, once))
            print(json.dumps(figures[-1]), flush=True)
            if form == "raw":
                figures.append(compare(total, once, stream(spark, options, folder)))
                print(json.dumps(figures[-1]), flush=True)
    return figures


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 250_000)
