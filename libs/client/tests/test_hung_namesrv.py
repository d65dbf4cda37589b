# SPDX-License-Identifier: Apache-2.0
"""The timeout of a send covers the lookup of its route, even if a name server hangs."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from time import monotonic
from typing import Any

import msgspec
import pytest

from cometmq.client import (
    CometError,
    Message,
    MessageQueue,
    NoNamesrv,
    Producer,
    ProducerOptions,
    SendResult,
    TransactionOptions,
    TransactionProducer,
    TransactionState,
)
from cometmq.client.clock import wall_ms
from cometmq.client.cluster import namesrv as namesrvs
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.transport.server import Server
from cometmq.remoting.transport.settings import ServerSettings

TIMEOUT_MS = 150
MESSAGE = Message("Unknown", b"x")
QUEUE = MessageQueue("Unknown", "broker-a", 0)
PATIENT = TransactionOptions(api_timeout_ms=60_000)
SHORT = ProducerOptions(send_timeout_ms=TIMEOUT_MS)

Send = Callable[[TransactionProducer], Any]


@pytest.fixture
async def hung() -> AsyncIterator[str]:
    """Run a name server that accepts requests and never answers; yield its address."""
    server: Server[Any] = Server(
        {RequestCode.GET_ROUTEINFO_BY_TOPIC: lambda *_: None},
        None,
        ServerSettings(),
        clock_ms=wall_ms,
    )
    port = await server.listen("127.0.0.1", 0)
    yield f"127.0.0.1:{port}"
    await server.close(drain_ms=0)


@pytest.mark.parametrize(
    "send",
    [
        lambda p: p.send(MESSAGE, timeout_ms=TIMEOUT_MS),
        lambda p: p.send(MESSAGE, queue=QUEUE, timeout_ms=TIMEOUT_MS),
        lambda p: p.send_ordered(MESSAGE, "key", timeout_ms=TIMEOUT_MS),
        lambda p: p.send_batch([MESSAGE], timeout_ms=TIMEOUT_MS),
        lambda p: p.send_oneway(MESSAGE),
        lambda p: p.request(MESSAGE, TIMEOUT_MS),
        lambda p: p.begin(MESSAGE, timeout_ms=TIMEOUT_MS),
    ],
    ids=["send", "queue", "ordered", "batch", "oneway", "request", "transaction"],
)
async def test_every_form_of_send_ends_in_time(
    cluster: MemoryCluster, hung: str, send: Send
) -> None:
    producer = TransactionProducer(
        "pg", cluster.namesrv, check=lambda _: TransactionState.COMMIT, options=PATIENT
    )
    async with producer:
        await producer.send(Message("T", b"x"))
        producer.options = SHORT  # type: ignore[assignment]
        producer.use_namesrv(hung)
        begin = monotonic()
        with pytest.raises(CometError, match=f"no name server answers: {hung}: no answer within "):
            await send(producer)
        assert monotonic() - begin < 20  # the lookup itself takes a minute
        with pytest.raises(NoNamesrv):  # a second caller waits for the first one's lookup
            await producer.send(MESSAGE, timeout_ms=TIMEOUT_MS)
        producer.use_namesrv(cluster.namesrv)


async def test_lookups_go_on_so_that_the_next_server_is_asked(
    cluster: MemoryCluster, hung: str
) -> None:
    options = ProducerOptions(api_timeout_ms=3_000)
    sent: list[SendResult] = []
    async with Producer("pg", cluster.namesrv, options=options) as producer:
        await producer.send(Message("T", b"x"))
        namesrv = producer._running().namesrv
        namesrv.replace([hung, cluster.namesrv])
        namesrv._chosen = namesrv.addresses.index(hung)
        with pytest.raises(NoNamesrv):
            await producer.send(MESSAGE, timeout_ms=TIMEOUT_MS)
        await eventually(lambda: producer._running().routes.get_for_sending("Unknown"))
        sent.append(await producer.send(MESSAGE, timeout_ms=60_000))
    assert sent[0].queue.topic == "Unknown"


async def test_a_first_send_does_not_wait_for_a_name_server_that_hangs(
    cluster: MemoryCluster, hung: str
) -> None:
    """It took 3 s: only then was the next name server asked."""
    async with Producer("pg", cluster.namesrv) as producer:
        for topic in ("Known", "Other"):
            await producer.send(Message(topic, b"x"))
    begin = monotonic()
    async with Producer("pg", cluster.namesrv) as producer:
        namesrv = producer._running().namesrv
        namesrv.replace([hung, cluster.namesrv])
        namesrv._chosen = namesrv.addresses.index(hung)
        await producer.send(Message("Known", b"x"))
        assert monotonic() - begin < 1
        assert namesrv._chosen % 2 == namesrv.addresses.index(cluster.namesrv)
        begin = monotonic()
        await producer.send(Message("Other", b"x"))
        assert monotonic() - begin < namesrvs.NEXT_MS / 1000  # the one that answered is used


async def test_the_next_name_server_is_asked_only_if_the_first_one_is_slow(
    cluster: MemoryCluster, hung: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namesrvs, "NEXT_MS", 60_000)
    async with Producer("pg", cluster.namesrv) as producer:
        namesrv = producer._running().namesrv
        namesrv.replace([hung, cluster.namesrv])
        namesrv._chosen = namesrv.addresses.index(cluster.namesrv)
        await producer.send(MESSAGE)
        assert not producer._running().remoting.is_connected(hung)


BLOCKED_S = 2.5
BLOCKED = ProducerOptions(send_timeout_ms=1_000)


async def _send_and_block(producer: Producer, errors: list[CometError]) -> None:
    """Block the loop while sends wait for a route."""

    async def send() -> None:
        try:
            await producer.send(MESSAGE)
        except CometError as error:
            errors.append(error)

    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(send())
        await asyncio.sleep(0)
        _block()


def _block() -> None:
    time.sleep(BLOCKED_S)


async def test_time_for_which_the_loop_is_blocked_does_not_count(cluster: MemoryCluster) -> None:
    errors: list[CometError] = []
    async with Producer("pg", cluster.namesrv, options=BLOCKED) as producer:
        await _send_and_block(producer, errors)
    assert errors == []
    assert len(cluster.messages("Unknown")) == 3


async def test_a_blocked_loop_is_named_as_a_possible_cause(
    cluster: MemoryCluster, hung: str
) -> None:
    errors: list[CometError] = []
    options = msgspec.structs.replace(BLOCKED, api_timeout_ms=60_000)
    async with Producer("pg", cluster.namesrv, options=options) as producer:
        producer.use_namesrv(hung)
        await _send_and_block(producer, errors)
        producer.use_namesrv(cluster.namesrv)
    for error in errors:
        assert isinstance(error, NoNamesrv)
        assert str(error).startswith("no answer of a name server (")
        # The wait is shorter than the timeout of 1 s by the time that the call's first steps took.
        assert re.search(r"within (1|0\.\d+) s, but this program's event loop was", str(error))
        assert "hung" not in str(error)
    assert len(errors) == 3


async def test_a_name_server_is_asked_over_a_new_connection_after_a_timeout(
    cluster: MemoryCluster,
) -> None:
    """A connection to a lost host stays open, although its address leads to a successor."""
    connections: list[asyncio.StreamWriter] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        below, above = await asyncio.open_connection(*cluster.namesrv.split(":"))
        connections.extend((writer, above))
        is_lost = len(connections) == 2
        while data := await reader.read(65_536):
            if not is_lost:
                above.write(data)
                writer.write(await below.read(65_536))

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    options = ProducerOptions(namesrv=address, api_timeout_ms=500, send_timeout_ms=20_000)
    async with Producer("pg", options=options) as producer:
        await producer.send(Message("T", b"x"))
    assert len(connections) > 2
    server.close()
    for one in connections:
        one.transport.abort()
