# SPDX-License-Identifier: Apache-2.0

import asyncio
import errno
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.broker import Broker
from cometmq.broker.clients.producers import Client
from cometmq.broker.handlers import progress
from cometmq.broker.store_reads import TURN_BYTES_MAX, TURN_READS_MAX
from cometmq.broker.testing import FakePeer
from cometmq.broker.testing.stored import ask, call_with, clock_of, last_answer, stored_broker
from cometmq.broker.timers import disable_slow_groups
from cometmq.remoting.bodies.dialect import decode_json
from cometmq.remoting.bodies.heartbeat import ConsumerData, SubscriptionData
from cometmq.remoting.bodies.stats import BrokerConsumeStats
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.codes import ResponseCode
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
from cometmq.runtime.clock import FakeClock
from cometmq.store.disk import OsFile
from cometmq.store.errors import DiskError
from cometmq.store.reads import Lookup, Read

COUNT = 40
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


class Disk:
    """Records which threads read the disk; while `is_cold` is set, no data is in memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_cold = False
        self.is_broken = False
        self.readers: list[threading.Thread] = []
        read, read_cached = OsFile.read, OsFile.read_cached

        def note_read(file: OsFile, offset: int, count: int) -> bytes:
            self.readers.append(threading.current_thread())
            if self.is_broken:
                raise DiskError("read", file.path, errno.EIO)
            return read(file, offset, count)

        def cold(file: OsFile, offset: int, count: int) -> Any:
            return None if self.is_cold else read_cached(file, offset, count)

        monkeypatch.setattr(OsFile, "read", note_read)
        monkeypatch.setattr(OsFile, "read_cached", cold)


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
        broker.topics.create("T", queue_nums=4)
        broker.offsets.commit("H", "T", 1, 7)
        disk.readers.clear()
        yield broker
        await broker.driver.drain()
        assert threading.main_thread() not in disk.readers


@pytest.mark.parametrize(("code", "header"), QUESTIONS, ids=lambda part: getattr(part, "name", ""))
async def test_a_cold_answer_is_the_hot_one_and_is_read_on_a_worker(
    broker: Broker, disk: Disk, code: Code, header: Any
) -> None:
    hot = call_with(code, header)
    expected = ask(broker, hot)
    await broker.driver.drain()
    expected = expected or answer_of(broker, hot)
    disk.is_cold = True
    call = call_with(code, header)
    ask(broker, call)
    assert last_answer(call) is None
    await broker.driver.drain()

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
    await broker.driver.drain()
    answer = last_answer(call)
    assert answer is not None
    assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_delayed_messages_are_read_on_a_worker(broker: Broker, disk: Disk) -> None:
    disk.is_cold = True
    clock_of(broker).advance(10_000)

    broker.delay.step(broker.clock.now_ms())
    broker.delay.step(broker.clock.now_ms())  # skips the level whose read is in flight
    assert broker.delay.delivered_count == 0
    await broker.driver.drain()
    assert broker.delay.delivered_count == COUNT // 2
    assert disk.readers

    disk.is_cold = False
    records = broker.store.get_messages("T", 1, COUNT // 2, 32).records
    assert [decode_record(record).body for record in records] == [
        b"%d" % number for number in range(0, COUNT, 2)
    ]


async def test_delivery_goes_on_when_the_disk_can_be_read_again(broker: Broker, disk: Disk) -> None:
    disk.is_cold = disk.is_broken = True
    clock_of(broker).advance(10_000)
    broker.delay.step(broker.clock.now_ms())
    await broker.driver.drain()
    assert broker.delay.delivered_count == 0

    disk.is_broken = False
    broker.delay.step(broker.clock.now_ms())
    await broker.driver.drain()
    assert broker.delay.delivered_count == COUNT // 2


async def test_slow_groups_are_measured_on_a_worker(broker: Broker, disk: Disk) -> None:
    data = ConsumerData(
        group_name="H",
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        subscription_data_set=[SubscriptionData(topic="T", sub_string="*")],
    )
    broker.consumers.register(data, Client(FakePeer(), "c", 0, 401, 0))
    group = broker.groups.find("H", auto_create=True)
    assert group is not None
    disk.is_cold = True
    disable_slow_groups(broker)
    await broker.driver.drain()
    disabled = broker.groups.get("H")
    assert disabled is not None
    assert not disabled.consume_enable


def endless(reads: list[int], size: int = 1) -> Lookup[None]:
    file: Any = type("Warm", (), {"read_cached": lambda *_: bytes(size)})()
    while len(reads) < 10 * TURN_READS_MAX:
        yield Read(file, 0, size)
        reads.append(1)


def unexpected(error: Exception) -> None:
    raise AssertionError(error)


async def test_a_long_search_yields_to_other_work(broker: Broker) -> None:
    reads: list[int] = []
    ended: list[None] = []
    broker.driver.reads.look_up(endless(reads), ended.append, unexpected)
    seen = 0
    while not ended:
        assert 0 < len(reads) - seen <= TURN_READS_MAX + 1
        seen = len(reads)
        await asyncio.sleep(0)
    assert len(reads) == 10 * TURN_READS_MAX


async def test_large_reads_use_up_the_bound_of_a_turn(broker: Broker) -> None:
    reads: list[int] = []
    ended: list[None] = []
    broker.driver.reads.look_up(endless(reads, TURN_BYTES_MAX // 4), ended.append, unexpected)
    assert len(reads) == 4
    await broker.driver.drain()
    assert ended == [None]


async def test_a_search_ends_with_its_connection(broker: Broker) -> None:
    reads: list[int] = []
    ended: list[None] = []
    peer = FakePeer()
    broker.driver.reads.look_up(endless(reads), ended.append, unexpected, peer=peer)
    peer.close()
    await broker.driver.drain()
    assert ended == []
    assert len(reads) <= TURN_READS_MAX


async def test_the_progress_of_all_groups_is_read_on_a_worker(broker: Broker, disk: Disk) -> None:
    broker.groups.put(SubscriptionGroupConfig(group_name="H"))
    disk.is_cold = True
    call = call_with(Code.GET_BROKER_CONSUME_STATS, GetBrokerConsumeStats())

    await progress.get_broker_consume_stats(broker, call)
    await broker.driver.drain()

    stats = decode_json(BrokerConsumeStats, bytes(answer_of(broker, call).body))
    parts = next(one["H"] for one in stats.consume_stats_list if "H" in one)
    pairs = {queue.queue_id: pair for queue, pair in parts[0].offset_table.items()}
    assert pairs[1].consumer_offset == 7
    assert pairs[1].last_timestamp > STORED_MS
    assert disk.readers
