# SPDX-License-Identifier: Apache-2.0
"""With SYNC_FLUSH, the thread that syncs the log answers a lone sender itself; everything else that
happens to the connection meanwhile ends as if the loop had answered.
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
from cometmq.broker.testing.clients import Client
from cometmq.broker.testing.held_syncs import HeldSyncer
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.heartbeat import Heartbeat
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.errors import ConnectionLost, ServiceNotAvailable
from cometmq.remoting.log import NO_LOG
from cometmq.runtime.clock import SystemClock
from cometmq.runtime.settings import load

pytestmark = pytest.mark.skipif(not IS_BUILT, reason="cometmq-accel is built only with cargo")

DEADLINE_S = 60


class Rig:
    """A broker whose syncs the test ends, and a client with one connection."""

    def __init__(self, broker: BrokerApp, syncer: Any) -> None:
        self.app = broker
        self.syncer = syncer
        self.client = Client(broker.addresses[0])
        self.offset = 0

    @property
    def stats(self) -> Any:
        server = self.app._server
        assert server is not None
        return server.stats()

    def send(self) -> asyncio.Task[int]:
        async def send() -> int:
            offset: int = (await self.client.send(b"body")).header.queue_offset
            return offset

        return asyncio.get_running_loop().create_task(send())

    async def lent(self) -> asyncio.Task[int]:
        """Send, and return once the thread has the answer."""
        sending = self.send()
        await self.until(lambda: self.syncer.has_answer)
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
        """Wait until nothing waits for the disk; no answer may be owed then."""
        driver = self.app.broker.driver
        await self.until(lambda: not driver.waiting_count and driver.head_wait_ms() == 0)
        assert self.stats.in_flight == 0


@asynccontextmanager
async def rig(root: Path, monkeypatch: pytest.MonkeyPatch, syncer: Any) -> AsyncIterator[Rig]:
    given = {
        "listenPort": "0", "bindAddress": "127.0.0.1", "brokerIP1": "127.0.0.1",
        "storePathRootDir": str(root), "flushDiskType": "SYNC_FLUSH",
    }  # fmt: skip
    loaded = load(BrokerSettings, prefix="COMETMQ_TEST", env={}, cli=given)
    monkeypatch.setattr(app, "open_native_syncer", lambda _: syncer)
    broker = BrokerApp(loaded, log=NO_LOG, clock=SystemClock())
    await broker.start()
    it = Rig(broker, syncer)
    try:
        # The topic is created, the native path learns it, and the connection is read directly.
        for number in range(2):
            sending = it.send()
            if isinstance(syncer, HeldSyncer):
                await it.until(lambda: broker.broker.driver.waiting_count)
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
    before, received_bytes = held.syncer.sent_count, held.stats.bytes_sent
    puts = held.app.broker.stats.put_count
    sending = await held.lent()
    await held.beat()  # takes the answer back: outputs keep their order
    assert not held.syncer.has_answer
    assert not sending.done()
    held.syncer.end()
    assert await sending == 2
    assert held.syncer.sent_count == before
    await held.settled()
    for offset in range(3, 6):
        sending = await held.lent()
        assert not sending.done()
        held.syncer.end()
        assert await sending == offset
        await held.settled()
    assert held.syncer.sent_count == before + 3
    assert held.stats.bytes_sent > received_bytes
    assert held.app.broker.stats.put_count == puts + 4


async def test_a_send_that_comes_before_the_end_of_the_last_sync_is_noted_is_lent(
    held: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, puts = held.syncer.sent_count, held.app.broker.stats.put_count
    with monkeypatch.context() as patch:
        patch.setattr("os.eventfd_write", lambda *_: None)  # the loop is not woken
        for number in range(4):
            sending = await held.lent()
            held.syncer.end()
            assert await sending == 2 + number
            assert held.app.broker.stats.put_count == puts + number
    sending = await held.lent()
    held.syncer.end()
    assert await sending == 6
    await held.settled()
    assert held.syncer.sent_count == before + 5
    assert held.app.broker.stats.put_count == puts + 5


async def test_a_failed_sync_is_answered_by_the_loop(held: Rig) -> None:
    before = held.syncer.sent_count
    sending = await held.lent()
    held.syncer.end(errno.EIO)
    with pytest.raises(ServiceNotAvailable):
        await sending
    assert held.syncer.sent_count == before
    await held.settled()


async def test_nothing_is_written_to_a_socket_that_is_closed(held: Rig) -> None:
    before = held.syncer.sent_count
    sending = await held.lent()
    await held.client.close()
    with pytest.raises(ConnectionLost):
        await sending
    server = held.app._server
    assert server is not None
    await held.until(lambda: not server.peers)
    assert not held.syncer.has_answer  # the number of the socket may belong to another one now
    held.syncer.end()
    await held.settled()
    assert held.syncer.sent_count == before


async def test_sends_that_arrive_during_a_sync_are_answered_by_the_loop(held: Rig) -> None:
    before = held.syncer.sent_count
    sends = [await held.lent()]
    for count in (2, 3):
        sends.append(held.send())
        await held.until(lambda count=count: held.app.broker.driver.waiting_count == count)
    held.syncer.end()
    assert await sends[0] == 2
    assert not sends[1].done()
    held.syncer.end()
    assert [await one for one in sends[1:]] == [3, 4]
    assert held.syncer.sent_count == before + 1
    await held.settled()


async def test_the_native_thread_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted:
        """The real thread; counts the answers that it has written."""

        def __init__(self) -> None:
            self.sent_count = 0
            self._syncer = accel.LogSyncer()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._syncer, name)

        def withdraw(self) -> int:
            sent = self._syncer.withdraw()
            self.sent_count += sent > 0
            return sent

    async with rig(tmp_path, monkeypatch, Counted()) as it:
        before = it.syncer.sent_count
        assert [await it.send() for _ in range(50)] == [*range(2, 52)]
        await it.settled()
        assert it.syncer.sent_count > before
        sends = [it.send() for _ in range(50)]
        assert sorted([await one for one in sends]) == [*range(52, 102)]
        await it.settled()
