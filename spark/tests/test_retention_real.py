# SPDX-License-Identifier: Apache-2.0
"""Messages that a broker deletes during a query are reported as lost, never silently skipped.

The test predicts which messages will be deleted: a broker keeps only the last file of its
commit log, and each row has the commit log offset of its message.
"""

import re
import threading
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from cometmq.peers.cluster import Cluster
from cometmq.peers.comet import CometCluster
from cometmq.peers.content import create_topic
from cometmq.peers.java import PatientJavaCluster
from cometmq.peers.processes import wait_until
from cometmq.peers.wire import call
from cometmq.spark.cluster.metadata import Metadata
from cometmq.spark.errors import DataLoss
from cometmq.spark.options.definitions import Options, parse
from cometmq.spark.options.offsets_json import Queue, to_json
from cometmq.spark.read.batch import MessageReader
from cometmq.spark.read.planning import QueueRange
from cometmq.spark.read.stream import MessageStreamReader
from cometmq.spark.schemas import table_schema
from cometmq.testing.spark import fill

UPDATE_BROKER_CONFIG = 25
COUNT = 12_000
FILE_BYTES = 1 << 20
DELETED_S = 120
"""RocketMQ first checks for old files a minute after its start."""
DELETES: dict[type[Cluster], tuple[str, str]] = {
    # CometMQ keeps messages for an hour, unless it considers its disk full.
    CometCluster: ("cleanFileForciblyEnable=false", "cleanFileForciblyEnable=true"),
    PatientJavaCluster: ("fileReservedTime=72", "fileReservedTime=0"),
}
"""With the first setting, the broker deletes nothing; with the second, everything it may."""
RUN_TIMEOUT_S = 120
TASK = 1000
"""Messages per task or batch."""


@pytest.fixture(scope="module")
def forgetful(maker: type[Cluster], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker that deletes at any hour, on request."""
    conf = {
        "mappedFileSizeCommitLog": FILE_BYTES,
        "mappedFileSizeConsumeQueue": 20_000,
        "deleteWhen": ";".join(f"{hour:02d}" for hour in range(24)),
        "deletePhysicFilesInterval": 1,
        "deleteConsumeQueueFilesInterval": 1,
        "cleanResourceInterval": 200,
        "diskSpaceCleanForciblyRatio": 1,
        "cleanFileForciblyEnable": False,
    }
    with maker(tmp_path_factory.mktemp("forgetful"), conf) as cluster:
        yield cluster


class Forgotten:
    """A topic whose older messages can be deleted."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.cluster = cluster
        self.topic = topic
        self.queue = Queue(topic, "broker-a", 0)
        create_topic(cluster.namesrv_addr, cluster.broker_addrs, topic, queue_count=1)
        fill(cluster.namesrv_addr, topic, COUNT)
        self.first_left = self._first_in_last_file()

    def options(self, **more: str) -> Options:
        return parse({"nameServer": self.cluster.namesrv_addr, "subscribe": self.topic, **more})

    def forget(self) -> None:
        """Make the broker delete every file that it may delete."""
        self._set(may_delete=True)
        try:
            wait_until(lambda: self.first() >= self.first_left, DELETED_S, "messages deleted")
        finally:
            self._set(may_delete=False)
        assert self.first() == self.first_left

    def first(self) -> int:
        with Metadata(self.options()) as metadata:
            metadata.queues()
            return metadata.ends([self.queue])[self.queue][0]

    def loss(self, start: int, end: int) -> str:
        """Return the start of the error message for a read of [start, end)."""
        lost = min(end, self.first_left) - start
        return f"{lost} messages of {self.queue} starting at offset {start} "

    def _set(self, *, may_delete: bool) -> None:
        body = DELETES[type(self.cluster)][may_delete].encode()
        assert call(self.cluster.broker_addrs[0], UPDATE_BROKER_CONFIG, {}, body).code == 0

    def _first_in_last_file(self) -> int:
        reader = reader_of(self.options())
        places = [
            place
            for part in reader.partitions()
            for batch in reader.read(part)
            for place in batch.column("commitlog_offset").to_pylist()
        ]
        last_file = places[-1] - places[-1] % FILE_BYTES
        return next(offset for offset, place in enumerate(places) if place >= last_file)


@pytest.fixture
def forgotten(forgetful: Cluster, request: pytest.FixtureRequest) -> Forgotten:
    return Forgotten(forgetful, re.sub(r"\W", "_", request.node.name))


def reader_of(options: Options) -> MessageReader:
    return MessageReader(options, table_schema(options))


def stream_of(options: Options) -> MessageStreamReader:
    return MessageStreamReader(options, table_schema(options))


def rows_of(reader: MessageReader | MessageStreamReader, parts: list[QueueRange]) -> list[int]:
    return [
        offset
        for part in parts
        for batch in reader.read(part)
        for offset in batch.column("queue_offset").to_pylist()
    ]


def test_batch_planned_before_the_deletion_fails(forgotten: Forgotten) -> None:
    reader = reader_of(forgotten.options(failOnDataLoss="false"))  # applies to streams only
    parts = reader.partitions()
    forgotten.forget()

    with pytest.raises(DataLoss, match=rf"^{forgotten.loss(0, COUNT)}"):
        rows_of(reader, parts)
    left = list(range(forgotten.first_left, COUNT))
    assert rows_of(reader, reader.partitions()) == left  # a new plan reads the remaining messages


def test_stream_fails_or_continues_with_the_rest(forgotten: Forgotten) -> None:
    strict = stream_of(forgotten.options(startingOffsets="earliest"))
    lenient = stream_of(forgotten.options(startingOffsets="earliest", failOnDataLoss="false"))
    begin, end = to_json({forgotten.queue: 0}), to_json({forgotten.queue: COUNT})
    planned = strict.partitions(begin, end)
    planned_leniently = lenient.partitions(begin, end)
    forgotten.forget()

    with pytest.raises(DataLoss, match=rf"^{forgotten.loss(0, COUNT)}"):
        rows_of(strict, planned)  # in a task planned before the deletion
    with pytest.raises(DataLoss, match=rf"^{forgotten.loss(0, COUNT)}"):
        strict.partitions(begin, end)  # before any task starts
    left = list(range(forgotten.first_left, COUNT))
    assert rows_of(lenient, planned_leniently) == left
    assert rows_of(lenient, lenient.partitions(begin, end)) == left
    strict.stop()
    lenient.stop()


def run_stream(
    spark: SparkSession, forgotten: Forgotten, folder: Path, **options: str
) -> list[list[int]]:
    """Read as a stream, delete old messages after the first batch; return the rows per batch."""
    batches: list[list[int]] = []

    def take(rows: DataFrame, number: int) -> None:
        batches.append(sorted(row.queue_offset for row in rows.select("queue_offset").collect()))
        if number == 0:
            forgotten.forget()

    query = (
        spark.readStream.format("rocketmq")
        .options(nameServer=forgotten.cluster.namesrv_addr, subscribe=forgotten.topic)
        .options(startingOffsets="earliest", maxOffsetsPerTrigger=3 * TASK, **options)
        .load()
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(RUN_TIMEOUT_S + DELETED_S)
    finally:
        query.stop()
    return batches


def test_running_stream_fails_or_continues_without_lost_messages(
    spark: SparkSession, forgotten: Forgotten, tmp_path: Path
) -> None:
    with pytest.raises(StreamingQueryException, match=forgotten.loss(3 * TASK, 6 * TASK)):
        run_stream(spark, forgotten, tmp_path)

    batches = run_stream(spark, forgotten, tmp_path, failOnDataLoss="false")

    assert list(chain(*batches)) == list(range(forgotten.first_left, COUNT))


def gate(folder: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Make each task read all of its range, signal this with a file, and end when `go` exists."""

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        rows = list(batches)
        context = TaskContext.get()
        Path(folder, f"task-{context.partitionId()}").touch()
        pause = threading.Event()
        while not Path(folder, "go").exists():
            pause.wait(0.05)
        yield from rows

    return step


def test_running_batch_fails(spark: SparkSession, forgotten: Forgotten, tmp_path: Path) -> None:
    """Two tasks have read their ranges when messages are deleted; the next two are too late."""
    rows = (
        spark.read.format("rocketmq")
        .options(nameServer=forgotten.cluster.namesrv_addr, subscribe=forgotten.topic)
        .options(maxRecordsPerPartition=TASK)
        .load()
        .select("queue_offset")
    )
    gated = rows.mapInArrow(gate(str(tmp_path)), rows.schema)
    failures: list[PySparkException] = []

    def run() -> None:
        try:
            gated.collect()
        except PySparkException as failure:
            failures.append(failure)

    query = threading.Thread(target=run)
    query.start()
    try:
        wait_until(lambda: len(list(tmp_path.glob("task-*"))) == 2, RUN_TIMEOUT_S, "two tasks")
        forgotten.forget()
    finally:
        (tmp_path / "go").touch()
        query.join(RUN_TIMEOUT_S)

    assert {path.name for path in tmp_path.glob("task-*")} == {"task-0", "task-1"}
    losses: list[Any] = [forgotten.loss(n * TASK, (n + 1) * TASK) for n in (2, 3)]
    assert any(loss in str(failures[0]) for loss in losses)
