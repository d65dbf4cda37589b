# SPDX-License-Identifier: Apache-2.0
"""Requests that take long delay the requests of other connections by a few of them, not by all."""

import asyncio
import time
from typing import Any

import pytest

from cometmq.remoting import OK, Call, RawCommand, Reply, RequestCode
from cometmq.remoting.commands.offsets import QueryConsumerOffsetReply
from cometmq.remoting.transport.flow.turns import KNOWN, Pace
from cometmq.testing.remoting.frames import encode_frame

SLOW = RequestCode.GET_CONSUMER_LIST_BY_GROUP
FAST = RequestCode.QUERY_CONSUMER_OFFSET
SLOW_EXT = {"consumerGroup": "g"}
FAST_FRAME = encode_frame(
    RawCommand(code=FAST, ext={"consumerGroup": "g", "topic": "t", "queueId": "3"})
)
CONNECTIONS = 10
REQUESTS = 60
ORDERED = 20


def slow_frames(count: int = REQUESTS) -> bytes:
    return b"".join(
        encode_frame(RawCommand(code=SLOW, ext=SLOW_EXT, opaque=at)) for at in range(count)
    )


def work() -> None:
    """Occupy the loop, as decoding a large request does."""
    end = time.thread_time() + 0.004
    while time.thread_time() < end:
        pass


def slow_now(served: list[tuple[str, int]]) -> Any:
    def handle(_: None, call: Call[Any]) -> Reply:
        work()
        served.append((call.peer.address, call.opaque))
        return OK

    return handle


def slow_later(served: list[tuple[str, int]]) -> Any:
    async def handle(_: None, call: Call[Any]) -> Reply:
        work()
        served.append((call.peer.address, call.opaque))
        return OK

    return handle


@pytest.mark.load
@pytest.mark.parametrize("make", [slow_now, slow_later])
async def test_a_flood_of_slow_requests_delays_others_by_a_few(
    make: Any, start_server: Any, eventually: Any, connect_raw: Any
) -> None:
    served: list[tuple[str, int]] = []

    def fast(_: None, _call: Call[Any]) -> QueryConsumerOffsetReply:
        return QueryConsumerOffsetReply(offset=0)

    _, port = await start_server({SLOW: make(served), FAST: fast})
    reader, writer = await connect_raw(port)
    writer.write(FAST_FRAME)
    await reader.read(4096)
    for _ in range(CONNECTIONS):
        _, flood = await connect_raw(port)
        flood.write(slow_frames())
    await eventually(lambda: len(served) > 3 * CONNECTIONS)

    delays = []
    for _ in range(5):
        before = len(served)
        writer.write(FAST_FRAME)
        await reader.read(4096)
        delays.append(len(served) - before)

    assert len(served) < CONNECTIONS * REQUESTS  # the flood has lasted the whole time
    assert sorted(delays)[2] < 20


async def test_requests_that_wait_for_a_turn_stay_in_order(
    start_server: Any, eventually: Any, connect_raw: Any
) -> None:
    served: list[tuple[str, int]] = []
    _, port = await start_server({SLOW: slow_now(served)})
    frames = slow_frames(ORDERED)
    for _ in range(3):
        _, flood = await connect_raw(port)
        for start in range(0, len(frames), 1_000):
            flood.write(frames[start : start + 1_000])
            await flood.drain()

    await eventually(lambda: len(served) == 3 * ORDERED)
    for address in {address for address, _ in served}:
        assert [at for peer, at in served if peer == address] == list(range(ORDERED))


async def test_no_connection_starves(start_server: Any, eventually: Any, connect_raw: Any) -> None:
    """Slow connections get their turns while others flood the server with fast requests."""
    served: list[tuple[str, int]] = []
    count = 0

    def fast(_: None, _call: Call[Any]) -> QueryConsumerOffsetReply:
        nonlocal count
        count += 1
        return QueryConsumerOffsetReply(offset=0)

    _, port = await start_server({SLOW: slow_now(served), FAST: fast})
    _, slow = await connect_raw(port)
    slow.write(slow_frames())
    _, flood = await connect_raw(port)
    flood.write(FAST_FRAME * 20_000)

    await eventually(lambda: len(served) == REQUESTS)
    await eventually(lambda: count == 20_000)


@pytest.mark.load
async def test_work_that_follows_requests_is_charged_to_their_connections(
    start_server: Any, eventually: Any, connect_raw: Any
) -> None:
    """Requests return at once, but a commit after them takes long."""
    loop = asyncio.get_running_loop()
    staged = served = 0

    def slow(_: None, _call: Call[Any]) -> Reply:
        nonlocal staged
        staged += 1
        if staged == 1:
            loop.call_soon(commit)
        return OK

    def commit() -> None:
        nonlocal staged, served
        begun = time.thread_time()
        while time.thread_time() < begun + 0.0005 * staged:
            pass
        served += staged
        staged = 0
        server.charge(time.thread_time() - begun)

    def fast(_: None, _call: Call[Any]) -> QueryConsumerOffsetReply:
        return QueryConsumerOffsetReply(offset=0)

    server, port = await start_server({SLOW: slow, FAST: fast})
    reader, writer = await connect_raw(port)
    writer.write(FAST_FRAME)
    await reader.read(4096)
    for _ in range(CONNECTIONS):
        _, flood = await connect_raw(port)
        flood.write(slow_frames() * 20)
    # The portions shrink step by step.
    await eventually(lambda: served > 200 * CONNECTIONS)

    delays = []
    for _ in range(9):
        before = served
        writer.write(FAST_FRAME)
        await reader.read(4096)
        delays.append(served - before)

    assert served < CONNECTIONS * REQUESTS * 20  # the flood has lasted the whole time
    assert sorted(delays)[4] < 60


@pytest.mark.load
async def test_a_connection_that_the_system_interrupts_stays_fast(
    start_server: Any, eventually: Any, connect_raw: Any
) -> None:
    """On a busy machine, a fast request may take long, because the program does not run."""
    served: list[tuple[str, int]] = []
    peers: set[Any] = set()

    def interrupted(_: None, call: Call[Any]) -> QueryConsumerOffsetReply:
        peers.add(call.peer)
        time.sleep(0.003)
        return QueryConsumerOffsetReply(offset=0)

    _, port = await start_server({SLOW: slow_now(served), FAST: interrupted})
    for _ in range(CONNECTIONS):
        _, flood = await connect_raw(port)
        flood.write(slow_frames())
    await eventually(lambda: len(served) > CONNECTIONS)
    reader, writer = await connect_raw(port)
    for _ in range(10):
        writer.write(FAST_FRAME)
        await reader.read(4096)
    assert len(served) < CONNECTIONS * REQUESTS  # the flood has lasted the whole time
    assert next(iter(peers)).intake.pace.rank == KNOWN


def test_portions_shrink_while_a_connection_takes_long_and_grow_again() -> None:
    pace = Pace()
    portions = []
    for _ in range(8):  # each turn is short itself, and long with what follows it
        pace.note(0.0, 1)
        pace.note(0.01, 0)
        portions.append(64 // pace.divisor or 1)
    assert portions[0] == 64  # one long time proves little
    assert portions[-1] == 1
    assert not pace.is_steady
    for _ in range(20):
        pace.note(0.0, 1)
    assert (pace.divisor, pace.is_steady) == (1, True)
