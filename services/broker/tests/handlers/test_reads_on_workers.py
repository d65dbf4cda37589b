# SPDX-License-Identifier: Apache-2.0

import asyncio
import errno
import gc
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.broker import Broker
from cometmq.broker.clients.producers import Client
from cometmq.broker.handlers import HANDLERS, progress
from cometmq.broker.handlers.deferred_answers import answer, stepwise
from cometmq.broker.storing import store_reads
from cometmq.broker.storing.store_reads import TURN_BYTES_MAX, TURN_READS_MAX, StoreReads
from cometmq.broker.testing import FakePeer
from cometmq.broker.testing.stored import ask, call_with, clock_of, last_answer, stored_broker
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
from cometmq.remoting.errors import SystemBusy
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.message.record import decode_record
from cometmq.runtime.incremental import Steps
from cometmq.runtime.testing.clock import FakeClock
from cometmq.runtime.worker import Worker
from cometmq.store.errors import DiskError
from cometmq.store.os_disk import OsFile
from cometmq.store.reads import PAUSE, Lookup, Read

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


class Disk:
    """Records which threads read the disk; while `is_cold` is set, no data is in memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_cold = False
        self.is_broken = False
        self.readers: list[threading.Thread] = []
        read = OsFile.read

        def note_read(file: OsFile, offset: int, count: int) -> bytes:
            self.readers.append(threading.current_thread())
            if self.is_broken:
                raise DiskError("read", file.path, errno.EIO)
            return read(file, offset, count)

        def cold(file: OsFile, offset: int, count: int) -> Any:
            return None if self.is_cold else read(file, offset, count)

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
        broker.tables.topics.create("T", queue_nums=4)
        broker.tables.offsets.commit("H", "T", 1, 7)
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
    assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_delayed_messages_are_read_on_a_worker(broker: Broker, disk: Disk) -> None:
    disk.is_cold = True
    clock_of(broker).advance(10_000)

    broker.deferred.delays.step(broker.clock.now_ms())
    broker.deferred.delays.step(broker.clock.now_ms())  # skips the level whose read is in flight
    assert broker.deferred.delays.counts.delivered == 0
    await broker.driver.drain()
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
    await broker.driver.drain()
    assert broker.deferred.delays.counts.delivered == 0

    disk.is_broken = False
    broker.deferred.delays.step(broker.clock.now_ms())
    await broker.driver.drain()
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
    await broker.driver.drain()
    disabled = broker.tables.groups.get("H")
    assert disabled is not None
    assert not disabled.consume_enable


def endless(reads: list[int], size: int = 1) -> Lookup[None]:
    file: Any = type("Warm", (), {"read_cached": lambda *_: bytes(size)})()
    while len(reads) < 10 * TURN_READS_MAX:
        yield Read(file, 0, size)
        reads.append(1)


def unexpected_result(result: object) -> None:
    raise AssertionError(result)


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
    broker.driver.reads.look_up(endless(reads), ended.append, unexpected, call=query(peer))
    peer.close()
    await broker.driver.drain()
    assert ended == []
    assert len(reads) <= TURN_READS_MAX


async def until(is_over: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_over():  # noqa: ASYNC110  # the code under test knows no event
            await asyncio.sleep(0)


def cold(file: Any, count: int) -> Lookup[int]:
    for _ in range(count):
        yield Read(file, 0, 1)
    return count


class SlowFile:
    """A file that is never in memory; its reads wait until they are allowed, for at most 5 s."""

    def __init__(self) -> None:
        self.may_read = threading.Semaphore(0)

    def read_cached(self, *_: int) -> None:
        return None

    def read(self, *_: int) -> bytes:
        self.may_read.acquire(timeout=5)
        return b"x"


def query(peer: FakePeer) -> Call[Any]:
    return peer.call(Code.QUERY_MESSAGE)


async def test_the_reads_of_one_peer_do_not_delay_those_of_another(broker: Broker) -> None:
    file, ended, reads = SlowFile(), list[str](), broker.driver.reads
    first, second = FakePeer(), FakePeer()
    for _ in range(500):
        reads.look_up(cold(file, 2), lambda _: ended.append("first"), unexpected, call=query(first))
    reads.look_up(cold(file, 2), lambda _: ended.append("second"), unexpected, call=query(second))
    file.may_read.release(12)
    await until(lambda: "second" in ended)
    assert len(ended) < 12
    file.may_read.release(1_000)
    await broker.driver.drain()
    assert ended.count("first") == 500


async def test_the_postponed_searches_of_peers_take_turns(broker: Broker) -> None:
    ended, reads = list[str](), broker.driver.reads
    first, second = FakePeer(), FakePeer()
    for _ in range(200):
        reads.look_up(endless([]), lambda _: ended.append("first"), unexpected, call=query(first))
    reads.look_up(endless([]), lambda _: ended.append("second"), unexpected, call=query(second))
    await until(lambda: "second" in ended)
    assert len(ended) < 10
    reads.drop(first)
    await broker.driver.drain()
    assert len(ended) < 20


async def test_more_connections_get_no_more_turns(broker: Broker) -> None:
    """If connections alone took turns, the search of the second address would be the 201st."""
    ended, reads = list[str](), broker.driver.reads
    for port in range(1, 201):
        call = query(FakePeer(f"10.0.0.1:{port}"))
        reads.look_up(endless([]), lambda _: ended.append("first"), unexpected, call=call)
    call = query(FakePeer("10.0.0.2:1"))
    reads.look_up(endless([]), lambda _: ended.append("second"), unexpected, call=call)
    await until(lambda: "second" in ended)
    assert len(ended) < 10
    await broker.driver.drain()
    assert len(ended) == 201


async def test_more_connections_get_no_more_turns_for_long_answers(broker: Broker) -> None:
    ended: list[str] = []

    def two_steps(address: str) -> Steps[None]:
        yield
        ended.append(address)

    async with asyncio.TaskGroup() as tasks:
        for address in (*(f"10.0.0.1:{port}" for port in range(1, 101)), "10.0.0.2:1"):
            call = query(FakePeer(address))
            tasks.create_task(stepwise(broker, call, two_steps(address)))
    assert ended.index("10.0.0.2:1") < 5


async def test_a_long_answer_is_not_refused_while_its_parts_are_made(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_reads, "TURN_READS_MAX", 1)  # each part waits for a turn of its own
    reads, loop = broker.driver.reads, asyncio.get_running_loop()
    reads.deadlines.wait_ms_max = 200
    until_s = loop.time() + 1

    def parts() -> Lookup[str]:
        while loop.time() < until_s:
            yield PAUSE
        return "all"

    found: list[str] = []
    reads.look_up(parts(), found.append, unexpected, call=query(FakePeer()))
    await until(lambda: bool(found))
    assert found == ["all"]


async def test_a_request_that_waits_too_long_is_refused(broker: Broker) -> None:
    file, errors, reads = SlowFile(), list[Exception](), broker.driver.reads
    reads.deadlines.wait_ms_max = 300
    began_s = asyncio.get_running_loop().time()
    for _ in range(50):
        reads.look_up(cold(file, 2), unexpected_result, errors.append, call=query(FakePeer()))
    own: list[int] = []
    reads.look_up(cold(file, 2), own.append, unexpected)
    await until(lambda: len(errors) == 50)
    waited_s = asyncio.get_running_loop().time() - began_s
    assert 0.3 <= waited_s < 30
    error = errors[-1]
    assert isinstance(error, SystemBusy)
    assert error.remark.startswith("[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control")
    assert reads.deadlines.expired_count == 50
    file.may_read.release(1_000)
    await broker.driver.drain()
    assert own == [2]  # the broker's own searches have no deadline


async def test_a_read_that_fails_after_its_request_was_refused_is_not_reported(
    broker: Broker,
) -> None:
    file, reads, loop = SlowFile(), broker.driver.reads, asyncio.get_running_loop()
    reported: list[Any] = []
    loop.set_exception_handler(lambda _, context: reported.append(context))
    reads.deadlines.wait_ms_max = 1

    def fail() -> None:
        file.read()
        raise DiskError("read", "a", errno.EIO)

    call = call_with(*QUESTIONS[0])
    reads.read(call, fail, unexpected_result)
    await until(lambda: reads.deadlines.expired_count == 1)
    file.may_read.release()
    await broker.driver.drain()
    gc.collect()

    assert last_answer(call).code == SystemBusy.CODE
    assert reported == []


async def test_the_waiting_reads_of_a_closed_connection_are_dropped(broker: Broker) -> None:
    file, ended, reads = SlowFile(), list[int](), broker.driver.reads
    peer = FakePeer()
    for _ in range(100):
        reads.look_up(cold(file, 1), ended.append, unexpected, call=query(peer))
    peer.close()
    reads.drop(peer)
    await asyncio.sleep(0)
    waiting = len(reads)
    file.may_read.release(100)
    await broker.driver.drain()
    assert ended == []
    assert waiting <= 2  # on the thread


async def test_the_reads_of_one_peer_leave_room_for_others(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_reads, "WAITING_MAX", COUNT_MAX)
    monkeypatch.setattr(store_reads, "TURN_S_MAX", 1e9)
    broker.driver.reads = StoreReads(Worker("test"), log=NO_LOG)
    file, errors, reads = SlowFile(), list[Exception](), broker.driver.reads
    peer = FakePeer()
    for _ in range(COUNT_MAX):
        reads.look_up(cold(file, 1), lambda _: None, errors.append, call=query(peer))
    assert len(errors) == pytest.approx(COUNT_MAX * 2 / 3, abs=3)
    assert all(isinstance(error, SystemBusy) for error in errors)
    count = len(errors)
    reads.look_up(cold(file, 1), lambda _: None, errors.append, call=query(FakePeer()))
    assert len(errors) == count
    file.may_read.release(COUNT_MAX)
    await broker.driver.drain()


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
    await broker.driver.drain()
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
    await broker.driver.drain()

    stats = decode_json(BrokerConsumeStats, bytes(answer_of(broker, call).body))
    parts = next(one["H"] for one in stats.consume_stats_list if "H" in one)
    pairs = {queue.queue_id: pair for queue, pair in parts[0].offset_table.items()}
    assert pairs[1].consumer_offset == 7
    assert pairs[1].last_timestamp > STORED_MS
    assert disk.readers
