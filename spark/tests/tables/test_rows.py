# SPDX-License-Identifier: Apache-2.0
"""Broker answers, including odd ones, are converted to rows."""

import pytest

from cometmq.remoting.bodies.connections import Connection, ConsumerConnections
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.bodies.stats import QueueTimeSpan, TopicOffset
from cometmq.remoting.bodies.topic_config import TopicConfig
from cometmq.remoting.names import SCHEDULE_GROUP, SCHEDULE_TOPIC
from cometmq.spark.collect.broker import behind
from cometmq.spark.tables.columns import TABLES, topic_kind
from cometmq.spark.tables.rows import BrokerState, TimeSpan, table

NOW_MS = 1_800_000_000_000


def _state() -> BrokerState:
    members = ConsumerConnections(
        connection_set=[Connection(language="JAVA"), Connection(language="CPP")],
        subscription_table={"T": SubscriptionData(topic="T", sub_string="a || b")},
    )
    return BrokerState(
        snapshot_id=30_000_000,
        cluster="c",
        broker_name="b",
        broker_id=0,
        address="127.0.0.1:1",
        asked_ms=NOW_MS,
        topics={"T": TopicConfig(topic_name="T")},
        offsets_ms=NOW_MS,
        offsets={("T", "online"): {0: 5}, ("Gone", "online"): {0: 1}, ("T", "off"): {1: 0}},
        stats_ms={"T": NOW_MS + 10},
        stats={"T": {0: TopicOffset(NOW_MS - 500, 9, 2), 1: TopicOffset(0, 3, 7)}},
        connections={"online": members},
    )


def _progress(state: BrokerState) -> dict[tuple[str, int], dict[str, object]]:
    rows = table("progress", [state]).to_pylist()
    return {(row["group"], row["queue_id"]): row for row in rows}


def test_missing_offset_is_null_and_deleted_topics_are_skipped() -> None:
    rows = _progress(_state())
    assert set(rows) == {("online", 0), ("online", 1), ("off", 0), ("off", 1)}
    assert rows["online", 0]["consumer_offset"] == 5
    assert rows["online", 1]["consumer_offset"] is None
    assert rows["off", 1]["consumer_offset"] == 0
    assert rows["online", 0]["filtered"]
    assert not rows["off", 0]["filtered"]
    assert [rows["off", 0][it] for it in ("online", "message_model")] == [False, None]


def test_start_beyond_the_end_is_the_end() -> None:
    row = _progress(_state())["off", 1]
    assert (row["min_offset"], row["max_offset"]) == (3, 3)


def _span(
    delay_ms: int, *, consumed_ms: int = NOW_MS - 700, min_ms: int = NOW_MS - 900
) -> TimeSpan:
    span = QueueTimeSpan(consume_time_stamp=consumed_ms, delay_time=delay_ms, min_time_stamp=min_ms)
    return TimeSpan(NOW_MS + 20, span)


@pytest.mark.parametrize(
    ("span", "delay_ms"),
    [
        (_span(600), 600),
        (_span(0), None),
        (_span(NOW_MS + 1), 920),  # "-1": the message was deleted, the oldest one is next
        (_span(NOW_MS + 1, min_ms=-1), None),
    ],
)
def test_ages_are_known_or_null(span: TimeSpan, delay_ms: int | None) -> None:
    state = _state()
    state.spans["T", "online"] = {0: span}
    row = _progress(state)["online", 0]
    assert row["delay_ms"] == delay_ms
    if delay_ms is None:
        assert row["next_ts"] is None
    else:
        assert round(row["next_ts"].timestamp() * 1000) == NOW_MS + 20 - delay_ms  # type: ignore[attr-defined]


def test_unreachable_broker_has_only_its_own_row() -> None:
    state = _state().emptied("no answer")
    assert [table(name, [state]).num_rows for name in TABLES] == [0, 0, 0, 1]
    (row,) = table("brokers", [state]).to_pylist()
    assert (row["reachable"], row["error"], row["put_tps"]) == (False, "no answer", None)


def test_clock_skew_of_a_broker() -> None:
    state = _state()
    state.runtime = {
        "bootTimestamp": str(NOW_MS - 100_000),
        "runtime": "[ 0 days, 0 hours, 1 minutes, 35 seconds ]",
    }
    (row,) = table("brokers", [state]).to_pylist()
    assert row["clock_skew_ms"] == -5_000


@pytest.mark.parametrize("text", ["3000000000", str(1 << 63), "9" * 400])
def test_numbers_that_do_not_fit_into_their_columns(text: str) -> None:
    """A broker that keeps messages for ever must not end the reports about all others."""
    state = _state()
    state.config = {"fileReservedTime": text, "diskMaxUsedSpaceRatio": "-" + text}
    state.runtime = {
        "bootTimestamp": text,
        "runtime": f"[ {text} days, 0 hours, 1 minutes, 35 seconds ]",
        "commitLogMaxOffset": text,
        "earliestMessageTimeStamp": text,
    }
    state.stats["T"] = {0: TopicOffset(1 << 60, 9, 2)}
    (row,) = table("brokers", [state]).to_pylist()
    assert (row["file_reserved_hours"], row["disk_max_used_ratio"]) == (2**31 - 1, 1 - 2**31)
    assert row["commitlog_max"] == min(int(text), (1 << 63) - 1)
    assert row["clock_skew_ms"] is None
    assert {it["last_update_ts"] for it in table("progress", [state]).to_pylist()} == {None}


def test_budget_rotates() -> None:
    state = _state()
    state.offsets = {("T", f"g{number}"): {0: 1} for number in range(10)}
    state.offsets["T", "done"] = {0: 9}
    state.offsets[SCHEDULE_TOPIC, SCHEDULE_GROUP] = {0: 1}
    asked = []
    for number in range(5):
        state.snapshot_id = number
        asked += behind(state, 4)
    assert len(asked) == 20
    assert {asked.count(pair) for pair in set(asked)} == {2}
    assert len(set(asked)) == 10


@pytest.mark.parametrize(
    ("topic", "kind"),
    [
        ("T", "NORMAL"),
        ("%RETRY%g", "RETRY"),
        ("%DLQ%g", "DLQ"),
        (SCHEDULE_TOPIC, "SCHEDULE"),
        ("RMQ_SYS_TRANS_HALF_TOPIC", "HALF"),
        ("RMQ_SYS_TRANS_OP_HALF_TOPIC", "OP"),
        ("RMQ_SYS_TRACE_TOPIC", "SYSTEM"),
        ("TBW102", "SYSTEM"),
        ("rmq_sys_TRACE_DATA_east", "SYSTEM"),
    ],
)
def test_topic_kinds(topic: str, kind: str) -> None:
    assert topic_kind(topic) == kind
