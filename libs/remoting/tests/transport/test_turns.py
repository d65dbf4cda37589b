# SPDX-License-Identifier: Apache-2.0
"""Requests that take long delay the requests of other connections by a few of them, not by all."""

import time
from typing import Any

import pytest

from cometmq.remoting import OK, Call, RawCommand, Reply, RequestCode
from cometmq.remoting.commands.offsets import QueryConsumerOffsetReply
from cometmq.remoting.header import encode_frame

SLOW = RequestCode.GET_CONSUMER_LIST_BY_GROUP
FAST = RequestCode.QUERY_CONSUMER_OFFSET
SLOW_EXT = {"consumerGroup": "g"}
FAST_FRAME = encode_frame(
    RawCommand(code=FAST, ext={"consumerGroup": "g", "topic": "t", "queueId": "3"})
)
CONNECTIONS = 10
REQUESTS = 60


def slow_frames() -> bytes:
    return b"".join(
        encode_frame(RawCommand(code=SLOW, ext=SLOW_EXT, opaque=at)) for at in range(REQUESTS)
    )


def work() -> None:
    """Occupy the loop, as decoding a large request does."""
    end = time.monotonic() + 0.004
    while time.monotonic() < end:
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
    frames = slow_frames()
    for _ in range(3):
        _, flood = await connect_raw(port)
        for start in range(0, len(frames), 1_000):
            flood.write(frames[start : start + 1_000])
            await flood.drain()

    await eventually(lambda: len(served) == 3 * REQUESTS)
    for address in {address for address, _ in served}:
        assert [at for peer, at in served if peer == address] == list(range(REQUESTS))


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
