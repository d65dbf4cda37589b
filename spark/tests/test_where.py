# SPDX-License-Identifier: Apache-2.0
"""The option `where` is parsed exactly, and the rows are those of `DataFrame.where`."""

from datetime import UTC
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from cometmq.peers.cluster import Cluster
from cometmq.remoting.message.batch import BatchItem
from cometmq.spark.checks import check_batch, check_stream
from cometmq.spark.errors import OptionError, SchemaError
from cometmq.spark.options.definitions import parse
from cometmq.spark.options.offsets_json import Queue
from cometmq.spark.options.where import Where, parse_where
from cometmq.spark.read.batch import MessageReader
from cometmq.spark.read.decode import decode_records
from cometmq.spark.read.task import read_range
from cometmq.spark.schemas import table_schema
from cometmq.testing.spark import fill

NOON_MS = 1_769_860_800_000  # 2026-01-31 12:00 UTC


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", Where()),
        ("tags = 'a'", Where(tags=("a",))),
        ("TAGS in ('b', 'a','b')", Where(tags=("a", "b"))),
        ("tags IN ('a', 'b') AND tags = 'b'", Where(tags=("b",))),
        ("tags = 'a' AND tags = 'b'", Where(tags=())),
        ("keys = 'it''s'", Where(keys=("it's",))),
        ("keys = 'a AND tags = b'", Where(keys=("a AND tags = b",))),
        ("`queue_id` == 3 and queue_id IN (1, 3)", Where(queue_ids=(3,))),
        ("store_ts >= '2026-01-31 12:00:00'", Where(begin_ms=NOON_MS)),
        ("store_ts > '2026-01-31T13:00+01:00'", Where(begin_ms=NOON_MS + 1)),
        ("store_ts < TIMESTAMP '2026-01-31 12:00:00.0005'", Where(end_ms=NOON_MS + 1)),
        ("store_ts <= '2026-01-31 12:00:00.0005'", Where(end_ms=NOON_MS + 1)),
        (f"store_ts = {NOON_MS}", Where(begin_ms=NOON_MS, end_ms=NOON_MS + 1)),
        (
            "store_ts BETWEEN '2026-01-31 12:00' AND 1769860800007 AND queue_id = 0",
            Where(queue_ids=(0,), begin_ms=NOON_MS, end_ms=NOON_MS + 8),
        ),
    ],
)
def test_conditions(text: str, found: Where) -> None:
    assert parse_where(text) == found


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("body = 'x'", "body.* cannot be applied: use DataFrame.where"),
        ("tags = 'a' OR tags = 'b'", "OR tags.* cannot be applied"),
        ("tags <> 'a'", "cannot be applied"),
        ("tags LIKE 'a'", "cannot be applied"),
        ("tagsIN ('a')", "cannot be applied"),
        ("tags = a", "cannot be applied"),
        ("tags = 1", "expected a text in quotes, not 1"),
        ("tags > 'a'", "tags takes = and IN"),
        ("tags IN ('a'", "cannot be applied"),
        ("queue_id = '1'", "invalid literal"),
        ("queue_id > 1", "queue_id takes = and IN"),
        ("queue_id BETWEEN 1 AND 2", "queue_id takes = and IN"),
        ("store_ts >= 'yesterday'", "Invalid isoformat string: 'yesterday'"),
        ("store_ts IN (1, 2)", "compare store_ts"),
        ("tags = 'a' AND", "'' cannot be applied"),
        (r"tags = 'a\tb'", "a text with a backslash can only be filtered with DataFrame.where"),
        (r"keys IN ('a', 'b\\')", "a text with a backslash"),
        (f"store_ts >= {1 << 63}", f"{1 << 63} is no time"),
        ("queue_id = " + "1" * 5_000, "cannot be applied"),
    ],
)
def test_what_the_source_cannot_apply_is_refused(text: str, reason: str) -> None:
    with pytest.raises(OptionError, match=reason) as caught:
        parse_where(text)
    assert "joined by AND" in str(caught.value)


NAMED = {"nameServer": "a:1", "subscribe": "T"}


def test_contradictions_are_refused() -> None:
    tags = parse({**NAMED, "where": "tags = 'a'", "subExpression": "b"})
    times = parse({**NAMED, "where": "store_ts > 5"})
    for options, check, reason in (
        (tags, check_batch, "either in `subExpression` or in `where`"),
        (times, check_stream, "store_ts.* batches only"),
    ):
        with pytest.raises(OptionError, match=reason):
            check(options)
    check_batch(times)


def test_columns_are_a_selection_in_any_order() -> None:
    options = parse({**NAMED, "columns": "body, tags"})
    assert table_schema(options).fieldNames() == ["body", "tags"]
    groups = parse({**NAMED, "table": "groups", "columns": "group"})
    assert table_schema(groups).fieldNames() == ["group"]
    with pytest.raises(SchemaError, match="no column `tagz`; it has topic, broker_name"):
        table_schema(parse({**NAMED, "columns": "body,tagz"}))


def message(queue: Queue, number: int) -> BatchItem:
    """Vary tags and keys; some messages have none, and some keys contain other keys."""
    tag = ["a", "b", "a b", "A", None][number % 5]
    key = [f"k{number % 7}", f"k{number % 7} k1", "xk1", None][number % 4]
    pairs = [("TAGS", tag), ("KEYS", key), ("UNIQ_KEY", f"{queue.queue_id}-{number}")]
    text = "\x02".join(f"{name}\x01{value}" for name, value in pairs if value is not None)
    return BatchItem(0, f"KEYS\x01k1\x02 {number}".encode(), text)


CONDITIONS = [
    "tags = 'a'",
    "tags IN ('a', 'A', 'a b')",
    "tags = 'none'",
    "tags IN ('a||b', '*')",
    "tags = ''",
    "keys = 'k1'",
    "keys IN ('k3', 'k1 k1', 'xk1')",
    "keys = 'k1' AND tags = 'b'",
    "queue_id = 1",
    "queue_id IN (0, 7) AND tags = 'b'",
    "queue_id = 9",
    "tags = 'a' AND tags = 'b'",
    "store_ts >= '{middle}'",
    "store_ts < '{middle}' AND keys = 'k1'",
    "store_ts > '{middle}'",
    "store_ts <= '{middle}' AND queue_id = 1",
    "store_ts >= '{middle}' AND store_ts < '{middle}'",
    "store_ts BETWEEN '2020-01-01' AND '2021-01-01'",
    "store_ts >= '2200-01-01'",
]


def test_rows_equal_those_of_a_filter_of_spark(
    spark: SparkSession, cluster: Cluster, topic: str
) -> None:
    for first in (0, 150):
        fill(cluster.namesrv_addr, topic, 150, first=first, make=message)

    def load(**options: str) -> DataFrame:
        reader = spark.read.format("rocketmq").option("nameServer", cluster.namesrv_addr)
        return reader.options(subscribe=topic, **options).load()

    whole = load().cache()
    times = sorted(row.store_ts for row in whole.select("store_ts").collect())
    middle = times[len(times) // 2].astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    columns = "broker_name,queue_id,queue_offset,body"
    for condition in CONDITIONS:
        where = condition.format(middle=middle)
        expected = whole.where(where).select(columns.split(",")).collect()
        found = load(where=where, columns=columns).collect()
        assert sorted(found) == sorted(expected), where


def test_stream_applies_the_condition(
    spark: SparkSession, cluster: Cluster, topic: str, tmp_path: Any
) -> None:
    fill(cluster.namesrv_addr, topic, 100, make=message)
    rows = (
        spark.readStream.format("rocketmq")
        .options(nameServer=cluster.namesrv_addr, subscribe=topic, startingOffsets="earliest")
        .options(where="queue_id = 1 AND tags = 'b' AND keys = 'k1'", columns="queue_id,tags,keys")
        .load()
    )
    query = (
        rows.writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    found = spark.read.parquet(str(tmp_path / "out")).collect()
    assert found
    assert {tuple(row) for row in found} == {(1, "b", "k1")}


def test_less_is_pulled_and_decoded(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Conditions save work: fewer messages are pulled, and those left out are not decoded."""
    fill(cluster.namesrv_addr, topic, 600, make=message)
    decoded = _counted(monkeypatch)

    def read(where: str) -> tuple[int, int, int]:
        decoded.clear()
        options = parse({"nameServer": cluster.namesrv_addr, "subscribe": topic, "where": where})
        reader = MessageReader(options, table_schema(options))
        parts = reader.partitions()
        rows = sum(it.num_rows for part in parts for it in reader.read(part))
        return len(parts), sum(decoded), rows

    assert read("") == (4, 2400, 2400)
    assert read("queue_id = 1") == (2, 1200, 1200)
    assert read("tags = 'A'") == (4, 480, 480)
    parts, count, rows = read("keys = 'k3'")
    assert (parts, rows) == (4, 4 * 21)
    assert count < 4 * 50  # records that contain the key, of 600
    assert read("store_ts >= '2200-01-01'") == (0, 0, 0)


def _counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    counts: list[int] = []

    def decode(buffer: bytes, starts: Any, context: Any) -> Any:
        counts.append(len(starts))
        return decode_records(buffer, starts, context)

    monkeypatch.setattr(f"{read_range.__module__}.decode_records", decode)
    return counts
