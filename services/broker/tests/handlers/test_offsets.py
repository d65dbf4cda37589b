# SPDX-License-Identifier: Apache-2.0

import asyncio
import inspect
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from cometmq.broker.broker import Broker
from cometmq.broker.clients.producers import Client
from cometmq.broker.exposition.figures import gather
from cometmq.remoting import remarks
from cometmq.remoting.bodies.dialect import decode_json
from cometmq.remoting.bodies.heartbeat import ConsumerData, SubscriptionData
from cometmq.remoting.bodies.stats import BrokerConsumeStats, ConsumeStats
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Reply
from cometmq.remoting.commands.admin import CloneGroupOffset, GetBrokerConsumeStats, GetConsumeStats
from cometmq.remoting.commands.offsets import (
    GetEarliestMsgStoretime,
    GetMaxOffset,
    GetMinOffset,
    QueryConsumerOffset,
    SearchOffsetByTimestamp,
    UpdateConsumerOffset,
)
from cometmq.remoting.commands.pull import PullMessage
from cometmq.remoting.commands.send import SendMessageV2
from cometmq.remoting.types import Language
from cometmq.runtime.incremental import finish
from cometmq.testing.broker import FakePeer, expected_answer
from cometmq.testing.broker.replay import call_of
from cometmq.testing.broker.stored import ask, call_with, clock_of, last_answer, stored_broker
from cometmq.testing.remoting.golden import load_exchanges

GOLDEN = Path(__file__).parents[4] / "tests" / "golden"
QUERY = QueryConsumerOffset("G", "T", 1)


@pytest.fixture
async def strict(tmp_path: Path) -> AsyncIterator[Broker]:
    """Yield a broker on which new groups apply their consumeFromWhere even to young queues."""
    async with stored_broker(tmp_path, youngQueueStartsAtZero="false") as broker:
        yield broker


def store(broker: Broker, count: int = 1, queue_id: int = 1) -> None:
    for _ in range(count):
        header = SendMessageV2("P", "T", "TBW102", 4, queue_id, 0, 0, 0, "")
        ask(broker, call_with(310, header, b"x"))


def asked(broker: Broker, code: int, header: Any) -> Any:
    return ask(broker, call_with(code, header))


def committed(broker: Broker) -> int | None:
    reply = asked(broker, Code.QUERY_CONSUMER_OFFSET, QUERY)
    if reply.code:
        assert reply.code == ResponseCode.QUERY_NOT_FOUND
        return None
    return reply.header.offset


def subscribe(broker: Broker) -> None:
    data = ConsumerData(
        group_name="G",
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        subscription_data_set=[SubscriptionData(topic="T", sub_string="*")],
    )
    broker.clients.consumers.register(
        data, Client(FakePeer(), "c", 0, 401, broker.clock.monotonic_ms())
    )


def test_a_committed_offset_is_answered(broker: Broker) -> None:
    store(broker, 3)
    reply = asked(broker, Code.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset("G", "T", 1, 2))
    assert reply == Reply()
    assert committed(broker) == 2


@pytest.mark.parametrize("odd", [-1, -5, -(1 << 63)])
def test_a_negative_commit_is_answered_as_if_nothing_was_committed(
    broker: Broker, odd: int
) -> None:
    """RocketMQ stores a negative offset, and reads it as none: 0 or "not found", by its rule."""
    store(broker)
    for offset in (7, odd):
        header = UpdateConsumerOffset("G", "T", 1, offset)
        assert asked(broker, Code.UPDATE_CONSUMER_OFFSET, header) == Reply()
    assert committed(broker) == 0
    broker.process.memory_bytes = 0
    store(broker)
    assert committed(broker) is None
    reply = asked(broker, Code.QUERY_CONSUMER_OFFSET, QUERY)
    assert reply.remark == remarks.CONSUMER_OFFSET_NOT_FOUND


def test_a_pull_that_carries_a_negative_offset_is_answered(broker: Broker) -> None:
    store(broker)
    header = PullMessage("G", "T", 1, 0, 32, 5, -5, 0, 0, "*", "TAG")
    assert asked(broker, Code.PULL_MESSAGE, header).code == 0
    assert broker.tables.offsets.table == {}


def test_an_offset_beyond_the_queue_is_stored_as_in_rocketmq(broker: Broker) -> None:
    store(broker)
    header = UpdateConsumerOffset("G", "T", 1, (1 << 63) - 1)
    assert asked(broker, Code.UPDATE_CONSUMER_OFFSET, header) == Reply()
    assert committed(broker) == (1 << 63) - 1


def test_an_empty_queue_starts_at_zero(broker: Broker) -> None:
    assert committed(broker) == 0


def test_a_new_group_on_a_young_topic_starts_at_zero(broker: Broker) -> None:
    """As in RocketMQ, a group that starts after the first send still gets that message."""
    store(broker)
    clock_of(broker).advance(10)
    subscribe(broker)
    assert committed(broker) == 0


def test_an_old_first_message_leaves_the_start_to_the_client(broker: Broker) -> None:
    store(broker)
    broker.process.memory_bytes = 0
    store(broker)
    assert committed(broker) is None


def test_by_the_strict_rule_a_new_group_obeys_consume_from_where(strict: Broker) -> None:
    store(strict)
    clock_of(strict).advance(10)
    subscribe(strict)
    assert committed(strict) is None


def test_clients_that_cannot_choose_get_the_rule_of_rocketmq(strict: Broker) -> None:
    broker = strict
    store(broker)
    call = call_with(Code.QUERY_CONSUMER_OFFSET, QUERY, language_raw=int(Language.CPP))
    reply = ask(broker, call)
    assert (reply.code, reply.header.offset) == (0, 0)


def test_messages_after_the_subscription_are_not_skipped(strict: Broker) -> None:
    """The consumer discovers a new topic's queues only after the first message has arrived."""
    broker = strict
    subscribe(broker)
    clock_of(broker).advance(10)
    store(broker)
    assert committed(broker) == 0


def test_a_queue_added_to_a_consumed_topic_is_consumed_whole(strict: Broker) -> None:
    broker = strict
    broker.tables.offsets.commit("G", "T", 0, 17)
    store(broker)
    assert committed(broker) == 0


def test_the_ends_of_queues(broker: Broker) -> None:
    assert asked(broker, Code.GET_MAX_OFFSET, GetMaxOffset("T", 1)).header.offset == 0
    assert asked(broker, Code.GET_MIN_OFFSET, GetMinOffset("T", 1)).header.offset == 0
    header = GetEarliestMsgStoretime("T", 1)
    assert asked(broker, Code.GET_EARLIEST_MSG_STORETIME, header).header.timestamp == -1

    stored_ms = broker.clock.now_ms()
    store(broker, 3)

    assert asked(broker, Code.GET_MAX_OFFSET, GetMaxOffset("T", 1)).header.offset == 3
    assert asked(broker, Code.GET_EARLIEST_MSG_STORETIME, header).header.timestamp == stored_ms
    assert broker.store.reader.queue("T", 2) is None


@pytest.mark.parametrize(
    ("delta_ms", "boundary", "expected"),
    [
        (-100, None, 0),
        (0, None, 0),
        (4, None, 0),
        (6, None, 1),
        (1000, None, 2),
        (5, "LOWER", 1),
        (5, "upper", 0),
    ],
)
def test_offsets_by_time(
    broker: Broker, delta_ms: int, boundary: str | None, expected: int
) -> None:
    start_ms = broker.clock.now_ms()
    for _ in range(3):
        store(broker)
        clock_of(broker).advance(10)
    header = SearchOffsetByTimestamp("T", 1, start_ms + delta_ms, boundary)
    assert asked(broker, Code.SEARCH_OFFSET_BY_TIMESTAMP, header).header.offset == expected


async def test_search_by_the_time_of_a_message_never_skips_it(broker: Broker) -> None:
    """RocketMQ 4.9 returns any of several messages that were stored in the same millisecond."""
    times_ms = []
    for _ in range(3):
        times_ms.append(broker.clock.now_ms())
        for _ in range(7):
            store(broker)
        clock_of(broker).advance(10)
    found = []
    for time_ms in times_ms:
        header = SearchOffsetByTimestamp("T", 1, time_ms)
        found.append(asked(broker, Code.SEARCH_OFFSET_BY_TIMESTAMP, header).header.offset)
        await asyncio.sleep(0)  # a turn of the loop has a limited number of reads
    assert found == [0, 7, 14]


EXCHANGES = [
    one
    for pattern in ("014-*", "015-*", "029-*", "030-*", "031-*", "032-*")
    for one in load_exchanges(GOLDEN, pattern)
    if one.response is not None and expected_answer(one).code == 0
]


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda exchange: exchange.name)
async def test_captured_exchanges(broker: Broker, exchange: Any) -> None:
    """The test gives each queue the length that the captured answer reports."""
    expected = expected_answer(exchange)
    call = call_of(exchange.request, FakePeer())
    header = call.header
    if call.code == Code.GET_MAX_OFFSET:
        count = int(expected.ext["offset"])
        for _ in range(count):
            message = SendMessageV2("P", header.topic, "TBW102", 4, header.queue_id, 0, 0, 0, "")
            ask(broker, call_with(310, message, b"x"))
    if call.code == Code.QUERY_CONSUMER_OFFSET and expected.ext["offset"] != "0":
        offset = int(expected.ext["offset"])
        broker.tables.offsets.commit(header.consumer_group, header.topic, header.queue_id, offset)
    if call.code == Code.GET_EARLIEST_MSG_STORETIME and expected.ext["timestamp"] != "-1":
        clock_of(broker).jump(int(expected.ext["timestamp"]))
        message = SendMessageV2("P", header.topic, "TBW102", 4, header.queue_id, 0, 0, 0, "")
        ask(broker, call_with(310, message, b"x"))

    reply = ask(broker, call)

    assert reply.code == 0
    answered = msgspec.to_builtins(reply.header) if reply.header is not None else {}
    assert {name: str(value) for name, value in answered.items()} == expected.ext


@pytest.mark.parametrize("odd", [-(1 << 63), -1, 10, (1 << 63) - 1])
async def test_no_answer_and_no_figure_contains_an_impossible_offset(
    broker: Broker, odd: int
) -> None:
    store(broker, 3)
    for name in ("G", "H"):
        broker.tables.groups.put(SubscriptionGroupConfig(group_name=name))
    asked(broker, Code.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset("G", "T", 1, odd))
    pull = PullMessage("G", "T", 1, odd, 32, 5, odd, 0, 0, "*", "TAG")
    answer = asked(broker, Code.PULL_MESSAGE, pull)
    assert 0 <= answer.header.next_begin_offset <= 3
    clone = CloneGroupOffset("G", "H", "T", offline=True)
    await answered(broker, Code.CLONE_GROUP_OFFSET, clone)

    expected = None if odd < 0 else odd
    for name in ("G", "H"):
        assert broker.tables.offsets.committed(name, "T", 1) == expected
    stats = await answered(broker, Code.GET_CONSUME_STATS, GetConsumeStats("G", "T"))
    found = decode_json(ConsumeStats, cast("bytes", stats.body)).offset_table.values()
    assert {one.consumer_offset for one in found} <= {0, max(0, odd)}
    every = await answered(broker, Code.GET_BROKER_CONSUME_STATS, GetBrokerConsumeStats())
    total = decode_json(BrokerConsumeStats, cast("bytes", every.body)).total_diff
    assert -(1 << 63) <= total <= 6
    assert all(row.lag == 0 for row in finish(gather(broker)).groups)


async def answered(broker: Broker, code: Code, header: Any) -> Reply:
    """Return the answer to a call whose lookups take turns with others."""
    call = call_with(code, header)
    reply = ask(broker, call)
    if reply is not None and inspect.isawaitable(reply.header):
        reply = await reply.header
    async with asyncio.timeout(30):
        while reply is None:
            await asyncio.sleep(0)
            reply = last_answer(call)
    assert isinstance(reply, Reply)
    return reply
