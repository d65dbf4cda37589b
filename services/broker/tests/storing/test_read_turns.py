# SPDX-License-Identifier: Apache-2.0
"""Many searches at the same time take a bounded amount of memory until each is complete."""

import asyncio
import gc
import struct
import threading
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.broker import Broker
from cometmq.broker.handlers import HANDLERS
from cometmq.broker.handlers.deferred_answers import answer
from cometmq.broker.storing import read_turns, store_reads
from cometmq.broker.storing.store_reads import StoreReads
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.command import Call
from cometmq.remoting.commands.queries import QueryConsumeQueue, QueryMessage
from cometmq.remoting.commands.send import SendMessageV2
from cometmq.remoting.log import NO_LOG
from cometmq.runtime.worker import Worker
from cometmq.store.reads import PAUSE, Lookup, Pause, Read
from cometmq.testing.broker import FakePeer
from cometmq.testing.broker.stored import ask, call_with, stored_broker

MIB = 1 << 20
KIB = 1 << 10
LIMIT = 1_000
PART = 100
PARTS = 5
WHOLE = PART * PARTS
COUNT = 200
ENTRIES, BATCH = 4_000, 500
CONNECTIONS, REQUESTS = 4, 25  # per connection
TURNS = 400
FLOOD_LIMIT = 4 * MIB
LARGE = 100 * KIB
LARGE_COUNT = 24


class Total:
    """The sizes of partial results, as the searches know them."""

    def __init__(self) -> None:
        self.now = self.most = self.ended = 0

    def add(self, size: int) -> None:
        self.now += size
        self.most = max(self.most, self.now)


class Cold:
    """A file that is never in memory, or only after a number of reads."""

    def __init__(self) -> None:
        self.may_read = threading.Event()
        self.may_read.set()

    def read_cached(self, *_: int) -> None:
        return None

    def read(self, *_: int) -> bytes:
        self.may_read.wait(timeout=30)
        return b"x"


def growing(total: Total, file: Any = None) -> Lookup[None]:
    """Find a result in parts; with a file, read it before each part."""
    held = 0
    yield PAUSE
    try:
        for _ in range(PARTS):
            if file is not None:
                yield Read(file, 0, 1)
            held += PART
            total.add(PART)
            yield Pause(held)
        total.ended += 1
    finally:
        total.add(-held)


@pytest.fixture
async def reads(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StoreReads]:
    monkeypatch.setattr(read_turns, "HELD_BYTES_MAX", LIMIT)
    monkeypatch.setattr(store_reads, "TURN_READS_MAX", 1)  # each part waits for its turn
    worker = Worker("test")
    reads = StoreReads(worker, log=NO_LOG)
    yield reads
    await until(lambda: not reads.futures)
    worker.close()


def query(peer: FakePeer) -> Call[Any]:
    return peer.call(Code.QUERY_MESSAGE)


def begin(reads: StoreReads, lookup: Lookup[Any], peer: FakePeer) -> None:
    reads.look_up(lookup, lambda _: None, lambda _: None, call=query(peer))


async def until(is_over: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_over():  # noqa: ASYNC110  # the code under test knows no event
            await asyncio.sleep(0)


@pytest.mark.parametrize("is_cold", [False, True])
@pytest.mark.parametrize("addresses", [1, COUNT])
async def test_partial_results_stay_within_the_limit(
    reads: StoreReads, addresses: int, *, is_cold: bool
) -> None:
    total, file = Total(), Cold() if is_cold else None
    for number in range(COUNT):
        begin(reads, growing(total, file), FakePeer(f"10.0.0.{number % addresses}:{number}"))
    await until(lambda: total.ended == COUNT)
    # The last search below the limit, the one that is finished, and the reads on the thread.
    assert total.most <= LIMIT + WHOLE + PART * (1 + store_reads.RUNNING_MAX)
    assert total.most > LIMIT
    assert total.now == 0


async def test_searches_take_turns_below_the_limit(reads: StoreReads) -> None:
    total = Total()
    for number in range(LIMIT // WHOLE):
        begin(reads, growing(total), FakePeer(f"10.0.0.1:{number}"))
    await until(lambda: total.ended == 1)
    assert total.most > WHOLE + PART  # none is finished before the others begin


async def until_one_is_alone(reads: StoreReads, total: Total, file: Cold) -> list[FakePeer]:
    peers = [FakePeer(f"10.0.0.1:{number}") for number in range(COUNT)]
    for peer in peers:
        begin(reads, growing(total, file), peer)
    await until(lambda: reads._partial.lone is not None)
    return peers


async def test_the_others_go_on_if_the_connection_of_the_first_one_ends(reads: StoreReads) -> None:
    total, file, closed = Total(), Cold(), 0
    peers = await until_one_is_alone(reads, total, file)
    file.may_read.clear()
    while total.ended + closed < COUNT - PARTS:
        lone = reads._partial.lone
        if lone is not None:
            peer = next(it for it in peers if it is lone.peer)
            peer.close()
            reads.drop(peer)
            closed += 1
        file.may_read.set()
        await asyncio.sleep(0)
    await until(lambda: total.ended == COUNT - closed)
    assert closed > 1
    assert total.now == 0


async def test_the_others_go_on_if_the_first_one_waits_too_long(reads: StoreReads) -> None:
    total, file = Total(), Cold()
    await until_one_is_alone(reads, total, file)
    first = reads._partial.lone
    file.may_read.clear()
    reads.deadlines.wait_ms_max = 1
    await until(lambda: reads.deadlines.expired_count > 0 and first is not None and first.is_over)
    reads.deadlines.wait_ms_max = 60_000
    file.may_read.set()
    await until(lambda: total.ended + reads.deadlines.expired_count == COUNT)
    await until(lambda: not reads.futures)
    assert total.now == reads._partial.held_bytes == 0


async def test_reads_that_are_no_searches_do_not_wait_for_one(reads: StoreReads) -> None:
    total, file, found = Total(), Cold(), list[str]()
    await until_one_is_alone(reads, total, file)
    ended = total.ended
    reads.read(query(FakePeer("10.0.0.2:1")), lambda: "read", found.append)
    await until(lambda: found == ["read"])
    assert total.ended <= ended + 2


class Forgetful(FakePeer):
    """Drops answers, as a connection does that is closed because nobody reads them."""

    def reply(self, call: Call[Any], reply: Any) -> None:
        pass


@pytest.fixture
async def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    monkeypatch.setattr(store_reads, "TURN_READS_MAX", 2)  # no search ends in one turn
    monkeypatch.setattr(read_turns, "HELD_BYTES_MAX", FLOOD_LIMIT)
    async with stored_broker(tmp_path) as broker:
        yield broker


def send(broker: Broker, body: bytes, *, is_batch: bool = False) -> None:
    properties = "KEYS\x01shared"
    header = SendMessageV2("P", "T", "TBW102", 4, 1, 0, 0, 0, properties, batch=is_batch)
    code = Code.SEND_BATCH_MESSAGE if is_batch else Code.SEND_MESSAGE_V2
    assert ask(broker, call_with(code, header, body)).code == 0


async def peak_of_flood(broker: Broker, code: Code, header: Any) -> int:
    """Send a flood of requests, and close the connections some time later; return by how much the
    memory of the program has grown at most meanwhile.
    """
    peers = [Forgetful(f"10.0.0.1:{port}") for port in range(CONNECTIONS)]
    broker.driver.reads.deadlines.wait_ms_max = 60_000  # a slow machine must not end the flood
    gc.collect()
    tracemalloc.start()
    try:
        for peer in peers:
            for _ in range(REQUESTS):
                serve(broker, peer.call(code, header))
        for _ in range(TURNS):
            await asyncio.sleep(0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    for peer in peers:
        peer.close()
        broker.driver.reads.drop(peer)
    await broker.driver.drain()
    assert not broker.driver.reads.futures
    assert broker.driver.reads._partial.held_bytes == 0
    return peak


def serve(broker: Broker, call: Call[Any]) -> None:
    answer(broker, call, lambda: HANDLERS[call.code](broker, call))  # type: ignore[arg-type,return-value]


@pytest.mark.load
async def test_a_flood_of_long_lists_takes_little_memory(broker: Broker) -> None:
    """Without the limit, it would take 36 MiB."""
    empty = struct.pack(">5ih", 22, 0, 0, 0, 0, 0)
    for _ in range(ENTRIES // BATCH):
        send(broker, empty * BATCH, is_batch=True)
    header = QueryConsumeQueue("T", 1, 0, ENTRIES)
    assert await peak_of_flood(broker, Code.QUERY_CONSUME_QUEUE, header) < 3 * FLOOD_LIMIT


@pytest.mark.load
async def test_a_flood_of_searches_for_large_messages_takes_little_memory(broker: Broker) -> None:
    """Without the limit, it would take 30 MiB."""
    for _ in range(LARGE_COUNT):
        send(broker, bytes(LARGE))
    header = QueryMessage("T", "shared", LARGE_COUNT, 0, 1 << 62)
    assert await peak_of_flood(broker, Code.QUERY_MESSAGE, header) < 3 * FLOOD_LIMIT
