# SPDX-License-Identifier: Apache-2.0
"""A server's ports, and its shutdown."""

import asyncio
import contextlib
import socket
from typing import Any

import pytest

from cometmq.remoting import Call, RequestCode
from cometmq.remoting.commands.offsets import QueryConsumerOffset, QueryConsumerOffsetReply
from cometmq.remoting.errors import ConnectionLost, RequestCodeNotSupported
from cometmq.remoting.transport.server import ALL_ADDRESSES

QUERY = RequestCode.QUERY_CONSUMER_OFFSET
HEADER = QueryConsumerOffset(consumer_group="g", topic="t", queue_id=3)


async def test_a_port_may_leave_out_codes(start_server: Any, new_client: Any) -> None:
    server, port = await start_server({QUERY: lambda _, call: QueryConsumerOffsetReply(offset=1)})
    fast_port = await server.listen("127.0.0.1", 0, excluded=(QUERY,))
    client = new_client()

    assert (await client.invoke(f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=60_000)).code == 0
    with pytest.raises(RequestCodeNotSupported):
        await client.invoke(f"127.0.0.1:{fast_port}", QUERY, HEADER, timeout_ms=60_000)
    assert [p for _, p in server.addresses] == [port, fast_port]


async def test_without_a_host_a_server_listens_everywhere(
    start_server: Any, new_client: Any
) -> None:
    hosts = ["127.0.0.1", "[::1]"][: len(ALL_ADDRESSES)]
    peers: list[str] = []

    def answer(_: None, call: Call[Any]) -> QueryConsumerOffsetReply:
        peers.append(call.peer.address.rpartition(":")[0])
        return QueryConsumerOffsetReply(offset=1)

    server, port = await start_server({QUERY: answer})
    everywhere = await server.listen("", 0)
    client = new_client()

    for host in hosts:
        await client.invoke(f"{host}:{everywhere}", QUERY, HEADER, timeout_ms=60_000)
    assert peers == hosts
    assert [p for _, p in server.addresses] == [port, *[everywhere] * len(hosts)]


async def test_a_close_lets_handlers_end(
    start_server: Any, new_client: Any, background: Any, eventually: Any
) -> None:
    gate = asyncio.Event()

    async def query(_: None, call: Call[QueryConsumerOffset]) -> QueryConsumerOffsetReply:
        await gate.wait()
        return QueryConsumerOffsetReply(offset=1)

    server, port = await start_server({QUERY: query})
    client = new_client()
    waiting = background(client.invoke(f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=60_000))
    await eventually(lambda: server.stats().in_flight)
    closing = background(server.close(3000))
    await asyncio.sleep(0)
    gate.set()

    assert (await waiting).header.offset == 1
    await closing
    assert not server.peers


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_that_arrives_while_a_server_closes_is_closed(
    start_server: Any, eventually: Any, turns: int
) -> None:
    """The loop takes several turns between accepting a connection and reporting it."""
    server, port = await start_server({})
    with socket.create_connection(("127.0.0.1", port), timeout=60) as peer:
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.close(0)
        peer.setblocking(False)

        def is_closed() -> bool:
            with contextlib.suppress(BlockingIOError):
                with contextlib.suppress(ConnectionResetError):
                    assert peer.recv(1) == b""
                return True
            return False

        await eventually(is_closed)
    await eventually(lambda: not server.peers)


async def test_a_server_that_closes_serves_no_new_requests(
    start_server: Any, new_client: Any, background: Any, eventually: Any
) -> None:
    served = list[int]()
    gate = asyncio.Event()

    async def query(_: None, call: Call[QueryConsumerOffset]) -> QueryConsumerOffsetReply:
        served.append(call.header.queue_id)
        await gate.wait()
        return QueryConsumerOffsetReply(offset=1)

    server, port = await start_server({QUERY: query})
    address, client = f"127.0.0.1:{port}", new_client()
    first = background(client.invoke(address, QUERY, HEADER, timeout_ms=60_000))
    await eventually(lambda: server.stats().in_flight)
    closing = background(server.close(60_000))
    await asyncio.sleep(0)
    late = QueryConsumerOffset(consumer_group="g", topic="t", queue_id=4)
    second = background(client.invoke(address, QUERY, late, timeout_ms=60_000))
    for _ in range(100):  # turns of the loop, in which a server that reads would serve it
        await asyncio.sleep(0)
    gate.set()
    await asyncio.wait([first, second])
    await closing
    assert served == [HEADER.queue_id]
    assert first.result().header.offset == 1
    assert isinstance(second.exception(), ConnectionLost)
