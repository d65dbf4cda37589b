# SPDX-License-Identifier: Apache-2.0
"""The job `report`: which snapshot it reports on."""

from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from cometmq.spark.collect.snapshot import WRITE_ORDER, snapshot_path
from cometmq.spark.lag import job
from cometmq.spark.lag.rules import Rules

from .random_histories import batch, moment


def _take_another(root: Path, last_id: int) -> None:
    for name in WRITE_ORDER:
        table = pq.read_table(snapshot_path(root, name, last_id), partitioning=None)
        at = table.schema.get_field_index("snapshot_id")
        ids = pa.array([last_id + 1] * len(table), table.schema.field(at).type)
        table = table.set_column(at, table.schema.field(at), ids)
        pq.write_table(table, snapshot_path(root, name, last_id + 1))


def test_the_report_is_of_the_snapshot_that_was_announced(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "_spark", lambda _: nullcontext(spark))
    batch(tmp_path, seed=1, end=moment("2026-05-01T10:50"), minutes=10, first=0, count=1)
    announced = []

    def say(line: str) -> None:
        head, _, number = line.partition(": ")
        if head == "newest snapshot":
            announced.append(int(number))
            _take_another(tmp_path, int(number))

    header = job.run_report(tmp_path, Rules(), job.Outputs(), where=job.SparkOptions(), say=say)

    assert announced == [header.snapshot_id]
