# SPDX-License-Identifier: Apache-2.0
"""Reads and searches of the store take turns, by account or address and by connection; those that
wait too long are refused, and those of closed connections are dropped.
"""

import asyncio
import errno
import gc
import time
from collections.abc import Iterator
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any

import pytest

from cometmq.broker.broker import Broker
from cometmq.broker.handlers.deferred_answers import stepwise
from cometmq.broker.storing import read_turns, store_reads
from cometmq.broker.storing.read_turns import REFUSED_S, TURN_EXPIRED_MAX
from cometmq.broker.storing.store_reads import TURN_BYTES_MAX, TURN_READS_MAX, StoreReads
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.commands.queries import QueryMessage
from cometmq.remoting.errors import SystemBusy
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.transport.flow.turns import SLOW_S
from cometmq.runtime.incremental import Steps
from cometmq.runtime.worker import Worker
from cometmq.store.errors import DiskError
from cometmq.store.reads import PAUSE, Lookup, Read
from cometmq.testing.broker import FakePeer
from cometmq.testing.broker.stored import call_with, last_answer

from .reading import DEADLINE_S, SlowFile, drained, query, until

COUNT_MAX = 1_000


@pytest.fixture
def file(broker: Broker) -> Iterator[SlowFile]:
    file = SlowFile()
    yield file
    file.open()  # before the broker waits for the reads


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
    async with asyncio.timeout(DEADLINE_S):
        while not ended:
            assert 0 < len(reads) - seen <= TURN_READS_MAX + 1
            seen = len(reads)
            await asyncio.sleep(0)
    assert len(reads) == 10 * TURN_READS_MAX


async def test_searches_and_refusals_are_charged_to_the_connection(
    broker: Broker, file: SlowFile
) -> None:
    """Otherwise, connections whose requests only begin long searches would count as fast."""

    def busy() -> Lookup[None]:
        for _ in range(3):
            yield PAUSE
            end_s = time.thread_time() + 2 * SLOW_S
            while time.thread_time() < end_s:
                pass

    peer, ended, reads = FakePeer(), list[object](), broker.driver.reads
    reads.look_up(busy(), ended.append, unexpected, call=query(peer))
    await until(lambda: bool(ended))
    assert peer.charged_s >= 2 * SLOW_S
    reads.deadlines.wait_ms_max, peer.charged_s = 0, 0.0
    for _ in range(2):
        reads.look_up(cold(file, 2), unexpected_result, ended.append, call=query(peer))
    await until(lambda: len(ended) == 3)
    assert peer.charged_s >= 2 * REFUSED_S


async def test_large_reads_use_up_the_bound_of_a_turn(broker: Broker) -> None:
    reads: list[int] = []
    ended: list[None] = []
    broker.driver.reads.look_up(endless(reads, TURN_BYTES_MAX // 4), ended.append, unexpected)
    assert len(reads) == 4
    await drained(broker)
    assert ended == [None]


async def test_a_search_ends_with_its_connection(broker: Broker) -> None:
    reads: list[int] = []
    ended: list[None] = []
    peer = FakePeer()
    broker.driver.reads.look_up(endless(reads), ended.append, unexpected, call=query(peer))
    peer.close()
    await drained(broker)
    assert ended == []
    assert len(reads) <= TURN_READS_MAX


def cold(file: Any, count: int) -> Lookup[int]:
    for _ in range(count):
        yield Read(file, 0, 1)
    return count


async def test_the_reads_of_one_peer_do_not_delay_those_of_another(
    broker: Broker, file: SlowFile
) -> None:
    ended, reads = list[str](), broker.driver.reads
    first, second = FakePeer(), FakePeer()
    for _ in range(500):
        reads.look_up(cold(file, 2), lambda _: ended.append("first"), unexpected, call=query(first))
    reads.look_up(cold(file, 2), lambda _: ended.append("second"), unexpected, call=query(second))
    file.allow(12)
    await until(lambda: "second" in ended)
    assert len(ended) < 12
    file.open()
    await drained(broker)
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
    await drained(broker)
    assert len(ended) < 20


async def test_a_connection_s_searches_are_finished_in_order(broker: Broker) -> None:
    """If they took turns, a flood of them would end all at once, long after its first request."""
    ended, reads = list[int](), broker.driver.reads
    begun: list[list[int]] = [[] for _ in range(100)]
    peer = FakePeer()

    def numbered(number: int) -> Lookup[int]:
        yield from endless(begun[number])
        return number

    for number in range(len(begun)):
        reads.look_up(numbered(number), ended.append, unexpected, call=query(peer))
    await until(lambda: bool(ended))
    assert ended == [0]
    assert not any(begun[20:]), "a few more begin where the first takes much processor time"
    await drained(broker)
    assert sorted(ended) == ended


async def test_a_flood_is_refused_in_several_turns(broker: Broker, file: SlowFile) -> None:
    errors, per_turn, reads = list[Exception](), list[int](), broker.driver.reads
    reads.deadlines.wait_ms_max = 50
    for _ in range(500):
        reads.look_up(cold(file, 1), unexpected_result, errors.append, call=query(FakePeer()))
    async with asyncio.timeout(DEADLINE_S):
        while len(errors) < 500:
            refused = len(errors)
            await asyncio.sleep(0)
            per_turn.append(len(errors) - refused)
    assert max(per_turn) <= TURN_EXPIRED_MAX


async def test_a_long_answer_whose_turn_does_not_come_is_refused(broker: Broker) -> None:
    ended, refused = list[int](), list[str]()
    deadlines = broker.driver.reads.deadlines
    deadlines.wait_ms_max = 100
    loop = asyncio.get_running_loop()
    peer = FakePeer()

    def long(number: int) -> Steps[None]:
        until_s = loop.time() + 0.25
        while loop.time() < until_s:
            yield
        ended.append(number)

    async def ask(number: int) -> None:
        try:
            await stepwise(broker, query(peer), long(number))
        except SystemBusy as error:
            refused.append(error.remark)

    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        for number in range(50):
            tasks.create_task(ask(number))
    assert ended == [0]
    assert len(refused) == deadlines.expired_count == 49
    assert refused[0].startswith("[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control")
    assert broker.pending.incremental.waiting_count == 0
    await stepwise(broker, query(peer), long(50))
    assert ended == [0, 50]


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
    await drained(broker)
    assert len(ended) == 201


async def test_the_long_searches_of_an_owner_are_finished_one_after_another(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When 50 connections took turns with one heavy search each, all were refused after 3 s."""
    monkeypatch.setattr(read_turns, "LONG_S", 0)
    ended, reads = list[int](), broker.driver.reads
    begun: list[list[int]] = [[] for _ in range(50)]

    def numbered(number: int) -> Lookup[int]:
        yield from endless(begun[number])
        return number

    for number in range(len(begun)):
        call = query(FakePeer(f"10.0.0.1:{number + 1}"))
        reads.look_up(numbered(number), ended.append, unexpected, call=call)
    await until(lambda: bool(ended))
    assert len(ended) == 1
    others = sorted(len(one) for number, one in enumerate(begun) if number not in ended)
    assert others[-3] <= 2 * TURN_READS_MAX
    await drained(broker)
    assert len(ended) == len(begun)


async def test_a_flood_of_long_searches_keeps_no_other_connection_of_its_owner_waiting(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_turns, "LONG_S", 0)
    ended, reads = list[str](), broker.driver.reads
    flood, other = FakePeer("10.0.0.1:1"), FakePeer("10.0.0.1:2")
    for _ in range(100):
        reads.look_up(endless([]), lambda _: ended.append("flood"), unexpected, call=query(flood))
    reads.look_up(endless([]), lambda _: ended.append("other"), unexpected, call=query(other))
    await until(lambda: "other" in ended)
    assert len(ended) < 5
    await drained(broker)
    assert len(ended) == 101


async def test_short_cold_searches_wait_for_no_long_ones_of_their_owner(
    broker: Broker, file: SlowFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_count, connection_count = 3, 20
    monkeypatch.setattr(read_turns, "LONG_COUNT", long_count)
    ended, reads = list[str](), broker.driver.reads
    for port in range(1, connection_count + 1):
        call = query(FakePeer(f"10.0.0.1:{port}"))
        reads.look_up(cold(file, 40), lambda _: ended.append("long"), unexpected, call=call)
    file.allow(connection_count * long_count + 4 * 40)  # four are under way, because of the thread
    await until(lambda: bool(ended))
    assert len(ended) <= 5
    call = query(FakePeer("10.0.0.1:99"))
    reads.look_up(cold(file, 2), lambda _: ended.append("short"), unexpected, call=call)
    file.allow(10)
    await until(lambda: "short" in ended)
    assert ended.count("long") <= 5
    file.open()
    await drained(broker)
    assert ended.count("long") == connection_count


async def test_a_long_search_ends_with_its_connection(
    broker: Broker, file: SlowFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_turns, "LONG_COUNT", 1)
    ended, reads = list[int](), broker.driver.reads
    peers = [FakePeer(f"10.0.0.1:{port}") for port in range(1, 10)]
    lookups = [cold(file, 3) for _ in peers]
    for peer, lookup in zip(peers, lookups, strict=True):
        reads.look_up(lookup, ended.append, unexpected, call=query(peer))
    for peer in peers[1:]:
        peer.close()
        reads.drop(peer)
    # Their results so far are freed at once.
    assert [getgeneratorstate(one) for one in lookups[2:]] == (len(peers) - 2) * [GEN_CLOSED]
    file.open()
    await drained(broker)
    assert ended == [3]


async def test_more_connections_get_no_more_turns_for_long_answers(broker: Broker) -> None:
    ended: list[str] = []

    def two_steps(address: str) -> Steps[None]:
        yield
        ended.append(address)

    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
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


async def test_a_request_that_waits_too_long_is_refused(broker: Broker, file: SlowFile) -> None:
    errors, reads = list[Exception](), broker.driver.reads
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
    file.open()
    await drained(broker)
    assert own == [2]  # the broker's own searches have no deadline


async def test_a_read_that_fails_after_its_request_was_refused_is_not_reported(
    broker: Broker, file: SlowFile
) -> None:
    reads, loop = broker.driver.reads, asyncio.get_running_loop()
    reported: list[Any] = []
    loop.set_exception_handler(lambda _, context: reported.append(context))
    reads.deadlines.wait_ms_max = 1

    def fail() -> None:
        file.read()
        raise DiskError("read", "a", errno.EIO)

    call = call_with(Code.QUERY_MESSAGE, QueryMessage("T", "shared", 32, 0, 1 << 62))
    reads.read(call, fail, unexpected_result)
    await until(lambda: reads.deadlines.expired_count == 1)
    file.allow(1)
    await drained(broker)
    gc.collect()

    assert last_answer(call).code == SystemBusy.CODE
    assert reported == []


async def test_the_waiting_reads_of_a_closed_connection_are_dropped(
    broker: Broker, file: SlowFile
) -> None:
    ended, reads = list[int](), broker.driver.reads
    peer = FakePeer()
    for _ in range(100):
        reads.look_up(cold(file, 1), ended.append, unexpected, call=query(peer))
    peer.close()
    reads.drop(peer)
    await asyncio.sleep(0)
    waiting = len(reads)
    file.open()
    await drained(broker)
    assert ended == []
    assert waiting <= 2  # on the thread


async def test_the_reads_of_one_peer_leave_room_for_others(
    broker: Broker, file: SlowFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_reads, "WAITING_MAX", COUNT_MAX)
    monkeypatch.setattr(store_reads, "TURN_S_MAX", 1e9)
    worker = Worker("test")
    broker.driver.reads = StoreReads(worker, log=NO_LOG)
    errors, reads = list[Exception](), broker.driver.reads
    peer = FakePeer()
    for _ in range(COUNT_MAX):
        reads.look_up(cold(file, 1), lambda _: None, errors.append, call=query(peer))
    running = store_reads.RUNNING_MAX
    assert len(errors) == pytest.approx(COUNT_MAX * 2 / 3 - running, abs=3)
    assert all(isinstance(error, SystemBusy) for error in errors)
    count = len(errors)
    reads.look_up(cold(file, 1), lambda _: None, errors.append, call=query(FakePeer()))
    assert len(errors) == count
    file.open()
    await drained(broker)
    worker.close()
