# SPDX-License-Identifier: Apache-2.0
"""What a client does with a server that leaves it without answers."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from cometmq.remoting import OK, Call, Reply, RequestCode
from cometmq.remoting.errors import ConnectionLost
from cometmq.remoting.transport import RemotingClient
from cometmq.remoting.transport.client import Watch, undelivered_bytes

BEAT = RequestCode.HEART_BEAT
SMALL_BUFFER = 4_096
LARGE = bytes(4_000_000)
"""More than the kernels of both ends keep."""
PATIENT_MS = 60_000

Background = Callable[..., "asyncio.Task[Any]"]


class Host:
    """Accepts connections into the kernel's queue, and reads what a test asks it to read."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        self._listener.setblocking(False)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []

    async def accept(self) -> socket.socket:
        accepted, _ = await asyncio.get_running_loop().sock_accept(self._listener)
        self._open.append(accepted)
        return accepted

    def close(self) -> None:
        for one in (*self._open, self._listener):
            one.close()


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    host = Host()
    yield host
    host.close()


def watch(client: RemotingClient, host: Host) -> Watch:
    found = client.watch(host.address)
    assert found is not None
    return found


async def read(connection: socket.socket, size: int) -> None:
    while size > 0:
        size -= len(await asyncio.get_running_loop().sock_recv(connection, size))


async def request(
    client: RemotingClient, host: Host, background: Background, body: bytes = b""
) -> "asyncio.Task[Any]":
    """Send a request that gets no answer; return once it is written."""
    written = client.stats().bytes_sent
    sent = background(client.invoke(host.address, BEAT, None, body, timeout_ms=PATIENT_MS))
    async with asyncio.timeout(60):
        while client.stats().bytes_sent == written:  # noqa: ASYNC110  # other programs' sockets
            await asyncio.sleep(0.001)
    return sent


async def test_a_host_that_only_accepts_output_stands_still(
    host: Host, new_client: Any, background: Background, eventually: Any
) -> None:
    client: RemotingClient = new_client()
    assert client.watch(host.address) is None
    tasks = [await request(client, host, background)]
    await host.accept()
    (peer,) = client._hub.peers
    await eventually(lambda: undelivered_bytes(peer) == 0)
    watched = watch(client, host)
    tasks.append(await request(client, host, background))
    await eventually(lambda: undelivered_bytes(peer) == 0)
    assert not watched.has_moved()
    client.disconnect(host.address)
    for task in tasks:
        with pytest.raises(ConnectionLost):
            await task


async def test_bytes_that_arrive_are_a_movement(
    host: Host, new_client: Any, background: Background, eventually: Any
) -> None:
    client: RemotingClient = new_client()
    task = await request(client, host, background)
    connection = await host.accept()
    watched = watch(client, host)
    assert not watched.has_moved()
    await asyncio.get_running_loop().sock_sendall(connection, b"\0")
    await eventually(watched.has_moved)
    client._check()  # which looks at idle connections
    assert watched.has_moved()
    assert not watch(client, host).has_moved()
    client.disconnect(host.address)
    with pytest.raises(ConnectionLost):
        await task
    assert not watched.has_moved()


async def test_output_that_waited_and_leaves_is_a_movement(
    host: Host, new_client: Any, background: Background, eventually: Any
) -> None:
    client: RemotingClient = new_client()
    task = await request(client, host, background, LARGE)
    connection = await host.accept()
    (peer,) = client._hub.peers
    watched = watch(client, host)
    assert undelivered_bytes(peer) > 0
    await read(connection, len(LARGE))
    await eventually(watched.has_moved)
    client.disconnect(host.address)
    with pytest.raises(ConnectionLost):
        await task


async def test_requests_fail_at_once_although_output_waits(
    host: Host, new_client: Any, background: Background
) -> None:
    """A server that reads nothing would keep the connection open for as long as it likes."""
    client: RemotingClient = new_client()
    task = await request(client, host, background, LARGE)
    client.disconnect(host.address, "it hangs")
    async with asyncio.timeout(60):
        with pytest.raises(ConnectionLost, match="was closed: it hangs"):
            await task


async def test_a_new_connection_serves_one_request(
    start_plain_server: Any, new_client: Any, eventually: Any
) -> None:
    bodies: list[bytes] = []

    def beat(_: None, call: Call[Any]) -> Reply:
        bodies.append(bytes(call.body))
        return OK if call.body == b"good" else Reply(code=1, remark="refused")

    server, port = await start_plain_server({BEAT: beat})
    closed: list[str] = []
    client: RemotingClient = new_client(on_close=lambda peer: closed.append(peer.address))
    address = f"127.0.0.1:{port}"
    await client.invoke(address, BEAT, None, b"good", timeout_ms=PATIENT_MS)
    for body in (b"good", b"bad"):
        assert await client.answers_anew(address, BEAT, body, timeout_ms=PATIENT_MS)
    assert bodies == [b"good", b"good", b"bad"]
    await eventually(lambda: server.stats().connections == 1)
    assert client.is_connected(address)
    assert closed == []
    client.disconnect(address)
    await eventually(lambda: closed == [address])


async def test_a_new_connection_without_an_answer_is_closed_in_time(
    host: Host, new_client: Any, eventually: Any
) -> None:
    client: RemotingClient = new_client()
    assert not await client.answers_anew(host.address, BEAT, timeout_ms=20)
    await eventually(lambda: client.stats().connections == 0)
    host.close()
    assert not await client.answers_anew(host.address, BEAT, timeout_ms=PATIENT_MS)
