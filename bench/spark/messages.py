# SPDX-License-Identifier: Apache-2.0
"""Rows a second of the table `messages`, in batches and as a stream, from a broker beside it."""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from cometmq.peers.comet import CometCluster
from cometmq.peers.content import create_topic
from cometmq.spark.source import RocketMQDataSource
from cometmq.spark.testing import fill

TOPIC = "bench"
QUEUES = 4
ROUNDS = 3
TARGETS = {"batch raw": 200_000, "batch map": 80_000}


@contextmanager
def session(folder: str) -> Iterator[SparkSession]:
    """A local Spark with two threads."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ[name] = sys.executable  # noqa: TID251 (how Spark is told)
    started = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", folder)
        .getOrCreate()
    )
    started.sparkContext.setLogLevel("ERROR")
    started.dataSource.register(RocketMQDataSource)
    yield started
    started.stop()


def batch(spark: SparkSession, options: dict[str, str]) -> Callable[[int], float]:
    """Return what reads everything, drops it, and says how long that took."""

    def run(_: int) -> float:
        begin = time.perf_counter()
        rows = spark.read.format("rocketmq").options(**options).load()
        rows.write.format("noop").mode("overwrite").save()
        return time.perf_counter() - begin

    return run


def stream(spark: SparkSession, options: dict[str, str], folder: str) -> Callable[[int], float]:
    """Return what reads everything as one batch of a stream; the time is that of the batch."""

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


def measure(name: str, count: int, run: Callable[[int], float]) -> dict[str, Any]:
    """Run some times after a first time; return rows a second."""
    run(0)
    rates = [count / run(number) for number in range(1, ROUNDS + 1)]
    return {
        "name": name,
        "rows_per_s": round(statistics.median(rates)),
        "best_rows_per_s": round(max(rates)),
        "target_rows_per_s": TARGETS.get(name),
        "load_average": round(os.getloadavg()[0], 1),
    }


def main(count: int) -> list[dict[str, Any]]:
    """Measure with `count` messages in each of four queues; print and return the figures."""
    figures = []
    with (
        tempfile.TemporaryDirectory(prefix="cometmq-bench-") as folder,
        CometCluster(Path(folder) / "broker") as cluster,
        session(folder) as spark,
    ):
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
            figures.append(measure(f"batch {form}", total, batch(spark, options)))
            print(json.dumps(figures[-1]), flush=True)
            if form == "raw":
                run = stream(spark, options, folder)
                figures.append(measure(f"stream {form}", total, run))
                print(json.dumps(figures[-1]), flush=True)
    return figures


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 250_000)
