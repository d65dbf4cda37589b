# SPDX-License-Identifier: Apache-2.0
"""Data that is not in memory is read on a thread, with the same answers."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.broker import Broker
from cometmq.broker.clients.producers import Client
from cometmq.broker.handlers import HANDLERS, progress
from cometmq.broker.handlers.deferred_answers import answer
from cometmq.broker.timers import disable_slow_groups
from cometmq.remoting.bodies.dialect import decode_json
from cometmq.remoting.bodies.heartbeat import ConsumerData, SubscriptionData
from cometmq.remoting.bodies.stats import BrokerConsumeStats
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Call
from cometmq.remoting.commands.admin import (
    GetBrokerConsumeStats,
    GetConsumeStats,
    QueryConsumeTimeSpan,
)
from cometmq.remoting.commands.offsets import (
    GetEarliestMsgStoretime,
    QueryConsumerOffset,
    SearchOffsetByTimestamp,
)
from cometmq.remoting.commands.pull import PullMessage
from cometmq.remoting.commands.queries import QueryConsumeQueue, QueryMessage, ViewMessageById
from cometmq.remoting.commands.send import ConsumerSendMsgBack, SendMessageV2
from cometmq.remoting.commands.table import NoHeader
from cometmq.remoting.commands.topics import GetTopicStatsInfo
from cometmq.remoting.message.record import decode_record
from cometmq.store.os_disk import OsFile
from cometmq.testing.broker import FakePeer
from cometmq.testing.broker.stored import ask, call_with, clock_of, last_answer, stored_broker
from cometmq.testing.runtime.clock import FakeClock

from .reading import Disk, drained, until

COUNT = 40
COUNT_MAX = 1_000
SETTINGS = {"youngQueueStartsAtZero": "true", "disableConsumeIfConsumerReadSlowly": "true",
            "consumerFallbehindThreshold": "1"}  # fmt: skip
STORED_MS = FakeClock().now_ms()
QUESTIONS = [
    (Code.QUERY_MESSAGE, QueryMessage("T", "shared", 32, 0, 1 << 62)),
    (Code.VIEW_MESSAGE_BY_ID, ViewMessageById(0)),
    (Code.VIEW_MESSAGE_BY_ID, ViewMessageById(1)),
    (Code.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetByTimestamp("T", 1, STORED_MS + 35)),
    (Code.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetByTimestamp("T", 1, STORED_MS, "UPPER")),
    (Code.GET_EARLIEST_MSG_STORETIME, GetEarliestMsgStoretime("T", 1)),
    (Code.QUERY_CONSUMER_OFFSET, QueryConsumerOffset("G", "T", 1)),
    (Code.CONSUMER_SEND_MSG_BACK, ConsumerSendMsgBack(0, "G", 0, "U", "T", max_reconsume_times=16)),
    (Code.GET_TOPIC_STATS_INFO, GetTopicStatsInfo("T")),
    (Code.GET_CONSUME_STATS, GetConsumeStats("H")),
    (Code.QUERY_CONSUME_TIME_SPAN, QueryConsumeTimeSpan("T", "H")),
    (Code.QUERY_CONSUME_QUEUE, QueryConsumeQueue("T", 1, 0, 8)),
    (Code.GET_BROKER_RUNTIME_INFO, NoHeader()),
    (Code.PULL_MESSAGE, PullMessage("G", "T", 1, 0, 32, 4, 0, 0, 0, "*")),
]

FLOOD_QUESTIONS = [
    (code, header)
    for code, header in QUESTIONS
    if code not in (Code.CONSUMER_SEND_MSG_BACK, Code.GET_BROKER_RUNTIME_INFO)
]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
async def broker(tmp_path: Path, disk: Disk) -> AsyncIterator[Broker]:
    """Yield a broker on a store of 40 messages, none of which are in memory."""
    async with stored_broker(tmp_path, **SETTINGS) as broker:
        for number in range(COUNT):
            text = f"KEYS\x01shared k{number}\x02UNIQ_KEY\x01U{number}\x02DELAY\x011"
            if number % 2:
                text = text.partition("\x02DELAY")[0]
            header = SendMessageV2("P", "T", "TBW102", 4, 1, 0, 0, 0, text)
            ask(broker, call_with(310, header, b"%d" % number))
            clock_of(broker).advance(10)
    async with stored_broker(tmp_path, **SETTINGS) as broker:
        clock_of(broker).advance(10 * COUNT)
        broker.tables.topics.create("T", queue_nums=4)
        broker.tables.offsets.commit("H", "T", 1, 7)
        disk.readers.clear()
        yield broker
        await drained(broker)
        assert threading.main_thread() not in disk.readers


@pytest.mark.parametrize(("code", "header"), QUESTIONS, ids=lambda part: getattr(part, "name", ""))
async def test_a_cold_answer_is_the_hot_one_and_is_read_on_a_worker(
    broker: Broker, disk: Disk, code: Code, header: Any
) -> None:
    hot = call_with(code, header)
    expected = ask(broker, hot)
    await drained(broker)
    expected = expected or answer_of(broker, hot)
    disk.is_cold = True
    call = call_with(code, header)
    ask(broker, call)
    assert last_answer(call) is None
    await drained(broker)

    answer = answer_of(broker, call)
    assert (answer.code, answer.remark, answer.header) == (
        expected.code,
        expected.remark,
        expected.header,
    )
    if code is not Code.GET_BROKER_RUNTIME_INFO:
        assert whole(answer.body) == whole(expected.body)
    assert disk.readers


def answer_of(broker: Broker, call: Any) -> Any:
    broker.driver.commit()
    answer = last_answer(call)
    assert answer is not None
    return answer


def whole(body: Any) -> bytes:
    return bytes(body) if isinstance(body, bytes | bytearray | memoryview) else b"".join(body)


@pytest.mark.parametrize(("code", "header"), QUESTIONS, ids=lambda part: getattr(part, "name", ""))
async def test_a_read_that_fails_is_an_answer(
    broker: Broker, disk: Disk, code: Code, header: Any
) -> None:
    disk.is_cold = disk.is_broken = True
    call = call_with(code, header)
    ask(broker, call)
    await drained(broker)
    answer = last_answer(call)
    assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_delayed_messages_are_read_on_a_worker(broker: Broker, disk: Disk) -> None:
    disk.is_cold = True
    clock_of(broker).advance(10_000)

    broker.deferred.delays.step(broker.clock.now_ms())
    broker.deferred.delays.step(broker.clock.now_ms())  # skips the level whose read is in flight
    assert broker.deferred.delays.counts.delivered == 0
    await drained(broker)
    assert broker.deferred.delays.counts.delivered == COUNT // 2
    assert disk.readers

    disk.is_cold = False
    records = broker.store.reader.get_messages("T", 1, COUNT // 2, 32).records
    assert [decode_record(record).body for record in records] == [
        b"%d" % number for number in range(0, COUNT, 2)
    ]


async def test_delivery_goes_on_when_the_disk_can_be_read_again(broker: Broker, disk: Disk) -> None:
    disk.is_cold = disk.is_broken = True
    clock_of(broker).advance(10_000)
    broker.deferred.delays.step(broker.clock.now_ms())
    await drained(broker)
    assert broker.deferred.delays.counts.delivered == 0

    disk.is_broken = False
    broker.deferred.delays.step(broker.clock.now_ms())
    await drained(broker)
    assert broker.deferred.delays.counts.delivered == COUNT // 2


async def test_slow_groups_are_measured_on_a_worker(broker: Broker, disk: Disk) -> None:
    data = ConsumerData(
        group_name="H",
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        subscription_data_set=[SubscriptionData(topic="T", sub_string="*")],
    )
    broker.clients.consumers.register(data, Client(FakePeer(), "c", 0, 401, 0))
    group = broker.tables.groups.find("H", auto_create=True)
    assert group is not None
    disk.is_cold = True
    disable_slow_groups(broker)
    await drained(broker)
    disabled = broker.tables.groups.get("H")
    assert disabled is not None
    assert not disabled.consume_enable


FLOODERS, FLOOD = 4, 400


async def test_every_request_of_a_flood_is_answered_in_time(
    broker: Broker, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk would serve the flood for 10 s; nobody waits much longer than the bound."""
    reads, clock = broker.driver.reads, asyncio.get_running_loop().time
    reads.deadlines.wait_ms_max = 500
    disk.is_cold = True
    read = OsFile.read
    monkeypatch.setattr(OsFile, "read", lambda *args: (time.sleep(0.004), read(*args))[1])
    peers = [FakePeer() for _ in range(FLOODERS)]
    calls = []
    for number in range(FLOOD):
        code, header = FLOOD_QUESTIONS[number % len(FLOOD_QUESTIONS)]
        for peer in peers:
            call = Call(code=code, header=header, body=b"", peer=peer, opaque=number)
            calls.append(call)
            serve(broker, call)
    began_s = clock()
    quiet = call_with(*QUESTIONS[0])
    serve(broker, quiet)
    await until(lambda: quiet.is_answered)
    quiet_s = clock() - began_s
    await until(lambda: all(call.is_answered for call in calls))
    flood_s = clock() - began_s
    await drained(broker)
    assert last_answer(quiet).code in (0, ResponseCode.SYSTEM_BUSY)
    assert quiet_s < 3
    assert flood_s < 5
    codes = Counter(reply.code for peer in peers for reply in peer.replies)
    assert codes[ResponseCode.SYSTEM_BUSY] > FLOOD
    assert codes.total() == FLOODERS * FLOOD


def serve(broker: Broker, call: Call[Any]) -> None:
    answer(broker, call, lambda: HANDLERS[call.code](broker, call))  # type: ignore[arg-type,return-value]


async def test_the_progress_of_all_groups_is_read_on_a_worker(broker: Broker, disk: Disk) -> None:
    broker.tables.groups.put(SubscriptionGroupConfig(group_name="H"))
    disk.is_cold = True
    call = call_with(Code.GET_BROKER_CONSUME_STATS, GetBrokerConsumeStats())

    await progress.get_broker_consume_stats(broker, call)
    await drained(broker)

    stats = decode_json(BrokerConsumeStats, bytes(answer_of(broker, call).body))
    parts = next(one["H"] for one in stats.consume_stats_list if "H" in one)
    pairs = {queue.queue_id: pair for queue, pair in parts[0].offset_table.items()}
    assert pairs[1].consumer_offset == 7
    assert pairs[1].last_timestamp > STORED_MS
    assert disk.readers
