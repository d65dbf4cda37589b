# SPDX-License-Identifier: Apache-2.0
"""Floods of requests and answers that are not read are bounded, and disturb no other connection."""

import asyncio
import socket
import statistics
import struct
from collections import Counter
from typing import Any

import msgspec
import pytest

from cometmq.remoting import OK, Call, RawCommand, Reply
from cometmq.remoting.commands.offsets import QueryConsumerOffsetReply
from cometmq.remoting.errors import (
    SystemBusy,
)
from cometmq.remoting.frame import FrameReader
from cometmq.remoting.raw import FLAG_ONEWAY, FLAG_REPLY
from cometmq.remoting.transport import ServerSettings
from cometmq.remoting.transport.dispatch import CROWD_SHARES
from cometmq.remoting.transport.flow.connected import CROWD
from cometmq.testing.remoting.frames import encode_frame

from .queries import ANSWER, EXT, HEADER, QUERY, REQUEST, SMALL


async def test_requests_without_reading_stop_being_served(
    start_server: Any, eventually: Any, connect_raw: Any
) -> None:
    served: list[int] = []

    def query(_: None, call: Call[Any]) -> Reply:
        served.append(call.opaque)
        return ANSWER

    settings = msgspec.structs.replace(SMALL, stall_timeout_ms=1_000)
    server, port = await start_server({QUERY: query}, settings)
    _, writer = await connect_raw(port, reads=False)
    await eventually(lambda: server.peers)
    (peer,) = server.peers
    writer.write(REQUEST * 2000)

    await eventually(lambda: served and not peer.is_writable)
    count = len(served)
    assert count < 500  # out of 2,000: as many as the buffers hold
    assert server.stats().buffered_bytes < 2 * 1024 * 1024

    await eventually(lambda: server.stats().stalled_closed == 1)
    assert len(served) < 500
    await eventually(lambda: not server.peers)


async def test_a_flood_is_served_in_portions(
    start_server: Any, eventually: Any, connect_raw: Any
) -> None:
    """Other connections are served between two portions; no request is lost or reordered."""
    loop = asyncio.get_running_loop()
    portions: list[list[int]] = [[]]

    def next_turn() -> None:
        if portions[-1]:
            portions.append([])

    def query(_: None, call: Call[Any]) -> QueryConsumerOffsetReply:
        if not portions[-1]:
            loop.call_soon(next_turn)
        portions[-1].append(call.opaque)
        return QueryConsumerOffsetReply(offset=0)

    _, port = await start_server({QUERY: query}, ServerSettings(calls_per_turn_max=10))
    _, writer = await connect_raw(port)
    flood = [encode_frame(RawCommand(code=QUERY, ext=EXT, opaque=at)) for at in range(1005)]
    writer.write(b"".join(flood))

    await eventually(lambda: sum(map(len, portions)) == len(flood))
    assert [opaque for portion in portions for opaque in portion] == list(range(len(flood)))
    assert max(map(len, portions)) <= 20  # the rest of one read and a portion of the next


@pytest.mark.parametrize(
    "frame",
    [RawCommand(code=0, flag=FLAG_REPLY), RawCommand(code=QUERY, flag=FLAG_ONEWAY)],
    ids=["answers", "without-fields"],
)
async def test_frames_that_no_handler_gets_are_decoded_in_portions(
    start_server: Any, eventually: Any, connect_raw: Any, frame: RawCommand
) -> None:
    """Decoding them takes as long as serving requests: a chunk may contain thousands."""
    loop, count, answered = asyncio.get_running_loop(), 2_000, asyncio.Event()
    waiting = 0

    def turn() -> None:
        nonlocal waiting
        waiting += any(peer.buffered_bytes for peer in server.peers)
        if not answered.is_set():
            loop.call_soon(turn)

    def query(_: None, call: Call[Any]) -> QueryConsumerOffsetReply:
        answered.set()
        return QueryConsumerOffsetReply(offset=0)

    server, port = await start_server({QUERY: query}, ServerSettings(calls_per_turn_max=10))
    _, writer = await connect_raw(port)
    await eventually(lambda: server.peers)
    turn()
    writer.write(encode_frame(frame) * count + REQUEST)
    await eventually(answered.is_set)
    assert waiting >= count // 20
    await eventually(lambda: not server.stats().buffered_bytes)


async def test_requests_that_wait_for_their_turn_count_as_memory(
    start_server: Any, eventually: Any, connect_raw: Any
) -> None:
    loop = asyncio.get_running_loop()
    seen: list[int] = []

    def query(_: None, call: Call[Any]) -> QueryConsumerOffsetReply:
        loop.call_soon(lambda: seen.append(call.peer.buffered_bytes))
        return QueryConsumerOffsetReply(offset=0)

    server, port = await start_server({QUERY: query}, ServerSettings(calls_per_turn_max=1))
    _, writer = await connect_raw(port)
    writer.write(REQUEST * 300)
    await eventually(lambda: len(seen) == 300)
    assert max(seen) > 290 * len(REQUEST)
    assert server.stats().buffered_bytes < 1024


async def test_clients_that_come_together_are_accepted_together(
    start_server: Any, eventually: Any
) -> None:
    """A busy loop that accepted one connection per turn would be too slow."""
    loop = asyncio.get_running_loop()
    server, port = await start_server({QUERY: lambda *_: ANSWER}, SMALL)
    turns = 0

    def turn() -> None:
        nonlocal turns
        if server.stats().connections < 256:
            turns += 1
            loop.call_soon(turn)

    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(256)]
    turn()
    await eventually(lambda: server.stats().connections == len(clients))
    for client in clients:
        client.close()
    assert turns < 64


async def test_many_floods_share_what_few_may_have(
    start_server: Any, eventually: Any, connect_raw: Any
) -> None:
    """A peer with a single request waits only briefly, no matter how many peers have a backlog."""
    loop = asyncio.get_running_loop()
    turns: list[int] = [0]
    served: dict[Any, list[int]] = {}

    def next_turn() -> None:
        turns.append(0)

    def query(_: None, call: Call[Any]) -> QueryConsumerOffsetReply:
        if not turns[-1]:
            loop.call_soon(next_turn)
        turns[-1] += 1
        served.setdefault(call.peer, []).append(call.opaque)
        return QueryConsumerOffsetReply(offset=0)

    server, port = await start_server({QUERY: query}, ServerSettings(calls_per_turn_max=64))
    peers = [await connect_raw(port) for _ in range(32)]
    await eventually(lambda: server.stats().connections == len(peers))
    flood = [encode_frame(RawCommand(code=QUERY, ext=EXT, opaque=at)) for at in range(640)]
    for _, writer in peers:
        writer.write(b"".join(flood))

    await eventually(lambda: sum(turns) == len(flood) * len(peers))
    assert all(opaques == list(range(len(flood))) for opaques in served.values())
    assert max(turns) < 64 * len(peers) * 3 // 4
    assert statistics.median(turns) <= 16 * len(peers)


async def test_a_slow_reader_gets_everything(start_server: Any, connect_raw: Any) -> None:
    answers = iter(range(2000))
    server, port = await start_server(
        {QUERY: lambda _, call: Reply(body=struct.pack(">I", next(answers)) * 5000)},
        msgspec.structs.replace(SMALL, stall_timeout_ms=5_000),
    )
    reader, writer = await connect_raw(port)
    writer.write(REQUEST * 300)
    frames = FrameReader()
    seen: list[int] = []
    while len(seen) < 300:
        data = await asyncio.wait_for(reader.read(100_000), 60)
        seen += [struct.unpack(">I", body[:4])[0] for _, _, body in frames.feed(data)]

    assert seen == list(range(300))
    assert server.stats().stalled_closed == 0


async def test_answers_held_for_a_peer_that_does_not_read_end_it(
    start_server: Any, eventually: Any, connect_raw: Any
) -> None:
    held: list[Call[Any]] = []
    server, port = await start_server({QUERY: lambda _, call: held.append(call)}, SMALL)
    _, writer = await connect_raw(port, reads=False)
    writer.write(REQUEST * 1000)
    await eventually(lambda: len(held) == 1000)

    for call in held:
        call.answer(ANSWER)
        if len(held) % 10 == 0:
            server.writes.flush()

    await eventually(lambda: not server.peers)
    assert server.stats().overflow_closed == 1
    assert server.stats().in_flight == 0


async def test_all_connections_together_are_bounded(
    start_server: Any, eventually: Any, connect_raw: Any
) -> None:
    settings = ServerSettings(buffered_bytes_max=4 * 1024 * 1024, check_interval_ms=20)
    server, port = await start_server({QUERY: lambda _, call: OK}, settings)
    good_reader, good = await connect_raw(port)
    writers = []
    for _ in range(3):
        _, writer = await connect_raw(port)
        writer.write(struct.pack(">II", 16 * 1024 * 1024, 100) + bytes(2 * 1024 * 1024))
        writers.append(writer)

    await eventually(lambda: server.stats().overflow_closed)
    await eventually(lambda: server.stats().buffered_bytes <= 4 * 1024 * 1024)
    good.write(REQUEST)
    assert await asyncio.wait_for(good_reader.read(10), 60)


async def test_connections_without_a_served_request_make_room_first(
    start_server: Any, eventually: Any, connect_raw: Any
) -> None:
    settings = ServerSettings(buffered_bytes_max=4 * 1024 * 1024, check_interval_ms=3_600_000)
    server, port = await start_server({QUERY: lambda _, call: OK}, settings)
    begun = struct.pack(">II", 16 * 1024 * 1024, 100)
    reader, writer = await connect_raw(port)
    writer.write(REQUEST)
    assert await reader.read(10)
    writer.write(begun + bytes(2 * 1024 * 1024))
    await eventually(lambda: server.stats().frame_bytes > 2 * 1024 * 1024)
    for _ in range(3):
        _, stranger = await connect_raw(port)
        stranger.write(begun + bytes(1024 * 1024))
    await eventually(lambda: server.stats().overflow_closed)
    assert any(peer.is_served for peer in server.peers)


@pytest.mark.parametrize(("count_max", "more_bytes"), [(2, 0), (22, 40 << 10)])
async def test_slow_handlers_of_closed_connections_count_until_they_end(
    start_server: Any,
    new_client: Any,
    connect_raw: Any,
    eventually: Any,
    count_max: int,
    more_bytes: int,
) -> None:
    """Otherwise a peer could pile up tasks by reconnecting; large requests count as several."""
    release = asyncio.Event()
    started: list[Call[Any]] = []

    async def slow(_: None, call: Call[Any]) -> QueryConsumerOffsetReply:
        started.append(call)
        await release.wait()
        return QueryConsumerOffsetReply(offset=1)

    request = encode_frame(RawCommand(code=QUERY, ext={**EXT, "more": "x" * more_bytes}))
    server, port = await start_server({QUERY: slow}, ServerSettings(in_flight_max=count_max))
    for count in (1, 2):
        _, writer = await connect_raw(port)
        writer.write(request)
        await eventually(lambda count=count: len(started) == count)
        writer.transport.abort()
    await eventually(lambda: not server.peers)
    assert server.stats().in_flight == 0
    client = new_client()
    address = f"127.0.0.1:{port}"

    with pytest.raises(SystemBusy):
        await client.invoke(
            address, QUERY, HEADER, timeout_ms=60_000, ext={"more": "x" * more_bytes}
        )
    assert len(started) == 2
    assert server.stats().in_flight == 0

    release.set()
    await eventually(lambda: not server._tasks)
    response = await client.invoke(address, QUERY, HEADER, timeout_ms=60_000)
    assert response.header.offset == 1


async def test_large_requests_that_wait_count_as_several(
    start_server: Any, connect_raw: Any, eventually: Any
) -> None:
    """A connection may have 16,384 requests in flight, each with a header of 64 KB."""
    waiting: list[Call[Any]] = []
    settings = ServerSettings(in_flight_per_connection_max=40)
    server, port = await start_server({QUERY: lambda _, call: waiting.append(call)}, settings)
    large = encode_frame(RawCommand(code=QUERY, ext={**EXT, "more": "x" * 40 * 1024}))
    reader, writer = await connect_raw(port)
    for count in range(1, 5):
        writer.write(large)
        await eventually(lambda count=count: len(waiting) == count)
        await eventually(lambda count=count: server.stats().in_flight == 10 * count)
    writer.write(large)

    head = await asyncio.wait_for(reader.read(65_536), 60)

    assert b'"code":2' in head
    assert len(waiting) == 4
    waiting.pop().answer(QueryConsumerOffsetReply(offset=2))
    await eventually(lambda: server.stats().in_flight == 30)
    for call in waiting:
        call.answer(QueryConsumerOffsetReply(offset=3))
    await eventually(lambda: server.stats().in_flight == 0)


@pytest.mark.parametrize(("connections", "each"), [(20, 500), (240, 60)])
async def test_slow_handlers_of_a_crowd_wait_as_bytes(
    start_server: Any, eventually: Any, connect_raw: Any, connections: int, each: int
) -> None:
    """A task takes 4 KiB; a flood from 200 connections took 560 MB, and others waited for 13 s."""
    made: Counter[str] = Counter()
    may_end = asyncio.Event()

    async def answer() -> Reply:
        await may_end.wait()
        return OK

    def query(_: None, call: Call[Any]) -> Any:
        made[call.peer.address] += 1
        return answer()

    server, port = await start_server({QUERY: query}, ServerSettings())
    streams = [await connect_raw(port) for _ in range(connections)]
    await eventually(lambda: len(server.peers) == connections)
    for _, writer in streams:
        writer.write(REQUEST * each)

    def is_settled() -> bool:
        return all(it.reading.pauses & CROWD or made[it.address] == each for it in server.peers)

    await eventually(is_settled)
    assert made.total() <= min(count + connections * share for count, share in CROWD_SHARES)

    may_end.set()
    for reader, _ in streams:
        for _ in range(each):
            (size,) = struct.unpack(">I", await reader.readexactly(4))
            await reader.readexactly(size)
    assert made.total() == connections * each
    assert not any(peer.reading.pauses & CROWD for peer in server.peers)
