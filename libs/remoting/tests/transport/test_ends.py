# SPDX-License-Identifier: Apache-2.0
"""The ends of connections: what they leave behind, and how long many of them hold the loop."""

import asyncio
import contextlib
import gc
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from cometmq.remoting import Call, RawCommand, Reply, RequestCode
from cometmq.remoting.transport.flow.turns import ENDS_PER_TURN, Turns
from cometmq.remoting.transport.server import ANSWERS_MS
from cometmq.testing.remoting.frames import encode_frame

from .conftest import TLS_KINDS, StartServer, starter

QUERY = RequestCode.QUERY_CONSUMER_OFFSET
REQUEST = encode_frame(
    RawCommand(code=QUERY, opaque=1, ext={"consumerGroup": "g", "topic": "t", "queueId": "3"})
)
COUNT = 200
RESET = struct.pack("ii", 1, 0)
PARTS = ("cometmq.", "builtins.Session", "_ssl._SSLSocket", "ssl.SSLObject", "uvloop.loop.TCP")


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def living() -> Counter[str]:
    """Count the objects that connections consist of, by type."""
    found: Counter[str] = Counter()
    for kind, count in Counter(map(type, gc.get_objects())).items():
        found[f"{kind.__module__}.{kind.__qualname__}"] += count
    return Counter({name: count for name, count in found.items() if name.startswith(PARTS)})


async def later(_: None, call: Call[Any]) -> Reply:
    await asyncio.sleep(0)
    return Reply(body=bytes(call.body))


def ask(port: int, count: int, context: ssl.SSLContext | None) -> None:
    """Open connections one after the other, and end each after one answer."""
    for _ in range(count):
        with contextlib.ExitStack() as stack:
            raw = stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))
            one = raw if context is None else stack.enter_context(context.wrap_socket(raw))
            one.sendall(REQUEST)
            assert one.recv(4_096)


@pytest.mark.parametrize("is_tls", [False, True])
@pytest.mark.parametrize("kind", TLS_KINDS)
async def test_a_server_leaves_nothing_for_the_garbage_collector(
    start_plain_server: StartServer, eventually: Any, kind: str, is_tls: bool
) -> None:
    server, port = await starter(start_plain_server, kind)({QUERY: later})
    context = ssl._create_unverified_context() if is_tls else None

    async def connect(count: int) -> None:
        await asyncio.to_thread(ask, port, count, context)
        await eventually(lambda: not server.peers)

    await connect(10)
    with no_collections():
        before = living()
        await connect(COUNT)
        left = living() - before
    assert {name: count for name, count in left.items() if count >= COUNT // 10} == {}


@pytest.mark.parametrize("is_reset", [False, True])
@pytest.mark.parametrize("is_served", [False, True])
@pytest.mark.parametrize("kind", TLS_KINDS)
async def test_connections_that_end_together_hold_no_turn_of_the_loop(
    start_plain_server: StartServer, eventually: Any, kind: str, *, is_served: bool, is_reset: bool
) -> None:
    turn, ended = 0, []
    server, port = await starter(start_plain_server, kind)(
        {QUERY: later}, on_close=lambda _: ended.append(turn)
    )

    def connect(stack: contextlib.ExitStack) -> None:
        for _ in range(COUNT):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))
            if is_served:
                one.sendall(REQUEST)
                assert one.recv(4_096)
            if is_reset:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    with contextlib.ExitStack() as stack:
        await asyncio.to_thread(connect, stack)
        await eventually(lambda: len(server.peers) == COUNT)
    async with asyncio.timeout(60):
        while server.peers:
            await asyncio.sleep(0)
            turn += 1
    assert len(ended) == COUNT
    assert max(Counter(ended).values()) <= 2 * ENDS_PER_TURN  # a turn counts the end of the last


async def test_more_ends_than_a_flood_adds_are_worked_off() -> None:
    loop = asyncio.get_running_loop()
    faults: list[Any] = []
    loop.set_exception_handler(lambda _, context: faults.append(context["message"]))
    ended: list[int] = []
    turns: Any = Turns(loop, 64)
    count = 100 * ENDS_PER_TURN

    class Peer:
        def abort(self) -> None:
            ended.append(-1)

    def end(number: int) -> None:
        ended.append(number)
        if number == count - 1:
            raise RuntimeError("a bug")

    for number in range(count):
        turns.end(Peer(), partial(end, number))
    assert len(ended) == ENDS_PER_TURN
    async with asyncio.timeout(60):
        for added in range(count, 4 * count):  # less than a turn ends of many that wait
            turns.end(Peer(), partial(ended.append, added))
            if not added % (2 * ENDS_PER_TURN):
                await asyncio.sleep(0)
        while len(ended) <= 4 * count:  # noqa: ASYNC110  # turns are counted
            await asyncio.sleep(0)
    assert [number for number in ended if number >= 0] == list(range(4 * count))
    assert (ended.count(-1), faults) == (1, ["a connection cannot be ended"])


async def test_handlers_and_unread_answers_share_the_time_of_a_stop(
    start_server: StartServer,
) -> None:
    async def never(_: None, call: Call[Any]) -> Reply:
        if call.header.queue_id == 3:
            await asyncio.Event().wait()
        return Reply(body=bytes(8 << 20))

    server, port = await start_server({QUERY: never})
    read = encode_frame(
        RawCommand(code=QUERY, ext={"consumerGroup": "g", "topic": "t", "queueId": "4"})
    )
    with contextlib.ExitStack() as stack:
        for frame in (REQUEST, read):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))
            one.sendall(frame)
        async with asyncio.timeout(60):
            while not server.unread_bytes:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        start_s = asyncio.get_running_loop().time()
        await server.close(drain_ms=1_000)
    took_s = asyncio.get_running_loop().time() - start_s
    assert 1 <= took_s < 1 + 3 * ANSWERS_MS / 1000
