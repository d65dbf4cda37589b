# SPDX-License-Identifier: Apache-2.0
"""The timeout of a send covers the lookup of its route, even if a name server hangs."""

from collections.abc import AsyncIterator, Callable
from time import monotonic
from typing import Any

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
