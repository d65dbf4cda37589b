# SPDX-License-Identifier: Apache-2.0
"""The same against a broker of RocketMQ: planning, reading, filters, moments, writing."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from cometmq.peers.content import create_topic
from cometmq.peers.java import JavaCluster
from cometmq.peers.processes import wait_until
from cometmq.spark.batch import MessageReader
from cometmq.spark.errors import DataLoss, Refused
from cometmq.spark.metadata import Metadata
from cometmq.spark.offsets_json import Queue, to_text
from cometmq.spark.options import Options, parse
from cometmq.spark.schemas import table_schema
from cometmq.spark.sink import MessageWriter
from cometmq.spark.stream import MessageStreamReader
from cometmq.spark.testing import fill

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaCluster]:
    """A broker of RocketMQ 4.9.4 that creates no groups by itself."""
    folder = tmp_path_factory.mktemp("java")
    with JavaCluster(folder, {"autoCreateSubscriptionGroup": False}) as cluster:
        yield cluster


def topic_of(java: JavaCluster, name: str, *, queue_count: int = 2) -> str:
    create_topic(java.namesrv_addr, java.broker_addrs, name, queue_count=queue_count)
    return name


def filled(java: JavaCluster, topic: str, count: int, *, first: int = 0) -> list[Queue]:
    """Send messages, and wait until RocketMQ has put them into its queues, which it does later."""
    queues = fill(java.namesrv_addr, topic, count, first=first)
    with Metadata(options_of(java, topic)) as metadata:
        metadata.queues()
        wait_until(
            lambda: all(end == first + count for _, end in metadata.ends(queues).values()),
            30,
            f"messages of {topic} in their queues",
        )
    return queues


def options_of(java: JavaCluster, topic: str, **more: str) -> Options:
    return parse({"nameServer": java.namesrv_addr, "subscribe": topic, **more})


def read(java: JavaCluster, topic: str, **more: str) -> list[dict[str, Any]]:
    options = options_of(java, topic, **more)
    reader = MessageReader(options, table_schema(options))
    return [r for p in reader.partitions() for b in reader.read(p) for r in b.to_pylist()]


def test_everything_is_read_once_and_in_order(java: JavaCluster) -> None:
    topic = topic_of(java, "java_read")
    queues = filled(java, topic, 5000)

    rows = read(java, topic, minPartitions="6")

    assert len(rows) == 10_000
    for queue in queues:
        own = sorted(r["queue_offset"] for r in rows if r["queue_id"] == queue.queue_id)
        assert own == list(range(5000))
    assert {r["keys"] for r in rows} == {f"broker-a-{q}-{i}" for q in (0, 1) for i in range(5000)}


def test_tags_are_filtered(java: JavaCluster) -> None:
    topic = topic_of(java, "java_tags")
    filled(java, topic, 3000)

    rows = read(java, topic, subExpression="t0||t2")

    assert len(rows) == len({row["msg_id"] for row in rows}) == 4000
    assert {row["tags"] for row in rows} == {"t0", "t2"}


def test_every_moment_finds_the_first_message_not_older(java: JavaCluster) -> None:
    topic = topic_of(java, "java_moments", queue_count=1)
    for first in range(0, 40, 4):
        (queue,) = filled(java, topic, 4, first=first)
    stored = [int(row["store_ts"].timestamp() * 1000) for row in read(java, topic)]

    with Metadata(options_of(java, topic)) as metadata:
        ends = metadata.ends(metadata.queues())[queue]
        assert ends == (0, 40)
        for moment in {t + delta for t in stored for delta in (-1, 0, 1)} | {0, 1 << 45}:
            expected = next((i for i, t in enumerate(stored) if t >= moment), len(stored))
            assert metadata.offset_at(queue, moment, ends) == expected


def test_begin_where_a_group_is_and_batches_of_a_stream(java: JavaCluster) -> None:
    topic = topic_of(java, "java_stream")
    queues = filled(java, topic, 100)
    options = options_of(java, topic, startingOffsetsFromGroup="CID_java", commitGroup="CID_java")
    stream = MessageStreamReader(options, table_schema(options))
    stream.commit({topic: {"broker-a": {"0": 40}}})

    begin = stream.initialOffset()
    end = stream.latestOffset(begin, stream.getDefaultReadLimit())
    parts = stream.partitions(begin, end)
    count = sum(batch.num_rows for part in parts for batch in stream.read(part))
    stream.stop()

    # RocketMQ says 0 for a group that has nothing committed in a young queue.
    assert begin == {topic: {"broker-a": {"0": 40, "1": 0}}}
    assert end == {topic: {"broker-a": {"0": 100, "1": 100}}}
    assert (len(queues), count) == (2, 160)


def test_losses_and_refusals_are_told(java: JavaCluster) -> None:
    topic = topic_of(java, "java_losses")
    queues = filled(java, topic, 10)

    with pytest.raises(DataLoss, match=r"5 messages of .* offset 10 on are not there"):
        read(java, topic, endingOffsets=to_text({queues[0]: 15}))
    with pytest.raises(Refused, match=r"CID_of_nobody"):
        read(java, topic, group="CID_of_nobody")


def test_rows_become_messages(java: JavaCluster) -> None:
    topic = topic_of(java, "java_write")
    schema = StructType([StructField("body", BinaryType()), StructField("tags", StringType())])
    writer = MessageWriter(
        parse({"nameServer": java.namesrv_addr, "topic": topic}), schema, overwrite=False
    )
    rows = [{"body": b"%05d" % number, "tags": f"g{number % 2}"} for number in range(3000)]

    writer.commit([writer.write(iter([pa.RecordBatch.from_pylist(rows)]))])

    wait_until(lambda: len(read(java, topic)) == 3000, 30, "messages in their queues")
    found = read(java, topic)
    assert sorted(row["body"] for row in found) == [row["body"] for row in rows]
    assert all(row["tags"] == f"g{int(row['body']) % 2}" for row in found)
    assert len({row["msg_id"] for row in found}) == 3000
