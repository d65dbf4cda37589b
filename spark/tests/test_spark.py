# SPDX-License-Identifier: Apache-2.0
"""Runs queries as users write them, in a local Spark session against a real broker."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from cometmq.peers.cluster import Cluster
from cometmq.peers.wire import call
from cometmq.testing.spark import fill, wait_for_messages

DELETE_TOPIC = 215
RUN_TIMEOUT_S = 120


@pytest.fixture
def load(spark: SparkSession, cluster: Cluster) -> Callable[..., DataFrame]:

    def load_(**options: Any) -> DataFrame:
        reader = spark.read.format("rocketmq").option("nameServer", cluster.namesrv_addr)
        return reader.options(**options).load()

    return load_


class Streams:
    """Runs queries that end once they have read all available messages."""

    def __init__(self, spark: SparkSession, name_server: str, folder: Path) -> None:
        self.spark = spark
        self.name_server = name_server
        self.folder = folder

    def run(self, topic: str, **options: Any) -> tuple[list[int], dict[str, Any]]:
        """Append to the table `out` of this folder; return rows per batch and last offsets."""
        source = (
            self.spark.readStream.format("rocketmq")
            .option("nameServer", self.name_server)
            .options(subscribe=topic, startingOffsets="earliest", **options)
            .load()
        )
        query = (
            source.writeStream.format("parquet")
            .option("path", str(self.folder / "out"))
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        return self.finish(query)

    def finish(self, query: StreamingQuery) -> tuple[list[int], dict[str, Any]]:
        assert query.awaitTermination(RUN_TIMEOUT_S)
        progress = [json.loads(one.json) for one in query.recentProgress]
        rows = [one["numInputRows"] for one in progress if one["numInputRows"]]
        last = progress[-1]["sources"][0]["endOffset"] if progress else {}
        return rows, json.loads(last) if isinstance(last, str) else last

    def out(self) -> DataFrame:
        return self.spark.read.parquet(str(self.folder / "out"))


@pytest.fixture
def streams(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> Streams:
    return Streams(spark, cluster.namesrv_addr, tmp_path)


def checksum(rows: DataFrame) -> list[tuple[Any, ...]]:
    """Return the count and the sum of hashes per queue, to compare messages."""
    by_queue = rows.groupBy("broker_name", "queue_id").agg(
        f.count("*"), f.countDistinct("queue_offset"), f.sum(f.crc32("body"))
    )
    return sorted(tuple(row) for row in by_queue.collect())


def test_batch_has_every_message_with_its_types(
    load: Callable[..., DataFrame], cluster: Cluster, topic: str
) -> None:
    fill(cluster.namesrv_addr, topic, 500)

    rows = load(subscribe=topic, minPartitions=8)

    assert rows.count() == 2000
    assert [row[2:4] for row in checksum(rows)] == [(500, 500)] * 4
    first = rows.where("broker_name = 'broker-a' and queue_id = 1 and queue_offset = 7").first()
    assert first.keys == "broker-a-1-7"
    assert first.properties["TAGS"] == "t1"
    assert bytes(first.body).startswith(b"broker-a-1-7:")


def test_format_is_found_without_registration(
    spark: SparkSession, cluster: Cluster, topic: str
) -> None:
    fill(cluster.namesrv_addr, topic, 3)

    reader = spark.newSession().read.format("rocketmq")

    assert reader.options(nameServer=cluster.namesrv_addr, subscribe=topic).load().count() == 12


def test_filters_of_spark_are_right_in_every_order(
    load: Callable[..., DataFrame], cluster: Cluster, topic: str
) -> None:
    """Spark would push filters down if the source allowed it, and return wrong rows."""
    fill(cluster.namesrv_addr, topic, 100)
    rows = load(subscribe=topic)

    assert rows.where("queue_id = 1").count() == 200
    assert rows.count() == 400
    both = rows.where("queue_id = 0").union(rows.where("queue_id = 1")).groupBy("queue_id").count()
    assert sorted(map(tuple, both.collect())) == [(0, 200), (1, 200)]


def test_dataframe_is_a_snapshot(
    load: Callable[..., DataFrame], cluster: Cluster, topic: str
) -> None:
    fill(cluster.namesrv_addr, topic, 10)
    before = load(subscribe=topic)
    assert before.count() == 40
    fill(cluster.namesrv_addr, topic, 10, first=10)

    assert before.count() == 40
    assert load(subscribe=topic).count() == 80


_WITHOUT_VARIABLES = """
import sys
from pyspark.sql import SparkSession
from cometmq.spark.source import RocketMQDataSource

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
spark.dataSource.register(RocketMQDataSource)
rows = spark.read.format("rocketmq").options(nameServer=sys.argv[1], subscribe=sys.argv[2]).load()
print(rows.count())
spark.stop()
"""


def test_workers_run_the_interpreter_of_the_driver(
    cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first `python3` of PATH lacks the package, as if the environment was not activated."""
    fill(cluster.namesrv_addr, topic, 5)
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\necho 'No module named pyspark' >&2\nexit 1\n")
    python.chmod(0o755)
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(python.parent), prepend=os.pathsep)
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_VARIABLES, cluster.namesrv_addr, topic],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["20"], done.stderr[-2000:]


def test_selected_columns_and_an_empty_topic(
    spark: SparkSession, cluster: Cluster, topic: str
) -> None:
    reader = spark.read.format("rocketmq").schema("body binary, queue_offset bigint")
    options = {"nameServer": cluster.namesrv_addr, "subscribe": topic}
    assert reader.options(**options).load().collect() == []
    fill(cluster.namesrv_addr, topic, 2)

    rows = reader.options(**options).load()

    assert rows.columns == ["body", "queue_offset"]
    assert sorted(row.queue_offset for row in rows.collect()) == [0] * 4 + [1] * 4


def test_stream_reads_available_messages_and_resumes(
    streams: Streams, cluster: Cluster, topic: str
) -> None:
    fill(cluster.namesrv_addr, topic, 100)
    rows, offsets = streams.run(topic)
    assert sum(rows) == 400
    assert offsets[topic]["broker-a"] == {"0": 100, "1": 100}

    assert streams.run(topic)[0] == []

    fill(cluster.namesrv_addr, topic, 50, first=100)
    assert sum(streams.run(topic)[0]) == 200
    assert [row[2:4] for row in checksum(streams.out())] == [(150, 150)] * 4


def test_limited_batches(streams: Streams, cluster: Cluster, topic: str) -> None:
    fill(cluster.namesrv_addr, topic, 500)

    rows, _ = streams.run(topic, maxOffsetsPerTrigger="700")

    assert rows == [700, 700, 600]
    assert streams.out().count() == 2000


def test_recreated_topic_is_a_loss_unless_allowed(
    streams: Streams, cluster: Cluster, topic: str, make_topic: Callable[[str], str]
) -> None:
    fill(cluster.namesrv_addr, topic, 100)
    streams.run(topic)
    for address in [*cluster.broker_addrs, cluster.namesrv_addr]:
        code = 216 if address == cluster.namesrv_addr else DELETE_TOPIC
        assert call(address, code, {"topic": topic}).code == 0
    make_topic(topic)
    fill(cluster.namesrv_addr, topic, 20)

    with pytest.raises(StreamingQueryException, match=r"its topic was recreated"):
        streams.run(topic)
    rows, _ = streams.run(topic, failOnDataLoss="false")
    assert sum(rows) == 80


def test_stream_writes_to_a_topic_and_repeats_keep_their_ids(
    spark: SparkSession,
    streams: Streams,
    cluster: Cluster,
    load: Callable[..., DataFrame],
    make_topic: Callable[[str], str],
) -> None:
    source, target = make_topic("copied_from"), make_topic("copied_to")
    fill(cluster.namesrv_addr, source, 50)

    def copy() -> None:
        rows = (
            spark.readStream.format("rocketmq")
            .options(nameServer=cluster.namesrv_addr, subscribe=source, startingOffsets="earliest")
            .load()
            .select("body", "tags", f.split("keys", " ").alias("keys"))
        )
        query = (
            rows.writeStream.format("rocketmq")
            .options(nameServer=cluster.namesrv_addr, topic=target)
            .option("checkpointLocation", str(streams.folder / "copy"))
            .trigger(availableNow=True)
            .start()
        )
        streams.finish(query)

    copy()
    wait_for_messages(cluster.namesrv_addr, target, 200)
    written = load(subscribe=target)
    assert written.count() == 200
    assert written.select("msg_id").distinct().count() == 200
    expected = {row.keys for row in load(subscribe=source).select("keys").collect()}
    assert {row.keys for row in written.select("keys").collect()} == expected

    # Spark forgets that the batch was done, as after a crash between send and commit.
    for commit in (streams.folder / "copy" / "commits").iterdir():
        commit.unlink()
    copy()
    wait_for_messages(cluster.namesrv_addr, target, 400)
    again = load(subscribe=target)
    assert again.count() == 400
    assert again.select("msg_id").distinct().count() == 200


def test_batch_is_written_and_other_modes_are_rejected(
    spark: SparkSession, load: Callable[..., DataFrame], cluster: Cluster, topic: str
) -> None:
    rows = spark.range(100).select(f.col("id").cast("string").alias("body"))
    writer = rows.write.format("rocketmq").options(nameServer=cluster.namesrv_addr, topic=topic)

    writer.mode("append").save()
    wait_for_messages(cluster.namesrv_addr, topic, 100)

    found = load(subscribe=topic).select(f.col("body").cast("string").alias("body"))
    assert {row.body for row in found.collect()} == {str(i) for i in range(100)}
    with pytest.raises(PySparkException, match="can only be appended"):
        writer.mode("overwrite").save()


def test_commits_of_a_query_are_visible_to_tools(
    streams: Streams, cluster: Cluster, topic: str
) -> None:
    """The last batch of a run is committed, too, and the group appears in lists."""
    group = "CID_spark_query"
    for first in (0, 20):
        fill(cluster.namesrv_addr, topic, 20, first=first)
        streams.run(topic, commitGroup=group, maxOffsetsPerTrigger="30")
        for address in cluster.broker_addrs:
            for queue_id in range(2):
                fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}
                answer = call(address, 14, fields)
                assert answer.code == 0
                assert int(answer.fields["offset"]) == first + 20

    listed = _cometmq(cluster, "group", "list")
    assert group in listed
    fill(cluster.namesrv_addr, topic, 3, first=40)
    lag = json.loads(_cometmq(cluster, "lag", group, "--json"))
    assert lag["lag"] == 12, lag


def _cometmq(cluster: Cluster, *words: str) -> str:
    program = Path(sys.executable).with_name("cometmq")
    done = subprocess.run(
        [program, *words, "--namesrv", cluster.namesrv_addr],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
