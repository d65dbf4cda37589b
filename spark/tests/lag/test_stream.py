# SPDX-License-Identifier: Apache-2.0
"""The streaming job computes windows and handles its batches."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from cometmq.peers.comet import CometCluster
from cometmq.spark.lag.rules import Rules
from cometmq.spark.lag.stream.hysteresis import Change
from cometmq.spark.lag.stream.windows import FOLDER, Sink, line_of, windows
from cometmq.spark.options.definitions import parse
from cometmq.spark.read.batch import MessageReader
from cometmq.spark.schemas import table_schema
from cometmq.spark.tables.arrow import table_of
from cometmq.spark.tables.columns import PROGRESS

MINUTES = 10
START_MINUTE = 30_000_000
GROUPS: dict[str, tuple[bool, Any]] = {
    # by group: online, and its offset at minute i in a queue that ends at 1000 + 100 i
    "fine": (True, lambda i: 1000 + 100 * i),
    "stopped": (False, lambda _: 500),
    "stalled": (True, lambda _: 500),
    "slow": (True, lambda i: 500 + 80 * i),
    "catching-up": (True, lambda i: 500 + 140 * i),
    "rewound": (True, lambda i: 900 + 100 * i - (800 if i > 6 else 0)),
    "losing": (True, lambda _: 100),
    "never": (True, lambda _: None),
}


def _progress(minute: int) -> list[tuple[Any, ...]]:
    rows = []
    for group, (online, offset) in GROUPS.items():
        values = {
            "snapshot_id": START_MINUTE + minute,
            "cluster": "c",
            "group": group,
            "broker_name": "b",
            "topic": "T",
            "queue_id": 0,
            "consumer_offset": offset(minute),
            "min_offset": 150 + minute if group == "losing" else 0,
            "max_offset": 1000 + 100 * minute,
            "read_ts": (START_MINUTE + minute) * 60_000_000 + 1_000_000,
            "max_read_ts": (START_MINUTE + minute) * 60_000_000 + 2_000_000,
            "online": online,
            "message_model": "CLUSTERING" if online else None,
            "filtered": False,
            "schema_version": 1,
        }
        rows.append(tuple(values.get(column.name) for column in PROGRESS))
    return rows


def _table(spark: SparkSession, first: int, last: int) -> DataFrame:
    rows = [row for minute in range(first, last + 1) for row in _progress(minute)]
    return spark.createDataFrame(table_of(PROGRESS, rows))


def test_full_windows_have_the_status_of_their_snapshots(
    spark: SparkSession, tmp_path: Path
) -> None:
    told: list[Change] = []
    sink = Sink(tmp_path, told.append)
    for number in range(2):
        first, last = number, MINUTES - 1 + number
        sink(windows(_table(spark, first, last), Rules()), number)

    (path,) = tmp_path.glob(f"{FOLDER}/batch-000000001.parquet")
    rows = pq.read_table(path).to_pylist()
    assert len(rows) == len(GROUPS)
    assert {row["group"]: row["status"] for row in rows} == {
        "fine": "OK",
        "stopped": "STOPPED",
        "stalled": "STALLED",
        "slow": "SLOW",
        "catching-up": "CATCHING_UP",
        "rewound": "REWIND",
        "losing": "LOST",
        "never": "NEVER_COMMITTED",
    }
    assert {change.series[1] for change in told} == set(GROUPS) - {"fine"}


def test_short_window_is_unknown(spark: SparkSession, tmp_path: Path) -> None:
    Sink(tmp_path, lambda _: None)(windows(_table(spark, 0, 3), Rules()), 0)
    (path,) = tmp_path.glob(f"{FOLDER}/*.parquet")
    assert set(pq.read_table(path)["status"].to_pylist()) == {"UNKNOWN"}


def test_changes_are_sent_as_messages(
    spark: SparkSession, cluster: CometCluster, topic: str, tmp_path: Path
) -> None:
    told: list[Change] = []
    where = {"nameServer": cluster.namesrv_addr}
    sink = Sink(tmp_path, told.append, {**where, "topic": topic})
    for number in range(2):
        sink(windows(_table(spark, number, MINUTES - 1 + number), Rules()), number)

    options = parse({**where, "subscribe": topic})
    reader = MessageReader(options, table_schema(options))
    rows = [r for p in reader.partitions() for b in reader.read(p) for r in b.to_pylist()]
    assert {(r["keys"], r["tags"], r["body"].decode()) for r in rows} == {
        (it.series[1], it.status, line_of(it)) for it in told
    }
    assert len(rows) == len(told) == len(GROUPS) - 1
