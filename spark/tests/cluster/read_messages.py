# SPDX-License-Identifier: Apache-2.0
"""A Spark program that tests kill, or that kills its own executors; prints a line of JSON."""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from cometmq.spark.source import RocketMQDataSource

WAIT_S = 120


def session_of(given: dict[str, Any]) -> SparkSession:
    session = (
        SparkSession.builder.master(given["master"])
        .appName("read-messages")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", given["folder"])
        .config("spark.executor.memory", "512m")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    session.dataSource.register(RocketMQDataSource)
    return session


def executors() -> list[int]:
    """Find the executor processes of this program."""
    parents: dict[int, int] = {}
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parents[int(entry.name)] = int(
                (entry / "stat").read_text().rpartition(")")[2].split()[1]
            )
            if b"CoarseGrainedExecutorBackend" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue  # it has exited since it was listed
    return [pid for pid in found if is_below(pid, os.getpid(), parents)]


def is_below(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != ancestor:
        pid = parents[pid]
    return pid == ancestor


def kill_an_executor(session: SparkSession, report: dict[str, Any]) -> None:
    """Kill one executor once a task has finished while others are running."""
    tracker = session.sparkContext.statusTracker()
    pause = threading.Event()
    for _ in range(WAIT_S * 20):
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            running = executors()
            if info and info.numCompletedTasks and info.numActiveTasks and len(running) == 2:
                os.kill(running[0], signal.SIGKILL)
                report["killed"] = True
                return
        pause.wait(0.05)


def by_queue(rows: DataFrame) -> list[list[Any]]:
    """Return count, distinct offsets, and sum of checksums per queue."""
    found = rows.groupBy("broker_name", "queue_id").agg(
        f.count("*"), f.countDistinct("queue_offset"), f.sum(f.crc32("body"))
    )
    return sorted(list(row) for row in found.collect())


def read_once(session: SparkSession, given: dict[str, Any]) -> DataFrame:
    return session.read.format("rocketmq").options(**given["options"]).load()


def read_stream(session: SparkSession, given: dict[str, Any]) -> DataFrame:
    """Write a stream to files; return a summary of the files."""
    folder = Path(given["folder"])
    rows = session.readStream.format("rocketmq").options(**given["options"]).load()
    query = (
        rows.select("broker_name", "queue_id", "queue_offset", "body")
        .writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return session.read.parquet(str(folder / "out"))


def main() -> None:
    given = json.loads(sys.argv[1])
    session = session_of(given)
    report: dict[str, Any] = {"killed": False}
    if given.get("kill"):
        killer = threading.Thread(target=kill_an_executor, args=(session, report), daemon=True)
        killer.start()
    report["queues"] = by_queue((read_stream if given["stream"] else read_once)(session, given))
    sys.stdout.write(json.dumps({"report": report}) + "\n")
    sys.stdout.flush()
    session.stop()


main()
