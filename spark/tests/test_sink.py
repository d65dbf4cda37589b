# SPDX-License-Identifier: Apache-2.0
"""Rows are sent to a real broker as messages: columns, ids and queues."""

import random
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from cometmq.peers.cluster import Cluster
from cometmq.remoting.message.flags import java_hash
from cometmq.spark.errors import (
    OptionError,
    SchemaError,
    SendIncomplete,
    SourceError,
    TopicMissing,
)
from cometmq.spark.options.definitions import parse
from cometmq.spark.read.batch import MessageReader
from cometmq.spark.schemas import table_schema
from cometmq.spark.write.rows import RowIds
from cometmq.spark.write.sink import MessageWriter, Written
from cometmq.testing.spark import wait_for_messages

BODY = spark.StructType([spark.StructField("body", spark.BinaryType())])
FULL = spark.StructType(
    [
        spark.StructField("body", spark.StringType()),
        spark.StructField("tags", spark.StringType()),
        spark.StructField("keys", spark.ArrayType(spark.StringType())),
        spark.StructField("properties", spark.MapType(spark.StringType(), spark.StringType())),
        spark.StructField("sharding_key", spark.StringType()),
        spark.StructField("born_ts", spark.TimestampType()),
    ]
)


def writer_of(
    cluster: Cluster, topic: str, schema: spark.StructType = BODY, **options: str
) -> MessageWriter:
    given = {"nameServer": cluster.namesrv_addr, "topic": topic, **options}
    return MessageWriter(parse(given), schema, overwrite=False)


def bodies(count: int, size: int = 20) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"body": [b"%06d" % i + bytes(size) for i in range(count)]})


def read(cluster: Cluster, topic: str, count: int) -> list[dict[str, Any]]:
    """Wait until the queues hold `count` messages, then read: RocketMQ answers before dispatching
    them.
    """
    wait_for_messages(cluster.namesrv_addr, topic, count)
    parsed = parse({"nameServer": cluster.namesrv_addr, "subscribe": topic})
    reader = MessageReader(parsed, table_schema(parsed))
    return [r for p in reader.partitions() for b in reader.read(p) for r in b.to_pylist()]


@pytest.mark.parametrize("batch_bytes", ["0", "5000", "1048576"])
def test_every_row_is_stored_once(cluster: Cluster, topic: str, batch_bytes: str) -> None:
    writer = writer_of(cluster, topic, batchBytes=batch_bytes, maxInFlight="8")

    written = writer.write(iter([bodies(700), bodies(300)]))
    writer.commit([written])

    rows = read(cluster, topic, 1000)
    assert written == Written(1000, 1000)
    assert len(rows) == 1000
    assert sorted(row["body"][:6] for row in rows) == sorted(
        b"%06d" % i for count in (700, 300) for i in range(count)
    )
    if batch_bytes != "1048576":
        assert len({(row["broker_name"], row["queue_id"]) for row in rows}) == 4


def test_repeated_task_has_the_same_ids_and_other_tasks_differ() -> None:
    ids = [RowIds("query", 5, 0).of(number) for number in range(1000)]

    assert ids == [RowIds("query", 5, 0).of(number) for number in range(1000)]
    others = [RowIds("query", 6, 0).of(0), RowIds("query", 5, 1).of(0), RowIds("other", 5, 0).of(0)]
    assert len({*ids, *others}) == 1003
    assert all(len(one) == 32 and one[20:28] == "00000000" for one in ids)


def test_without_dedup_ids_each_attempt_has_new_ids(cluster: Cluster, topic: str) -> None:
    writer = writer_of(cluster, topic, dedupId="false")
    for _ in range(2):
        writer.write(iter([bodies(5)]))

    assert len({row["msg_id"] for row in read(cluster, topic, 10)}) == 10


def test_columns_become_fields_of_messages(cluster: Cluster, topic: str) -> None:
    born = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    row = {
        "body": "text é",
        "tags": "red",
        "keys": ["a", "b"],
        "properties": [("color", "blue"), ("UNIQ_KEY", "mine"), ("none", None)],
        "sharding_key": "s",
        "born_ts": born,
    }
    types = pa.schema(
        [
            pa.field("body", pa.string()),
            pa.field("tags", pa.string()),
            pa.field("keys", pa.list_(pa.string())),
            pa.field("properties", pa.map_(pa.string(), pa.string())),
            pa.field("sharding_key", pa.string()),
            pa.field("born_ts", pa.timestamp("us", tz="UTC")),
        ]
    )
    batch = pa.RecordBatch.from_pylist([row], schema=types)
    writer_of(cluster, topic, FULL).write(iter([batch]))

    (stored,) = read(cluster, topic, 1)
    properties = dict(stored["properties"])

    assert stored["body"] == "text é".encode()
    assert (stored["tags"], stored["keys"], stored["born_ts"]) == ("red", "a b", born)
    assert properties["color"] == "blue"
    assert properties["__SHARDINGKEY"] == "s"
    assert properties["UNIQ_KEY"] == stored["msg_id"] != "mine"
    assert "none" not in properties


def test_sharding_key_selects_the_same_queue_as_java(cluster: Cluster, topic: str) -> None:
    generator = random.Random(7)
    rows = [(f"key-{generator.randrange(9)}", f"{number:05d}") for number in range(2000)]
    schema = spark.StructType([BODY["body"], spark.StructField("sharding_key", spark.StringType())])
    batch = pa.RecordBatch.from_pydict(
        {"body": [body.encode() for _, body in rows], "sharding_key": [key for key, _ in rows]}
    )
    writer_of(cluster, topic, schema, batchBytes="300").write(iter([batch]))

    found: dict[str, list[bytes]] = {}
    places: dict[str, set[tuple[str, int]]] = {}
    for row in read(cluster, topic, 2000):
        key = dict(row["properties"])["__SHARDINGKEY"]
        found.setdefault(key, []).append(row["body"])
        places.setdefault(key, set()).add((row["broker_name"], row["queue_id"]))

    queues = [("broker-a", 0), ("broker-a", 1), ("broker-b", 0), ("broker-b", 1)]
    assert sum(map(len, found.values())) == 2000
    for key, own in found.items():
        assert own == [body.encode() for other, body in rows if other == key]
        assert places[key] == {queues[abs(java_hash(key)) % 4]}


def test_rows_can_name_their_queue(cluster: Cluster, topic: str) -> None:
    schema = spark.StructType(
        [
            BODY["body"],
            spark.StructField("broker_name", spark.StringType()),
            spark.StructField("queue_id", spark.IntegerType()),
        ]
    )
    there = {"body": b"x", "broker_name": "broker-b", "queue_id": 1}
    writer = writer_of(cluster, topic, schema)
    writer.write(iter([pa.RecordBatch.from_pylist([there] * 3)]))

    assert [(r["broker_name"], r["queue_id"]) for r in read(cluster, topic, 3)] == [
        ("broker-b", 1)
    ] * 3
    with pytest.raises(
        TopicMissing, match=r"row 0 of the task names a queue that does not exist: .* broker-b 9"
    ):
        writer.write(iter([pa.RecordBatch.from_pylist([there | {"queue_id": 9}])]))


def test_unsendable_row_is_named(cluster: Cluster, topic: str) -> None:
    batch = pa.RecordBatch.from_pydict({"body": [b"a", None]})

    with pytest.raises(SourceError, match="row 1 of the task cannot be sent: its `body` is null"):
        writer_of(cluster, topic).write(iter([batch]))


def test_rejected_message_is_named(cluster: Cluster, topic: str) -> None:
    batch = pa.RecordBatch.from_pydict({"body": [bytes(5 << 20)]})

    with pytest.raises(
        SendIncomplete, match=r"1 rows starting at row 0 of the task were not stored"
    ):
        writer_of(cluster, topic).write(iter([batch]))


def test_lost_rows_prevent_the_commit(cluster: Cluster, topic: str) -> None:
    writer = writer_of(cluster, topic)
    for message in (None, Written(5, 4)):
        with pytest.raises(SendIncomplete, match="did not store all its rows"):
            writer.commit([Written(3, 3), message])


@pytest.mark.parametrize(
    ("fields", "options", "reason"),
    [
        ([("bdy", "binary")], {}, "has no column `bdy`"),
        ([("body", "int")], {}, "column `body` is int, not binary or string"),
        ([("tags", "string")], {}, "requires a column `body`"),
        ([("body", "binary")], {"topic": ""}, "requires the option `topic` or a column"),
        ([("body", "binary"), ("queue_id", "int")], {}, "must be given together"),
    ],
)
def test_invalid_columns_are_rejected(
    fields: list[tuple[str, str]], options: dict[str, str], reason: str
) -> None:
    types = {"binary": spark.BinaryType(), "int": spark.IntegerType(), "string": spark.StringType()}
    schema = spark.StructType([spark.StructField(name, types[kind]) for name, kind in fields])
    parsed = parse({"nameServer": "n:1", "topic": "T", **options})

    with pytest.raises(SchemaError, match=reason):
        MessageWriter(parsed, schema, overwrite=False)
    with pytest.raises(OptionError, match="only be appended"):
        MessageWriter(parsed, BODY, overwrite=True)
