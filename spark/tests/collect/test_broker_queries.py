# SPDX-License-Identifier: Apache-2.0
"""The collector copes with rejected queries, and samples messages for groups with a filter."""

from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from cometmq.client.admin.broker import BrokerAdmin
from cometmq.remoting.bodies.connections import Connection, ConsumerConnections
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.bodies.kv import KVTable
from cometmq.remoting.bodies.offsets import ConsumerOffsetTable, DelayOffsetTable
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.stats import ConsumeStats, OffsetPair, TopicOffset, TopicStats
from cometmq.remoting.bodies.topic_config import (
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Response
from cometmq.remoting.commands.admin import GetConsumeStats
from cometmq.remoting.errors import ConsumerNotOnline, NoPermission, ServerError
from cometmq.remoting.message.new_message import NewMessage, encode_record
from cometmq.remoting.names import SCHEDULE_GROUP, SCHEDULE_TOPIC
from cometmq.remoting.transport.client import RemotingClient
from cometmq.spark.collect.broker import SAMPLED_PAIRS_MAX, CollectSettings, ask, filtered, places
from cometmq.spark.options.definitions import READER_GROUP
from cometmq.spark.tables.rows import BrokerState, table

STORED_MS = 1_800_000_000_000
ENDS = {0: 90, 1: 30}
COMMITTED = {0: 60, 1: 0}
TOPICS = TopicConfigTable(topic_config_table={"T": TopicConfig(topic_name="T")})
GROUPS = SubscriptionGroupTable(
    subscription_group_table={name: SubscriptionGroupConfig(group_name=name) for name in "GH"}
)
OFFSETS = ConsumerOffsetTable(offset_table={"T@G": COMMITTED})
TOPIC_STATS = TopicStats(
    {MessageQueue("T", "b", queue): TopicOffset(1, end, 0) for queue, end in ENDS.items()}
)
Answer = Callable[[Any], msgspec.Struct]


def stats_of(header: GetConsumeStats) -> ConsumeStats:
    pairs = {
        MessageQueue("T", "b", queue): OffsetPair(ENDS[queue], offset, STORED_MS if offset else 0)
        for queue, offset in COMMITTED.items()
    }
    return ConsumeStats(2.5, pairs if header.consumer_group == "G" else {})


def refuse(_: Any) -> msgspec.Struct:
    raise NoPermission("not for you")


def nobody(_: Any) -> msgspec.Struct:
    raise ConsumerNotOnline("nobody")


def members(expression: str) -> ConsumerConnections:
    wanted = {"T": SubscriptionData(topic="T", sub_string=expression)}
    return ConsumerConnections([Connection(client_id="m")], subscription_table=wanted)


class Asked(BrokerAdmin):
    """A broker that answers from a table of functions."""

    def __init__(self, **changed: Answer) -> None:
        super().__init__(cast("RemotingClient", None), "a", timeout_ms=1000, name="b")
        self.codes: list[RequestCode] = []
        self.pulls: list[Any] = []
        self._answers: dict[str, Answer] = {
            "GET_BROKER_RUNTIME_INFO": lambda _: KVTable(),
            "GET_ALL_TOPIC_CONFIG": lambda _: TOPICS,
            "GET_ALL_SUBSCRIPTIONGROUP_CONFIG": lambda _: GROUPS,
            "GET_ALL_CONSUMER_OFFSET": lambda _: OFFSETS,
            "GET_ALL_DELAY_OFFSET": lambda _: DelayOffsetTable(),
            "GET_TOPIC_STATS_INFO": lambda _: TOPIC_STATS,
            "GET_CONSUMER_CONNECTION_LIST": nobody,
            "GET_CONSUME_STATS": stats_of,
            "QUERY_CONSUME_TIME_SPAN": refuse,
            **changed,
        }

    async def invoke(self, code: RequestCode, header: Any = None, *_: Any, **__: Any) -> Response:
        self.codes.append(code)
        if code is RequestCode.PULL_MESSAGE:
            return self._pulled(header)
        if code is RequestCode.GET_BROKER_CONFIG:
            return Response(0, None, {}, b"fileReservedTime=72")
        return Response(0, None, {}, encode_json(self._answers[code.name](header)))

    def _pulled(self, header: Any) -> Response:
        """Answer as a broker whose filter matches every third message."""
        self.pulls.append(header)
        offset = header.queue_offset + -header.queue_offset % 3
        if offset >= ENDS[header.queue_id]:
            return Response(ResponseCode.PULL_NOT_FOUND, None, {}, b"")
        message = NewMessage(
            topic="T", queue_id=header.queue_id, flag=0, sys_flag=0, born_timestamp=1,
            born_host=bytes(8), store_host=bytes(8), body=b"x",
        )  # fmt: skip
        return Response(0, None, {}, bytes(encode_record(message, offset, 0, 1)))


async def asked(broker: Asked, **settings: Any) -> BrokerState:
    state = BrokerState(
        snapshot_id=7, cluster="c", broker_name="b", broker_id=0, address="a", asked_ms=1
    )
    await ask(broker, state, CollectSettings(**settings))
    return state


async def test_offsets_fall_back_to_queries_per_group() -> None:
    broker = Asked(GET_ALL_CONSUMER_OFFSET=refuse)
    state = await asked(broker)

    assert state.offsets == {("T", "G"): {0: 60}}  # 0 may also mean "none"
    rows = {row["queue_id"]: row for row in table("progress", [state]).to_pylist()}
    assert {queue: row["consumer_offset"] for queue, row in rows.items()} == {0: 60, 1: None}
    assert {row["max_offset"] for row in rows.values()} == {90, 30}
    assert {row["group"]: row["consume_tps"] for row in table("groups", [state]).to_pylist()} == {
        "G": 2.5,
        "H": 2.5,
    }
    stats = RequestCode.GET_CONSUME_STATS
    ends = RequestCode.GET_TOPIC_STATS_INFO
    assert broker.codes.index(stats) < broker.codes.index(ends)


async def test_broker_without_any_offsets_fails() -> None:
    with pytest.raises(NoPermission, match="not for you"):
        await asked(Asked(GET_ALL_CONSUMER_OFFSET=refuse, GET_CONSUME_STATS=refuse))


async def test_delay_levels_are_optional() -> None:
    state = await asked(Asked(GET_ALL_DELAY_OFFSET=refuse))
    assert state.offsets == {("T", "G"): COMMITTED}


async def test_recalled_messages_count_as_passed() -> None:
    table = DelayOffsetTable({2: 3}, recalled={1: {0: "a"}, 2: {2: "b", 3: "c", 7: "d"}})
    state = await asked(Asked(GET_ALL_DELAY_OFFSET=lambda _: table))
    assert state.offsets[SCHEDULE_TOPIC, SCHEDULE_GROUP] == {0: 1, 1: 5}


async def test_without_ages_the_last_consumed_message_is_queried() -> None:
    state = await asked(Asked())

    assert state.consumed_ms == {("T", "G"): {0: STORED_MS, 1: 0}}
    rows = {row["queue_id"]: row for row in table("progress", [state]).to_pylist()}
    assert int(rows[0]["consume_ts"].timestamp() * 1000) == STORED_MS
    assert rows[0]["next_ts"] is rows[1]["consume_ts"] is None


async def test_without_ages_and_statistics_times_are_unknown() -> None:
    def fail(_: Any) -> msgspec.Struct:
        raise ServerError("no file")

    state = await asked(Asked(QUERY_CONSUME_TIME_SPAN=fail, GET_CONSUME_STATS=fail))
    assert state.consumed_ms == state.spans == {}


async def test_unread_messages_of_a_filtering_group_are_sampled() -> None:
    broker = Asked(GET_CONSUMER_CONNECTION_LIST=lambda _: members("a || b"))
    state = await asked(broker, sample_tags=30)

    groups = {row["group"]: row for row in table("groups", [state]).to_pylist()}
    assert groups["G"]["tried"] == [("T", 30)]
    ((_, matched),) = groups["G"]["matched"]
    assert matched == sum(it.queue_offset % 3 == 0 for it in broker.pulls)
    assert groups["H"]["tried"] is None
    assert {(it.consumer_group, it.subscription, it.max_msg_nums) for it in broker.pulls} == {
        (READER_GROUP, "a || b", 1)
    }


async def test_sampling_needs_a_filter_and_the_setting() -> None:
    broker = Asked(GET_CONSUMER_CONNECTION_LIST=lambda _: members("*"))
    assert (await asked(broker, sample_tags=30)).samples == {}
    broker = Asked(GET_CONSUMER_CONNECTION_LIST=lambda _: members("a"))
    assert (await asked(broker)).samples == {}
    assert broker.pulls == []


async def test_sampled_pairs_are_bounded_and_rotate() -> None:
    state = await asked(Asked(GET_CONSUMER_CONNECTION_LIST=lambda _: members("a")))
    for number in range(3 * SAMPLED_PAIRS_MAX):
        group = f"G{number:04}"
        state.offsets["T", group] = {0: 1}
        state.connections[group] = members("a")
    seen = set()
    for snapshot_id in range(4):
        state.snapshot_id = snapshot_id
        chosen = filtered(state, SAMPLED_PAIRS_MAX)
        assert len(chosen) == SAMPLED_PAIRS_MAX
        seen.update(chosen)
    assert len(seen) == 3 * SAMPLED_PAIRS_MAX + 1


def test_places_are_spread_evenly() -> None:
    queues = {0: range(100, 190), 1: range(5, 5), 2: range(7, 17)}
    chosen = list(places(queues, 10))
    assert [queue for queue, _ in chosen] == [0] * 9 + [2]
    assert [offset for _, offset in chosen[:3]] == [105, 115, 125]
    assert sorted(places(queues, 1000)) == [
        (q, offset) for q, it in queues.items() for offset in it
    ]
    assert list(places({}, 10)) == list(places({1: range(3, 3)}, 10)) == []
