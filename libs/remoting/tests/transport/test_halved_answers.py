# SPDX-License-Identifier: Apache-2.0
"""A server that stops in the middle of an answer holds up later requests for seconds only."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cometmq.remoting import OK, RequestCode
from cometmq.remoting.errors import ConnectionLost, RequestTimeout
from cometmq.remoting.transport import ClientSettings, protocol
from cometmq.testing.remoting.half_answers import half_answers

BEAT = RequestCode.HEART_BEAT
QUICK = ClientSettings(check_interval_ms=20)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "PACE_MS", 30)


class Writer(asyncio.Protocol):
    """A connection of a broken server: the frame that it has begun, then `more` for each chunk."""

    more = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(struct.pack(">II", 8 * 1024 * 1024, 100))

    def data_received(self, _: bytes) -> None:
        self.transport.write(self.more)


@asynccontextmanager
async def broken_server(more: bytes) -> AsyncIterator[str]:
    opened: list[Writer] = []

    def make() -> Writer:
        opened.append(Writer())
        opened[-1].more = more
        return opened[-1]

    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    for one in opened:
        one.transport.abort()


async def test_the_next_request_connects_anew(start_server: Any, new_client: Any) -> None:
    _, port = await start_server({BEAT: lambda _, call: OK})
    client = new_client(QUICK)
    failures: list[Exception] = []
    async with half_answers(f"127.0.0.1:{port}") as relay, asyncio.timeout(60):
        while True:
            try:
                await client.invoke(relay.address, BEAT, timeout_ms=300)
                break
            except (RequestTimeout, ConnectionLost) as error:
                relay.is_broken = False
                failures.append(error)
    assert relay.broken_count == 1
    assert isinstance(failures[0], RequestTimeout)
    assert client.stats().stalled_closed == 1


async def test_answers_behind_an_incomplete_one_are_no_progress(new_client: Any) -> None:
    """A broken server may answer later requests, but those bytes count to the first answer."""
    client = new_client(QUICK)
    async with broken_server(more=bytes(100)) as address, asyncio.timeout(60):
        while not client.stats().stalled_closed:
            with pytest.raises((RequestTimeout, ConnectionLost)):
                await client.invoke(address, BEAT, timeout_ms=10)


async def test_the_error_of_waiting_requests_has_the_reason(
    start_server: Any, new_client: Any
) -> None:
    _, port = await start_server({BEAT: lambda _, call: OK})
    client = new_client(QUICK)
    lost: ConnectionLost | None = None
    async with half_answers(f"127.0.0.1:{port}") as relay, asyncio.timeout(60):
        while lost is None:  # a request that ends before the half answer begins blocks none
            try:
                await client.invoke(relay.address, BEAT, timeout_ms=300)
            except RequestTimeout:
                continue
            except ConnectionLost as error:
                lost = error
    assert "the rest of an answer does not arrive" in str(lost)


async def test_an_answer_that_arrives_slowly_keeps_its_connection(
    new_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests behind it time out, but it will be complete within two minutes."""
    monkeypatch.setattr(protocol, "PACE_MS", 500)
    client = new_client(QUICK)
    async with broken_server(more=bytes(64 * 1024)) as address:
        for _ in range(40):
            with pytest.raises(RequestTimeout):
                await client.invoke(address, BEAT, timeout_ms=50)
    assert client.stats().connections_opened == 1


async def test_a_request_that_is_given_up_counts_as_late(
    start_server: Any, new_client: Any
) -> None:
    """Callers have deadlines of their own, which are often shorter than the request's."""
    _, port = await start_server({BEAT: lambda _, call: OK})
    client = new_client(QUICK)
    async with half_answers(f"127.0.0.1:{port}") as relay, asyncio.timeout(60):
        while not client.stats().stalled_closed:
            with pytest.raises((TimeoutError, ConnectionLost)):
                async with asyncio.timeout(0.05):
                    await client.invoke(relay.address, BEAT, timeout_ms=60_000)
