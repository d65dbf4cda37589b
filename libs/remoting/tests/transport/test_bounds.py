# SPDX-License-Identifier: Apache-2.0
"""Peers that stay silent, send garbage or go use few resources and disturb no others."""

import asyncio
import random
import struct
from typing import Any

import msgspec
import pytest

from cometmq.remoting import OK, Call, RawCommand, Reply, RequestCode, Serialization
from cometmq.remoting.commands.offsets import QueryConsumerOffsetReply
from cometmq.remoting.errors import (
    ConnectFailed,
    ConnectionLost,
    Overloaded,
    ServerError,
)
from cometmq.remoting.transport import ClientSettings, ServerSettings
from cometmq.testing.remoting.frames import encode_frame

from .queries import ANSWER, EXT, HEADER, QUERY, REQUEST, SMALL


async def is_ended(reader: asyncio.StreamReader) -> bool:
    """Return whether the server has closed the connection without sending anything more."""
    try:
        return await asyncio.wait_for(reader.read(1), 60) == b""
    except ConnectionError:
        return True


async def test_an_idle_connection_ends_although_its_peer_reads_nothing(
    start_server: Any, eventually: Any, connect_raw: Any
) -> None:
    """Closing waits until the output is sent, but this peer reads none, so the server aborts."""
    roomy = msgspec.structs.replace(
        SMALL, write_high_water_bytes=64 * 1024 * 1024, idle_timeout_ms=200
    )
    server, port = await start_server({QUERY: lambda *_: ANSWER}, roomy)
    _, writer = await connect_raw(port, reads=False)
    writer.write(REQUEST * 200)
    await eventually(lambda: server.stats().idle_closed == 1)
    await eventually(lambda: not server.peers)
    assert server.stats().idle_closed == 1


@pytest.mark.parametrize(
    "garbage",
    [
        b"SSH-2.0-x\r\n",
        struct.pack(">II", 0xFFFFFFFF, 0),
        struct.pack(">II", 17 * 1024 * 1024, 0),
        struct.pack(">II", 6, 2) + b"{}",
        struct.pack(">II", 6, 7 << 24 | 2) + b"{}",
        struct.pack(">II", 6, 1 << 24 | 2) + b"{}",
        struct.pack(">II", 100_004, 100_000) + b"[" * 100_000,
    ],
)
async def test_garbage_ends_its_own_connection_only(
    start_server: Any, new_client: Any, garbage: bytes, connect_raw: Any
) -> None:
    server, port = await start_server({QUERY: lambda _, call: QueryConsumerOffsetReply(offset=1)})
    client = new_client()
    address = f"127.0.0.1:{port}"
    await client.invoke(address, QUERY, HEADER, timeout_ms=60_000)
    reader, writer = await connect_raw(port)

    writer.write(garbage)

    assert await is_ended(reader)
    assert server.stats().protocol_errors == 1
    await client.invoke(address, QUERY, HEADER, timeout_ms=60_000)
    assert server.stats().connections_opened == 2


async def test_garbage_behind_a_request_ends_the_connection(
    start_server: Any, connect_raw: Any
) -> None:
    _, port = await start_server({QUERY: lambda _, call: OK})
    reader, writer = await connect_raw(port)

    writer.write(REQUEST + struct.pack(">II", 0, 0))

    assert await is_ended(reader)


async def test_an_idle_connection_is_closed(start_server: Any, connect_raw: Any) -> None:
    server, port = await start_server({}, ServerSettings(idle_timeout_ms=50, check_interval_ms=20))
    reader, _ = await connect_raw(port)

    assert await is_ended(reader)
    assert server.stats().idle_closed == 1


async def test_one_connection_too_many_is_ended(
    start_server: Any, new_client: Any, connect_raw: Any
) -> None:
    server, port = await start_server(
        {QUERY: lambda _, call: QueryConsumerOffsetReply(offset=1)},
        ServerSettings(connections_max=1),
    )
    client = new_client()
    address = f"127.0.0.1:{port}"
    await client.invoke(address, QUERY, HEADER, timeout_ms=60_000)
    reader, _ = await connect_raw(port)

    assert await is_ended(reader)
    assert server.stats().connections_refused == 1
    await client.invoke(address, QUERY, HEADER, timeout_ms=60_000)


async def test_a_connection_that_was_never_served_makes_room(
    start_server: Any, new_client: Any, connect_raw: Any
) -> None:
    server, port = await start_server(
        {QUERY: lambda _, call: QueryConsumerOffsetReply(offset=1)},
        ServerSettings(connections_max=2),
    )
    address = f"127.0.0.1:{port}"
    first, second = new_client(), new_client()
    await first.invoke(address, QUERY, HEADER, timeout_ms=60_000)
    silent, _ = await connect_raw(port)
    unknown, writer = await connect_raw(port)  # it takes the place of the silent one
    assert await is_ended(silent)
    writer.write(encode_frame(RawCommand(code=31_999, opaque=1)))
    assert await unknown.read(1)

    await second.invoke(address, QUERY, HEADER, timeout_ms=60_000)

    while await unknown.read(4096):
        pass
    assert len(server.peers) == 2
    assert server.stats().connections_refused == 2
    await first.invoke(address, QUERY, HEADER, timeout_ms=60_000)


async def test_hooks_hear_of_connections(
    start_server: Any, eventually: Any, connect_raw: Any
) -> None:
    heard: list[tuple[str, str]] = []

    def opened(peer: Any) -> None:
        peer.state["group"] = "g"
        heard.append(("open", peer.address))

    def closed(peer: Any) -> None:
        assert peer.state == {"group": "g"}
        assert not peer.is_open
        assert peer.send(QUERY, HEADER) is False
        heard.append(("close", peer.address))

    _, port = await start_server({}, on_open=opened, on_close=closed)
    _, writer = await connect_raw(port)
    address = "{}:{}".format(*writer.get_extra_info("sockname"))
    writer.close()

    await eventually(lambda: len(heard) == 2)
    assert heard == [("open", address), ("close", address)]


async def test_the_born_host_is_the_peers(start_server: Any, new_client: Any) -> None:
    hosts: list[bytes] = []

    def query(_: None, call: Call[Any]) -> Reply:
        hosts.append(call.peer.host)
        return Reply(header=QueryConsumerOffsetReply(offset=int(call.peer.address.split(":")[1])))

    _, port = await start_server({QUERY: query})
    client = new_client()
    response = await client.invoke(f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=60_000)

    assert hosts == [b"\x7f\0\0\1" + struct.pack(">i", response.header.offset)]


async def test_a_call_to_a_peer_that_went(
    start_server: Any, new_client: Any, background: Any
) -> None:
    peers: list[Any] = []

    def query(_: None, call: Call[Any]) -> None:
        peers.append(call.peer)
        call.peer.abort()

    _, port = await start_server({QUERY: query})
    client = new_client()
    with pytest.raises(ConnectionLost):
        await client.invoke(f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=60_000)

    with pytest.raises(ConnectionLost):
        await peers[0].invoke(QUERY, HEADER, timeout_ms=1000)


async def test_requests_of_ours_are_bounded(
    start_server: Any, new_client: Any, background: Any, eventually: Any
) -> None:
    held: list[Any] = []
    _, port = await start_server({QUERY: lambda _, call: held.append(call)})
    client = new_client(ClientSettings(in_flight_max=2))
    address = f"127.0.0.1:{port}"
    waiting = [background(client.invoke(address, QUERY, HEADER, timeout_ms=60_000)) for _ in "ab"]
    await eventually(lambda: len(held) == 2)

    with pytest.raises(Overloaded):
        await client.invoke(address, QUERY, HEADER, timeout_ms=60_000)
    for call in held:
        call.answer(QueryConsumerOffsetReply(offset=1))
    assert [(await task).header.offset for task in waiting] == [1, 1]


async def test_a_cancelled_request_is_forgotten(
    start_server: Any, new_client: Any, background: Any, eventually: Any
) -> None:
    held: list[Call[Any]] = []
    _, port = await start_server({QUERY: lambda _, call: held.append(call)})
    client = new_client(ClientSettings(in_flight_max=1))
    address = f"127.0.0.1:{port}"
    waiting = background(client.invoke(address, QUERY, HEADER, timeout_ms=60_000))
    await eventually(lambda: held)
    waiting.cancel()
    await asyncio.wait([waiting])
    held[0].answer(QueryConsumerOffsetReply(offset=1))

    second = background(client.invoke(address, QUERY, HEADER, timeout_ms=60_000))
    await eventually(lambda: len(held) == 2)
    held[1].answer(QueryConsumerOffsetReply(offset=2))
    assert (await second).header.offset == 2


async def test_a_server_that_accepts_nothing(new_client: Any) -> None:
    client = new_client(ClientSettings(connect_timeout_ms=100))

    with pytest.raises(ConnectFailed):
        await client.invoke("127.0.0.1:1", QUERY, HEADER, timeout_ms=200)


async def test_an_answer_that_cannot_be_encoded_is_a_failure(
    start_server: Any, new_client: Any
) -> None:
    bad: Any = QueryConsumerOffsetReply(offset=object())  # type: ignore[arg-type]

    async def late(_: None, call: Call[Any]) -> Reply:
        return Reply(header=bad)

    server, port = await start_server(
        {QUERY: lambda _, call: bad, RequestCode.GET_MAX_OFFSET: late}
    )
    client = new_client()
    for code in (QUERY, RequestCode.GET_MAX_OFFSET):
        ext = {"topic": "t", "queueId": "1", "consumerGroup": "g"}
        with pytest.raises(ServerError, match="object"):
            await client.invoke(f"127.0.0.1:{port}", code, ext=ext, timeout_ms=60_000)
    assert server.stats().handler_failures == 2
    assert server.stats().in_flight == 0


async def test_what_was_written_before_a_close_arrives(start_server: Any, new_client: Any) -> None:
    body = bytes(range(256)) * 40_000

    def query(_: None, call: Call[Any]) -> None:
        call.answer(Reply(header=QueryConsumerOffsetReply(offset=1), body=body))
        call.peer.close()
        call.peer.close()

    _, port = await start_server({QUERY: query})
    client = new_client()

    response = await client.invoke(f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=60_000)

    assert response.body == body


async def test_hostile_frames_leave_the_server_whole(
    start_server: Any, new_client: Any, connect_raw: Any
) -> None:
    """Flip bytes of valid frames; the server still serves the next connection."""
    server, port = await start_server({QUERY: lambda _, call: QueryConsumerOffsetReply(offset=1)})
    client = new_client()
    dice = random.Random(4)
    frames = [encode_frame(RawCommand(code=QUERY, ext=EXT, serialization=s)) for s in Serialization]
    for _ in range(60):
        reader, writer = await connect_raw(port)
        for _ in range(30):
            frame = bytearray(dice.choice(frames))
            for _ in range(dice.randrange(4)):
                frame[dice.randrange(len(frame))] = dice.randrange(256)
            writer.write(frame[: dice.randrange(len(frame)) or None])
        writer.write_eof()
        try:
            while await asyncio.wait_for(reader.read(65_536), 60):
                pass
        except ConnectionError:
            continue
    await client.invoke(f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=60_000)

    assert server.stats().handler_failures == 0
    assert server.stats().in_flight == 0
    assert server.stats().protocol_errors > 0
