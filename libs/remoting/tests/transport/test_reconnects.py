# SPDX-License-Identifier: Apache-2.0
"""Callers that need the same connection at the same time."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from cometmq.remoting import OK, Call, Reply, RequestCode
from cometmq.remoting.errors import ConnectFailed, ConnectionLost
from cometmq.remoting.transport import RemotingClient
from cometmq.remoting.transport.protocol import PeerProtocol

BEAT = RequestCode.HEART_BEAT
PATIENT_MS = 60_000

Background = Callable[..., "asyncio.Task[Any]"]


class SlowOpening:
    """Opens a client's connections only when the test lets it, or fails."""

    def __init__(self, client: RemotingClient) -> None:
        self.count = 0
        self.may_open = asyncio.Event()
        self.error: ConnectFailed | None = None
        self._really_open = client._open
        client._open = self._open  # type: ignore[method-assign]

    async def _open(self, address: str) -> PeerProtocol:
        self.count += 1
        await self.may_open.wait()
        if self.error is not None:
            raise self.error
        return await self._really_open(address)


async def test_a_check_during_a_reconnect_causes_no_second_connection(
    start_server: Any, new_client: Any, background: Background, eventually: Any
) -> None:
    def beat(_: None, call: Call[Any]) -> Reply | None:
        if call.body == b"leave":
            call.peer.close()
            return None
        return OK

    _, port = await start_server({BEAT: beat})
    client, address = new_client(), f"127.0.0.1:{port}"
    with pytest.raises(ConnectionLost):
        await client.invoke(address, BEAT, body=b"leave", timeout_ms=PATIENT_MS)
    opening = SlowOpening(client)
    first = background(client.invoke(address, BEAT, timeout_ms=PATIENT_MS))
    await eventually(lambda: opening.count == 1)
    client._check()  # which forgets the dead connection
    second = background(client.invoke(address, BEAT, timeout_ms=PATIENT_MS))
    await asyncio.sleep(0)  # it waits for the first now, or connects too
    opening.may_open.set()
    await first
    await second
    assert opening.count == 1
    assert not client._connecting


async def test_nothing_is_kept_about_an_address_that_never_answered(
    new_client: Any, background: Background, eventually: Any
) -> None:
    client = new_client()
    opening = SlowOpening(client)
    opening.error = ConnectFailed("refused")
    address = "127.0.0.1:1"
    calls = [background(client.invoke(address, BEAT, timeout_ms=PATIENT_MS)) for _ in range(3)]
    calls.append(background(client.invoke(address, BEAT, timeout_ms=1)))
    with pytest.raises(ConnectFailed, match="in 1 ms"):
        await calls.pop()
    calls.pop().cancel()
    assert opening.count == 1
    opening.may_open.set()
    for call in calls:
        with pytest.raises(ConnectFailed, match="refused"):
            await call
    await eventually(lambda: not client._connecting)
    assert opening.count == 2, "each caller tries itself"


async def test_a_client_that_is_closed_while_it_connects_keeps_no_connection(
    start_server: Any, new_client: Any, background: Background, eventually: Any
) -> None:
    server, port = await start_server({BEAT: lambda _, call: OK})
    client = new_client()
    connect, may_return = client._hub.loop.create_connection, asyncio.Event()

    async def connect_slowly(*arguments: Any, **more: Any) -> Any:
        await may_return.wait()
        return await connect(*arguments, **more)

    hub_loop = client._hub.loop
    client._hub.loop = SlowLoop(hub_loop, connect_slowly)
    call = background(client.invoke(f"127.0.0.1:{port}", BEAT, timeout_ms=PATIENT_MS))
    await eventually(lambda: client._connecting)
    await client.close(10)
    may_return.set()
    with pytest.raises(ConnectionLost, match="the client is closed"):
        await call
    await eventually(lambda: not client._hub.peers)
    await eventually(lambda: not server.peers)
    assert not client._peers


class SlowLoop:
    """An event loop that connects in another way."""

    def __init__(self, loop: asyncio.AbstractEventLoop, connect: Callable[..., Any]) -> None:
        self._loop = loop
        self.create_connection = connect

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)
