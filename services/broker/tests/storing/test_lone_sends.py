# SPDX-License-Identifier: Apache-2.0
"""With SYNC_FLUSH, the thread that syncs the log sends the answers itself; everything else that
happens to their connections meanwhile ends as if the loop had answered.
"""

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker import app
from cometmq.broker.app import BrokerApp
from cometmq.broker.native import IS_BUILT, accel
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.storing.store_driver import StoreDriver
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.heartbeat import Heartbeat
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.errors import ConnectionLost, FlushDiskTimeout, ServiceNotAvailable
from cometmq.remoting.log import NO_LOG
from cometmq.runtime.clock import SystemClock
from cometmq.runtime.settings import load
from cometmq.testing.broker.clients import Client
from cometmq.testing.broker.held_syncs import HeldSyncer

pytestmark = pytest.mark.skipif(not IS_BUILT, reason="cometmq-accel is built only with cargo")

DEADLINE_S = 60


class Rig:
    """A broker whose syncs the test ends, and a client with one connection."""

    def __init__(self, broker: BrokerApp, syncer: Any) -> None:
        self.app = broker
        self.syncer = syncer
        self.client = Client(broker.addresses[0])

    @property
    def stats(self) -> Any:
        server = self.app._server
        assert server is not None
        return server.stats()

    def send(self, client: Client | None = None) -> asyncio.Task[int]:
        async def send() -> int:
            offset: int = (await (client or self.client).send(b"body")).header.queue_offset
            return offset

        return asyncio.get_running_loop().create_task(send())

    async def lent(self, client: Client | None = None) -> asyncio.Task[int]:
        """Send, and return once the thread has the answer."""
        before = self.syncer.lent_count
        sending = self.send(client)
        await self.until(lambda: self.syncer.lent_count > before)
        return sending

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():  # noqa: ASYNC110  # no event
                await asyncio.sleep(0)

    async def beat(self) -> None:
        await self.client.invoke(
            RequestCode.HEART_BEAT, None, encode_json(Heartbeat(client_id="c"))
        )

    async def settled(self) -> None:
        """Wait until nothing waits for the disk; no answer may be missing then."""
        driver = self.app.broker.driver
        await self.until(
            lambda: not driver.sends.waiting_count and driver.sends.head_wait_ms() == 0
        )
        assert self.stats.in_flight == 0


@asynccontextmanager
async def rig(root: Path, monkeypatch: pytest.MonkeyPatch, syncer: Any) -> AsyncIterator[Rig]:
    given = {
        "listenPort": "0", "bindAddress": "127.0.0.1", "brokerIP1": "127.0.0.1",
        "storePathRootDir": str(root), "flushDiskType": "SYNC_FLUSH",
    }  # fmt: skip
    loaded = load(BrokerSettings, prefix="COMETMQ_TEST", env={}, cli=given)
    monkeypatch.setattr(app, "open_native_syncer", lambda _: syncer)
    if isinstance(syncer, HeldSyncer):  # no checkpoint syncs the log meanwhile
        monkeypatch.setattr(StoreDriver, "tick", lambda _: None)
    broker = BrokerApp(loaded, log=NO_LOG, clock=SystemClock())
    await broker.start()
    it = Rig(broker, syncer)
    try:
        # The topic is created, the native path learns it, and the connection is read directly.
        for number in range(2):
            sending = it.send()
            if isinstance(syncer, HeldSyncer):
                await it.until(lambda: broker.broker.driver.sends.waiting_count)
                syncer.end()
            assert await sending == number
        await it.settled()
        yield it
    finally:
        if isinstance(syncer, HeldSyncer):
            syncer.release()
        await it.client.close()
        await broker.stop()


@pytest.fixture
async def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    async with rig(tmp_path, monkeypatch, HeldSyncer()) as it:
        yield it


async def test_the_thread_answers_a_lone_send_after_its_sync(held: Rig) -> None:
    before, received_bytes = held.syncer.written_count, held.stats.bytes_sent
    puts = held.app.broker.stats.put_count
    sending = await held.lent()
    await held.beat()  # takes the answer back: outputs keep their order
    assert not sending.done()
    held.syncer.end()
    assert await sending == 2
    assert held.syncer.written_count == before
    await held.settled()
    for offset in range(3, 6):
        sending = await held.lent()
        assert not sending.done()
        held.syncer.end()
        assert await sending == offset
        await held.settled()
    assert held.syncer.written_count == before + 3
    assert held.stats.bytes_sent > received_bytes
    assert held.app.broker.stats.put_count == puts + 4


async def test_answers_are_lent_before_the_end_of_the_last_sync_is_noted(held: Rig) -> None:
    before, puts = held.syncer.written_count, held.app.broker.stats.put_count
    held.syncer.is_waking = False
    for number in range(4):
        sending = await held.lent()
        held.syncer.end()
        assert await sending == 2 + number
        assert held.app.broker.stats.put_count == puts + number
    held.syncer.is_waking = True
    sending = await held.lent()
    held.syncer.end()
    assert await sending == 6
    await held.settled()
    assert held.syncer.written_count == before + 5
    assert held.app.broker.stats.put_count == puts + 5


async def test_the_thread_answers_many_connections_after_a_sync(held: Rig) -> None:
    clients = [Client(held.app.addresses[0]) for _ in range(3)]
    driver = held.app.broker.driver
    try:
        for _ in range(2):  # they are read directly after their first request
            for client in clients:
                sending = held.send(client)
                await held.until(lambda: driver.sends.waiting_count)
                held.syncer.end()
                await sending
        await held.settled()
        before, first = held.syncer.written_count, held.send()
        await held.until(lambda: driver.sends.waiting_count == 1)
        sends = [held.send(client) for client in clients for _ in range(2)]
        await held.until(lambda: driver.sends.waiting_count == 7)
        held.syncer.end()
        await first
        assert not any(one.done() for one in sends)
        held.syncer.end()
        assert len({await one for one in sends}) == 6
        assert held.syncer.written_count >= before + 2
        await held.settled()
    finally:
        for client in clients:
            await client.close()


async def test_answers_of_several_syncs_keep_their_order(held: Rig) -> None:
    """Three syncs owe a connection answers; other output takes them all back."""
    for beats in (False, True):
        sends = [await held.lent()]
        for count in (2, 3):
            sends.append(held.send())
            await held.until(
                lambda count=count: held.app.broker.driver.sends.waiting_count == count
            )
        if beats:
            await held.beat()
        before = held.syncer.written_count
        held.syncer.end()
        first = await sends[0]
        assert not sends[1].done()
        held.syncer.end()
        assert [await one for one in sends[1:]] == [first + 1, first + 2]
        assert (held.syncer.written_count > before) == (not beats)
        await held.settled()


async def test_a_failed_sync_is_answered_by_the_loop(held: Rig) -> None:
    before = held.syncer.written_count
    sending = await held.lent()
    following = held.send()
    await held.until(lambda: held.app.broker.driver.sends.waiting_count == 2)
    held.syncer.end(errno.EIO)
    for one in (sending, following):
        with pytest.raises(ServiceNotAvailable):
            await one
    held.syncer.release()
    assert held.syncer.written_count == before
    await held.settled()


async def test_nothing_is_written_to_a_socket_that_is_closed(held: Rig) -> None:
    before = held.syncer.written_count
    sending = await held.lent()
    await held.client.close()
    with pytest.raises(ConnectionLost):
        await sending
    server = held.app._server
    assert server is not None
    await held.until(lambda: not server.peers)
    held.syncer.end()  # the number of the socket may belong to another one now
    await held.settled()
    assert held.syncer.written_count == before


async def test_a_timeout_does_not_refuse_what_the_thread_has_answered(held: Rig) -> None:
    held.syncer.is_waking = False
    sending = await held.lent()
    held.syncer.end()
    assert await sending == 2
    pending = held.app.broker.store.upkeep.pending
    puts = held.app.broker.stats.put_count
    pending.expire(1 << 60, (0, 0))
    assert held.app.broker.stats.put_count == puts + 1
    held.syncer.is_waking = True
    late = await held.lent()  # no sync has ended: the loop says so
    pending.expire(1 << 60, (0, 0))
    with pytest.raises(FlushDiskTimeout):
        await late
    held.syncer.end()
    await held.settled()


async def test_the_native_thread_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig(tmp_path, monkeypatch, accel.LogSyncer()) as it:
        assert [await it.send() for _ in range(50)] == [*range(2, 52)]
        await it.settled()
        sends = [it.send() for _ in range(50)]
        assert sorted([await one for one in sends]) == [*range(52, 102)]
        await it.settled()
        clients = [Client(it.app.addresses[0]) for _ in range(16)]
        for number in range(20):
            sends = [it.send(client) for client in clients for _ in range(1 + number % 3)]
            if number % 4 == 3:
                await it.beat()
            assert len({await one for one in sends}) == len(sends)
        await it.settled()
        for client in clients:
            await client.close()
