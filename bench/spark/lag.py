# SPDX-License-Identifier: Apache-2.0
"""Time a report over one day of 10,000 series: 14.4 million progress rows.

Usage: `python bench/spark/lag.py [SERIES]`; `lag_large.py` uses 115 million rows. The history is
generated from a fixed seed and compacted, as in production. Starting the session is not timed.
"""

import json
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tree import Tree, cpu_seconds

from cometmq.spark.lag.analysis.report import build
from cometmq.spark.lag.history.snapshots import History
from cometmq.spark.lag.history.upkeep import write_hour
from cometmq.spark.lag.job import session
from cometmq.spark.lag.rules import Rules
from cometmq.spark.tables.arrow import arrow_schema
from cometmq.spark.tables.columns import TABLES

SERIES = 10_000
QUEUES_OF_TOPIC = 8
TOPICS = 1_000
BEGIN = datetime(2026, 6, 1, tzinfo=UTC)
HOURS = 24
MINUTES = 60
TARGETS_S = {10_000: 25.0, 80_000: 360.0}
"""Limits by number of series, for a day of 14.4 and 115.2 million rows."""
PEAK_GIB_MAX = 6.0
DISK_BYTES_PER_SERIES = 100_000
"""Disk space for the day's files and Spark's temporary files, with room to spare."""


class Cluster:
    """Queues that fill at constant rates, and groups that read at other rates."""

    def __init__(self, series: int) -> None:
        random = np.random.default_rng(1)
        self.group = np.arange(series) // QUEUES_OF_TOPIC
        self.topic = self.group % TOPICS
        self.queue = np.arange(series) % QUEUES_OF_TOPIC
        self.rate = random.choice([0.5, 5, 50], TOPICS * QUEUES_OF_TOPIC)
        self.speed = random.choice([1.0, 1.0, 1.0, 1.0, 0.95, 0.0], series)
        self.stopped_s = np.where(self.speed == 0, random.integers(0, HOURS * 3600, series), 10**9)
        self.online = random.random(series // QUEUES_OF_TOPIC + 1) < 0.95

    def offsets(self, hour: datetime) -> pa.Table:
        """Generate the ends of all queues at each minute of an hour."""
        count = TOPICS * QUEUES_OF_TOPIC
        index, minute = _grid(count, MINUTES)
        seconds = (hour - BEGIN).total_seconds() + minute * 60
        size = len(index)
        return _table("offsets", size, {
            "snapshot_id": _id(hour) + minute,
            "cluster": _same("bench", size),
            "broker_name": _same("broker-a", size),
            "topic": _named("topic-", index // QUEUES_OF_TOPIC),
            "queue_id": index % QUEUES_OF_TOPIC,
            "min_offset": np.zeros(size),
            "max_offset": (1000 + self.rate[index] * seconds).astype(np.int64),
            "read_ts": _micros(hour, minute, 2),
            "perm": np.full(size, 6),
            "topic_kind": _same("NORMAL", size),
        })  # fmt: skip

    def progress(self, hour: datetime) -> pa.Table:
        """Generate the progress of all groups at each minute of an hour."""
        index, minute = _grid(len(self.group), MINUTES)
        seconds = (hour - BEGIN).total_seconds() + minute * 60
        rate = self.rate[self.topic[index] * QUEUES_OF_TOPIC + self.queue[index]]
        end = (1000 + rate * seconds).astype(np.int64)
        speed = np.where(self.speed[index] == 0, 1.0, self.speed[index])
        read = np.minimum(seconds, self.stopped_s[index]) * rate * speed
        size = len(index)
        online = self.online[self.group[index]]
        return _table("progress", size, {
            "snapshot_id": _id(hour) + minute,
            "cluster": _same("bench", size),
            "group": _named("group-", self.group[index]),
            "broker_name": _same("broker-a", size),
            "topic": _named("topic-", self.topic[index]),
            "queue_id": self.queue[index],
            "consumer_offset": np.minimum(end, (1000 + read).astype(np.int64)),
            "min_offset": np.zeros(size),
            "max_offset": end,
            "read_ts": _micros(hour, minute, 0),
            "max_read_ts": _micros(hour, minute, 2),
            "online": online,
            "filtered": np.zeros(size, dtype=bool),
            "schema_version": np.ones(size),
        })  # fmt: skip

    def brokers(self, hour: datetime) -> pa.Table:
        minute = np.arange(MINUTES)
        return _table("brokers", MINUTES, {
            "snapshot_id": _id(hour) + minute,
            "cluster": _same("bench", MINUTES),
            "broker_name": _same("broker-a", MINUTES),
            "broker_id": np.zeros(MINUTES),
            "addr": _same("127.0.0.1:10911", MINUTES),
            "reachable": np.ones(MINUTES, dtype=bool),
            "file_reserved_hours": np.full(MINUTES, 72),
            "delete_when": _same("04", MINUTES),
            "disk_max_used_ratio": np.full(MINUTES, 75),
            "commitlog_disk_ratio": 0.5 + minute / 1e4,
            "read_ts": _micros(hour, minute, 0),
        })  # fmt: skip


def _grid(rows: int, minutes: int) -> tuple[np.ndarray, np.ndarray]:
    return np.repeat(np.arange(rows), minutes), np.tile(np.arange(minutes), rows)


def _id(hour: datetime) -> int:
    return int(hour.timestamp()) // 60


def _micros(hour: datetime, minute: np.ndarray, late_s: int) -> np.ndarray:
    return (_id(hour) * 60 + minute * 60 + late_s) * 1_000_000


def _same(text: str, size: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(np.zeros(size, dtype=np.int32), [text]).cast(pa.string())


def _named(prefix: str, numbers: np.ndarray) -> pa.Array:
    names = [f"{prefix}{number:06d}" for number in range(int(numbers.max()) + 1)]
    return pa.DictionaryArray.from_arrays(numbers.astype(np.int32), names).cast(pa.string())


def _table(name: str, size: int, columns: dict[str, object]) -> pa.Table:
    schema = arrow_schema(TABLES[name])
    arrays = []
    for field in schema:
        values = columns.get(field.name)
        if isinstance(values, np.ndarray):
            values = pa.array(values).cast(pa.int64() if pa.types.is_timestamp(field.type)
                                           else field.type).cast(field.type)  # fmt: skip
        arrays.append(pa.nulls(size, field.type) if values is None else values)
    return pa.Table.from_arrays(arrays, schema=schema)


def generate(root: Path, series: int) -> int:
    """Write the day's history; return the number of progress rows."""
    cluster, rows = Cluster(series), 0
    history = History(root)
    for number in range(HOURS):
        hour = BEGIN + timedelta(hours=number)
        progress = cluster.progress(hour)
        tables = {
            "offsets": cluster.offsets(hour),
            "progress": progress,
            "brokers": cluster.brokers(hour),
            "groups": arrow_schema(TABLES["groups"]).empty_table(),
        }
        write_hour(history, hour, [], tables)
        rows += progress.num_rows
    return rows


def measure(root: Path, rounds: int) -> dict[str, Any]:
    """Build the report `rounds` times; the first round includes loading and compilation."""
    spark = session("local[2]", name="bench")
    seconds, cpu, statuses = [], [], {}
    with Tree() as tree:
        for _ in range(rounds):
            begin, begin_cpu = time.perf_counter(), cpu_seconds()
            statuses = build(spark, History(root), Rules(), _say).header.status_counts
            seconds.append(time.perf_counter() - begin)
            cpu.append(cpu_seconds() - begin_cpu)
            _say(f"round: {seconds[-1]:.1f} s, {cpu[-1]:.1f} s of processor time")
    spark.stop()
    return {
        "seconds": round(statistics.median(seconds), 1),
        "all": [round(it, 1) for it in seconds],
        "cpu_seconds": [round(it, 1) for it in cpu],
        "peak_gib": round(tree.peak_bytes / 2**30, 2),
        "statuses": statuses,
    }


def main(series: int) -> None:
    """Print the results as JSON: the median of three rounds, or one round for a large history."""
    with tempfile.TemporaryDirectory(prefix="cometmq-bench-") as name:
        if shutil.disk_usage(name).free < series * DISK_BYTES_PER_SERIES:
            sys.exit(f"{name}: less than {series * DISK_BYTES_PER_SERIES / 1e9:.0f} GB are free")
        root = Path(name)
        begin = time.perf_counter()
        rows = generate(root, series)
        generated_s = time.perf_counter() - begin
        found = measure(root, 3 if series <= SERIES else 1)
    target_s = TARGETS_S.get(series, math.inf)
    result = {
        "rows": rows,
        "generated_s": round(generated_s, 1),
        **found,
        "load_average": os.getloadavg()[0],
        "reached": found["seconds"] <= target_s and found["peak_gib"] <= PEAK_GIB_MAX,
    }
    print(json.dumps(result, indent=2))


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else SERIES)
