# SPDX-License-Identifier: Apache-2.0
"""Planning and reading against a real broker, without a JVM."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from cometmq.peers.cluster import Cluster
from cometmq.remoting.message.batch import BatchItem
from cometmq.spark.cluster.connection import BrokerConnection
from cometmq.spark.cluster.metadata import Metadata
from cometmq.spark.errors import (
    DataLoss,
    NameServerUnreachable,
    OffsetMissing,
    OptionError,
    Refused,
    TopicMissing,
)
from cometmq.spark.options.definitions import parse
from cometmq.spark.options.offsets_json import Queue, to_json, to_text
from cometmq.spark.read.batch import MessageReader
from cometmq.spark.read.planning import QueueRange
from cometmq.spark.read.stream import MessageStreamReader
from cometmq.spark.schemas import table_schema
from cometmq.testing.spark import fill


def reader_of(cluster: Cluster, topic: str, **options: str) -> MessageReader:
    parsed = parse({"nameServer": cluster.namesrv_addr, "subscribe": topic, **options})
    return MessageReader(parsed, table_schema(parsed))


def read(cluster: Cluster, topic: str, **options: str) -> list[dict[str, Any]]:
    """Plan and read as a Spark query does, one task after the other."""
    reader = reader_of(cluster, topic, **options)
    return [
        row
        for part in reader.partitions()
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]


def test_everything_is_read_once_and_in_order(cluster: Cluster, topic: str) -> None:
    queues = fill(cluster.namesrv_addr, topic, 1000)

    rows = read(cluster, topic, arrowBatchRows="300")

    assert len(queues) == 4
    assert len(rows) == 4000
    for queue in queues:
        own = [r for r in rows if (r["broker_name"], r["queue_id"]) == queue[1:]]
        assert [row["queue_offset"] for row in own] == list(range(1000))
        assert [row["keys"] for row in own] == [f"{queue[1]}-{queue[2]}-{i}" for i in range(1000)]


def test_large_messages_arrive_in_short_answers(cluster: Cluster, topic: str) -> None:
    def large(queue: Queue, number: int) -> BatchItem:
        return BatchItem(0, bytes([number]) * (100_000 + number), "")

    for first in range(0, 60, 20):
        fill(cluster.namesrv_addr, topic, 20, first=first, make=large)

    rows = read(cluster, topic)

    assert sorted(len(row["body"]) for row in rows) == sorted(4 * [100_000 + n for n in range(60)])


def test_tags_are_filtered_and_offsets_advance(cluster: Cluster, topic: str) -> None:
    fill(cluster.namesrv_addr, topic, 900)

    rows = read(cluster, topic, subExpression="t1 || t2", minPartitions="12")

    assert len(rows) == 4 * 600
    assert {row["tags"] for row in rows} == {"t1", "t2"}
    assert len({row["msg_id"] for row in rows}) == len(rows)
    assert read(cluster, topic, subExpression="none") == []


def test_start_and_end_by_offsets(cluster: Cluster, topic: str) -> None:
    queues = fill(cluster.namesrv_addr, topic, 50)
    one = Queue(topic, queues[0].broker_name, 0)

    rows = read(
        cluster,
        topic,
        startingOffsets=to_text({one: 20}),
        endingOffsets=to_text({one: 30, queues[1]: 0}),
    )

    own = [r["queue_offset"] for r in rows if (r["broker_name"], r["queue_id"]) == one[1:]]
    assert own == list(range(20, 30))
    assert len(rows) == 10 + 2 * 50


def test_start_and_end_by_timestamps(cluster: Cluster, topic: str) -> None:
    fill(cluster.namesrv_addr, topic, 40)
    middle = max(row["store_ts"] for row in read(cluster, topic)).timestamp() * 1000 + 1
    fill(cluster.namesrv_addr, topic, 30, first=40)
    moment = str(int(middle))

    late = read(cluster, topic, startingTimestamp=moment)
    early = read(cluster, topic, endingTimestamp=moment)

    assert sorted(row["queue_offset"] for row in late) == sorted(4 * list(range(40, 70)))
    assert sorted(row["queue_offset"] for row in early) == sorted(4 * list(range(40)))


def test_every_timestamp_finds_the_first_message_not_older(cluster: Cluster, topic: str) -> None:
    for first in range(0, 30, 3):
        queues = fill(cluster.namesrv_addr, topic, 3, first=first)
    rows = [r for r in read(cluster, topic) if r["broker_name"] == queues[0].broker_name]
    stored = [int(r["store_ts"].timestamp() * 1000) for r in rows if r["queue_id"] == 0]

    with Metadata(parse({"nameServer": cluster.namesrv_addr, "subscribe": topic})) as metadata:
        ends = metadata.ends(metadata.queues())[queues[0]]
        for moment in {t + delta for t in stored for delta in (-1, 0, 1)}:
            expected = next((i for i, t in enumerate(stored) if t >= moment), len(stored))
            assert metadata.offset_at(queues[0], moment, ends) == expected


def test_timestamp_after_all_messages_is_an_error_or_the_end(cluster: Cluster, topic: str) -> None:
    fill(cluster.namesrv_addr, topic, 5)
    future = "99999999999999"

    with pytest.raises(OffsetMissing, match=r"no message of .* was stored at 99999999999999 ms"):
        read(cluster, topic, startingTimestamp=future)
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    assert read(cluster, topic, startingTimestamp=future, **latest) == []


def test_start_at_the_offsets_of_a_group(cluster: Cluster, topic: str) -> None:
    queues = fill(cluster.namesrv_addr, topic, 20)
    with Metadata(parse({"nameServer": cluster.namesrv_addr, "subscribe": topic})) as metadata:
        metadata.queues()
        metadata.commit("CID_spark_start", {queues[0]: 15, queues[3]: 20})

    rows = read(cluster, topic, startingOffsetsFromGroup="CID_spark_start")

    assert len(rows) == 5 + 20 + 20 + 0


def test_stream_starts_at_the_offsets_of_its_group(cluster: Cluster, topic: str) -> None:
    queues = fill(cluster.namesrv_addr, topic, 100)
    one = Queue(topic, "broker-b", 1)
    given = {"nameServer": cluster.namesrv_addr, "subscribe": topic}
    options = parse({**given, "startingOffsetsFromGroup": "CID_s", "commitGroup": "CID_s"})
    stream = MessageStreamReader(options, table_schema(options))
    stream.commit(to_json({one: 40}))

    begin = stream.initialOffset()
    end = stream.latestOffset(begin, stream.getDefaultReadLimit())
    parts = stream.partitions(begin, end)
    count = sum(batch.num_rows for part in parts for batch in stream.read(part))
    stream.stop()

    # Brokers return 0 for a group without commits in a young queue.
    assert begin == to_json(dict.fromkeys(queues, 0) | {one: 40})
    assert end == to_json(dict.fromkeys(queues, 100))
    assert count == 360


def test_only_assigned_queues_are_read(cluster: Cluster, topic: str) -> None:
    queues = fill(cluster.namesrv_addr, topic, 10)
    assign = json.dumps({topic: {queues[0].broker_name: [1]}})

    rows = read(cluster, "", assign=assign)

    assert {(row["broker_name"], row["queue_id"]) for row in rows} == {(queues[0][1], 1)}


def test_pattern_finds_topics_but_no_system_topics(
    cluster: Cluster, make_topic: Callable[[str], str]
) -> None:
    for name in ("pattern_one", "pattern_two", "other_pattern_x"):
        make_topic(name)
        fill(cluster.namesrv_addr, name, 3)

    rows = read(cluster, "", subscribePattern="pattern_.*")
    every = read(cluster, "", subscribePattern=".*pattern.*|SCHEDULE.*|TBW102")

    assert {row["topic"] for row in rows} == {"pattern_one", "pattern_two"}
    assert {row["topic"] for row in every} == {"pattern_one", "pattern_two", "other_pattern_x"}


def test_unreadable_input_is_a_one_line_error(cluster: Cluster, topic: str) -> None:
    queues = fill(cluster.namesrv_addr, topic, 10)
    elsewhere = json.dumps({topic: {"x": {"0": 1}}})
    for options, error, reason in (
        ({"subscribe": f"{topic}s"}, TopicMissing, f"s` does not exist; did you mean `{topic}`"),
        ({"subscribe": "nothing_like_it"}, TopicMissing, "`nothing_like_it` does not exist"),
        ({"nameServer": "127.0.0.1:1"}, NameServerUnreachable, "no name server .*127.0.0.1:1"),
        ({"nameServer": "somewhere"}, OptionError, "not an address: 'somewhere'"),
        ({"startingOffsets": elsewhere}, OptionError, "is not part of this read"),
        ({"startingOffsets": to_text({queues[0]: 11})}, OffsetMissing, "ends at 10, before"),
        ({"endingOffsets": to_text({queues[0]: 12})}, DataLoss, "2 messages of .* offset 10"),
    ):
        given = {"nameServer": cluster.namesrv_addr, "subscribe": topic, **options}
        parsed = parse(given)
        with pytest.raises(error, match=reason) as caught:
            MessageReader(parsed, table_schema(parsed)).partitions()
        assert "\n" not in str(caught.value)


def test_range_is_read_after_its_broker_has_moved(cluster: Cluster, topic: str) -> None:
    """The planned addresses are stale, so the name server is queried again."""
    fill(cluster.namesrv_addr, topic, 10)
    reader = reader_of(cluster, topic)
    moved = [QueueRange(part.span, {0: "127.0.0.1:1"}) for part in reader.partitions()]

    rows = [row for part in moved for batch in reader.read(part) for row in batch.to_pylist()]

    assert len(rows) == 40


def test_closed_reader_leaves_no_socket(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster.namesrv_addr, topic, 1000)
    reader = reader_of(cluster, topic, arrowBatchRows="10")
    part = reader.partitions()[0]
    closed: list[str] = []
    close = BrokerConnection.close

    def note(connection: BrokerConnection) -> None:
        closed.append(connection.address)
        close(connection)

    monkeypatch.setattr(BrokerConnection, "close", note)
    rows = reader.read(part)
    assert next(rows).num_rows >= 10
    assert closed == []

    rows.close()

    assert closed == [part.addresses[0]]


def test_topic_without_permission_is_refused(cluster: Cluster, topic: str) -> None:
    fill(cluster.namesrv_addr, topic, 1)
    reader = reader_of(cluster, topic, group="CID_unknown_group_name")
    parts = reader.partitions()

    with pytest.raises(Refused, match=r"refuses to read .*: .*CID_unknown_group_name"):
        list(reader.read(parts[0]))
