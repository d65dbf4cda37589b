# SPDX-License-Identifier: Apache-2.0
"""Sends to a frozen broker while another member of its group becomes master."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from cometmq.client import Message, Producer, ProducerOptions, SendFailed
from cometmq.client.cluster import instance, late_sends
from cometmq.client.cluster.late_sends import LATE_TICKS, TICK_MS, Flight, LateSends
from cometmq.client.cluster.routes import MASTER_ID, Route
from cometmq.client.testing import HANG, MemoryBroker, MemoryCluster, eventually
from cometmq.client.testing.handlers import BROKER_HANDLERS
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.route import BrokerData
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.signature import FORWARDED
from cometmq.remoting.transport.tasks import TaskSet

OLD, NEW = "10.0.0.1:10911", "10.0.0.2:10911"
SEND = RequestCode.SEND_MESSAGE_V2
PATIENT = ProducerOptions(send_timeout_ms=60_000, api_timeout_ms=60_000)
"""Without `LateSends`, sends to a frozen broker would take a minute."""


class Brokers:
    """A broker that may or may not be alive, and a route that names a master."""

    def __init__(self) -> None:
        self.master: str | None = OLD
        self.is_alive = False
        self.answers_new = False
        self.anew_count = 0
        self.timeouts_ms: list[int] = []
        self.lookups: list[str] = []
        self.probe_count = 0
        self.dropped: list[tuple[str, str]] = []
        self.is_dropped = asyncio.Event()

    def current_master(self, broker_name: str) -> str | None:
        assert broker_name == "broker-a"
        return self.master

    async def look_up(self, topic: str) -> None:
        self.lookups.append(topic)

    async def answers(self, address: str, *, timeout_ms: int) -> bool:
        assert address == OLD
        self.timeouts_ms.append(timeout_ms)
        self.probe_count += 1
        return self.is_alive

    async def answers_anew(self, address: str, *, timeout_ms: int) -> bool:
        assert address == OLD
        assert timeout_ms <= late_sends.ANEW_TIMEOUT_MS
        self.anew_count += 1
        return self.answers_new

    def reachable(self, queues: Sequence[MessageQueue]) -> Sequence[MessageQueue]:
        return queues

    def suspect(self, address: str, silence: Exception) -> None:
        raise AssertionError(address, silence)

    def drop(self, address: str, reason: str) -> None:
        self.dropped.append((address, reason))
        self.is_dropped.set()


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture
async def late(brokers: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LateSends]:
    monkeypatch.setattr(late_sends, "TICK_MS", 2)
    monkeypatch.setattr(late_sends, "LOOKUP_MS", 2)
    background = TaskSet(NO_LOG)
    yield LateSends(brokers, background, NO_LOG)
    await background.close()


def test_sends_are_late_when_none_has_ended_for_some_ticks() -> None:
    flight = Flight(OLD, "broker-a", "T", count=2)
    for _ in range(LATE_TICKS - 1):
        flight.tick(TICK_MS)
    assert not flight.is_late
    flight.tick(TICK_MS)
    assert flight.is_late
    flight.is_silent = True
    flight.end()
    flight.tick(TICK_MS)
    assert not flight.is_late
    assert not flight.is_silent
    flight.end()
    for _ in range(2 * LATE_TICKS):
        flight.tick(TICK_MS)
    assert not flight.is_late  # because none is in flight


def test_lookups_slow_down_the_longer_sends_are_late() -> None:
    flight = Flight(OLD, "broker-a", "T", count=1)
    pauses = []
    for ticks in (3, 20, 100, 1_000):
        flight.late_ms = ticks * TICK_MS
        pauses.append(flight.pause_ms)
    assert pauses == [300, 625, 3_125, 5_000]


async def test_a_silent_broker_is_dropped_once_another_is_master(
    brokers: Brokers, late: LateSends
) -> None:
    late.begin(OLD, "broker-a", "T")
    await eventually(lambda: len(brokers.lookups) > 3 and brokers.probe_count > 1)
    assert not brokers.dropped
    brokers.master = None
    seen = len(brokers.lookups)
    await eventually(lambda: len(brokers.lookups) > seen + 1)
    assert not brokers.dropped
    brokers.master = NEW
    await asyncio.wait_for(brokers.is_dropped.wait(), 60)
    assert brokers.dropped[0] == (OLD, f"it does not answer, and {NEW} is the master now")
    assert set(brokers.lookups) == {"T"}


async def test_a_send_over_a_silent_connection_is_retried_within_its_default_timeout(
    brokers: Brokers, late: LateSends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load balancer has forgotten the idle connection, without a word to either end."""
    monkeypatch.setattr(late_sends, "LOOKUP_MS", 60_000)  # pauses between probes
    monkeypatch.setattr(late_sends, "PAUSE_MS_MAX", 60_000)
    brokers.answers_new = True
    late.begin(OLD, "broker-a", "T")
    await asyncio.wait_for(brokers.is_dropped.wait(), 30)
    until_late_ms = LATE_TICKS * 250
    assert until_late_ms + sum(brokers.timeouts_ms) <= ProducerOptions().send_timeout_ms - 500
    assert brokers.timeouts_ms[1] > late_sends.ANEW_TIMEOUT_MS


async def test_sends_with_the_default_timeout_are_not_hurried(producer: Producer) -> None:
    """A part of the timeout has passed when they begin."""
    begin, paces = LateSends.begin, []

    def noted(self: LateSends, *args: str, timeout_ms: int) -> Flight:
        flight = begin(self, *args, timeout_ms=timeout_ms)
        paces.append(flight.pace)
        return flight

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LateSends, "begin", noted)
        await producer.send(Message("T", b"x"))
        await producer.send(Message("T", b"x"), timeout_ms=1_000)
    assert paces[0] == 1
    assert paces[1] == pytest.approx(0.25, abs=0.05)


@pytest.mark.parametrize("timeout_ms", [400, 1_000, 2_000, 2_699])
async def test_a_send_over_a_silent_connection_is_retried_within_a_short_timeout(
    brokers: Brokers, late: LateSends, monkeypatch: pytest.MonkeyPatch, timeout_ms: int
) -> None:
    """The client noticed after 2.5 s, so sends with shorter timeouts failed."""
    monkeypatch.setattr(late_sends, "LOOKUP_MS", 60_000)  # pauses between probes
    monkeypatch.setattr(late_sends, "PAUSE_MS_MAX", 60_000)
    brokers.answers_new = True
    flight = late.begin(OLD, "broker-a", "T", timeout_ms=timeout_ms)
    await asyncio.wait_for(brokers.is_dropped.wait(), 30)
    until_late_ms = LATE_TICKS * TICK_MS * flight.pace
    assert until_late_ms + sum(brokers.timeouts_ms) <= 0.85 * timeout_ms
    assert not brokers.lookups  # the load of name servers is that of sends with long timeouts


async def test_a_connection_on_which_the_broker_continues_is_kept(
    brokers: Brokers, late: LateSends
) -> None:
    flight = late.begin(OLD, "broker-a", "T")
    await eventually(lambda: brokers.anew_count)
    brokers.is_alive = brokers.answers_new = True
    seen = brokers.probe_count
    await eventually(lambda: brokers.probe_count > seen + 5)
    assert not brokers.dropped
    flight.end()
    await eventually(lambda: not late._is_ticking)


async def test_a_master_that_hands_over_is_not_dropped(brokers: Brokers, late: LateSends) -> None:
    """The demoted master still answers sends in flight; closing the connection would fail them."""
    brokers.is_alive = brokers.answers_new = True
    flight = late.begin(OLD, "broker-a", "T")
    brokers.master = NEW
    await eventually(lambda: len(brokers.lookups) > 5 and brokers.probe_count > 5)
    assert not brokers.dropped
    assert not brokers.anew_count
    flight.end()
    await eventually(lambda: not late._is_ticking)


async def test_answered_sends_cause_no_lookups(brokers: Brokers, late: LateSends) -> None:
    """Each tick sees a new answer, although a send is always in flight."""
    flight = late.begin(OLD, "broker-a", "T")
    for _ in range(20):
        late.begin(OLD, "broker-a", "T")
        flight.end()
        flight.tick(TICK_MS)
        assert not flight.is_late
    flight.end()
    await eventually(lambda: not late._is_ticking)
    assert not brokers.lookups
    assert late.begin(OLD, "broker-a", "T") is not flight


async def frozen(cluster: MemoryCluster) -> MemoryBroker:
    """Make the broker stop answering; return the broker that can replace it."""
    for code in (SEND, RequestCode.HEART_BEAT):
        cluster.broker.fail(code, HANG, times=1_000)
    other = MemoryBroker(cluster.broker.name, BROKER_HANDLERS)
    other.queues.create("T", 4)
    await other.start()
    return other


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_sends, "TICK_MS", 20)
    monkeypatch.setattr(late_sends, "LOOKUP_MS", 20)
    monkeypatch.setattr(late_sends, "PROBE_TIMEOUT_MS", 50)
    monkeypatch.setattr(late_sends, "ANEW_TIMEOUT_MS", 200)
    monkeypatch.setattr(late_sends, "MOVE_MS", 60)


@pytest.mark.usefixtures("fast")
async def test_sends_in_flight_move_to_the_new_master(cluster: MemoryCluster) -> None:
    async with Producer("pg", cluster.namesrv, options=PATIENT) as producer:
        await producer.send(Message("T", b"before"))
        old, other = cluster.broker, await frozen(cluster)
        try:
            async with asyncio.timeout(60), asyncio.TaskGroup() as group:
                sends = [
                    group.create_task(producer.send(Message("T", b"%d" % number)))
                    for number in range(5)
                ]
                await eventually(lambda: old.requests[SEND] == 6)
                cluster.brokers[0] = other
            assert all(task.result().offset_message_id for task in sends)
            bodies = sorted(message.body for message in other.messages("T"))
            assert bodies == [b"0", b"1", b"2", b"3", b"4"]
        finally:
            await old.stop()


def freeze(*brokers: MemoryBroker) -> None:
    for broker in brokers:
        for code in (SEND, RequestCode.HEART_BEAT):
            broker.fail(code, HANG, times=1_000)


@pytest.mark.usefixtures("fast")
async def test_sends_to_a_frozen_broker_move_to_another_one_of_the_topic() -> None:
    """Only those: a send to a given queue waits, because the broker may still answer."""
    async with MemoryCluster(("broker-a", "broker-b")) as cluster:
        old, other = cluster.brokers
        cluster.create_topic("T", queue_count=1)
        queue = MessageQueue("T", "broker-a", 0)
        async with Producer("pg", cluster.namesrv, options=PATIENT) as producer:
            await producer.send(Message("T", b"before"), queue=queue)
            freeze(old)
            async with asyncio.timeout(60), asyncio.TaskGroup() as group:
                waiting = group.create_task(producer.send(Message("T", b"waits"), queue=queue))
                sends = [
                    group.create_task(producer.send(Message("T", b"%d" % number)))
                    for number in range(6)
                ]
                results = [await sending for sending in sends]
                assert {result.queue.broker_name for result in results} == {"broker-b"}
                later = [await producer.send(Message("T", b"later")) for _ in range(4)]
                assert {result.queue.broker_name for result in later} == {"broker-b"}
                assert not waiting.done()
                waiting.cancel()
            assert old.requests[SEND] == 1 + 1 + 3  # the others avoid it
            old.clear_faults()
            bodies = sorted(message.body for message in other.messages("T"))
            assert bodies == [*(b"%d" % number for number in range(6)), *[b"later"] * 4]


async def test_each_route_is_searched_once_for_another_broker(late: LateSends) -> None:
    class Counting(Brokers):
        count = 0

        def reachable(self, queues: Sequence[MessageQueue]) -> Sequence[MessageQueue]:
            self.count += 1
            return queues

    queues = tuple(MessageQueue("T", "broker-a", number) for number in range(1_000))
    brokers: Any = Counting()
    route, flight = Route("T", queues, (), {}), late.begin(OLD, "broker-a", "T")
    async with asyncio.TaskGroup() as group:
        never = asyncio.Event()
        tasks = [group.create_task(flight.answer(never.wait(), route)) for _ in range(100)]
        await eventually(lambda: len(flight.movable) == len(tasks))
        assert flight.give_up(brokers) is None
        never.set()
    assert brokers.count == 1
    flight.end()


@pytest.mark.usefixtures("fast")
async def test_a_cancelled_send_to_a_frozen_broker_stays_cancelled() -> None:
    async with MemoryCluster(("broker-a", "broker-b")) as cluster:
        cluster.create_topic("T", queue_count=1)
        async with Producer("pg", cluster.namesrv, options=PATIENT) as producer:
            await producer.send(Message("T", b"before"))
            freeze(*cluster.brokers)
            async with asyncio.timeout(60), asyncio.TaskGroup() as group:
                tasks = [group.create_task(producer.send(Message("T", b"x"))) for _ in range(4)]
                await eventually(lambda: sum(it.requests[SEND] for it in cluster.brokers) > 4)
                for task in tasks:
                    task.cancel()
            assert all(task.cancelled() for task in tasks)
            for broker in cluster.brokers:
                broker.clear_faults()


@pytest.mark.usefixtures("fast")
async def test_a_send_with_one_attempt_fails_when_its_broker_is_replaced(
    cluster: MemoryCluster,
) -> None:
    queue = MessageQueue("T", "broker-a", 1)
    async with Producer("pg", cluster.namesrv, options=PATIENT) as producer:
        old, other = cluster.broker, await frozen(cluster)
        try:
            async with asyncio.timeout(60), asyncio.TaskGroup() as group:
                sending = group.create_task(_failure(producer, queue))
                await eventually(lambda: old.requests[SEND] == 1)
                cluster.brokers[0] = other
            assert sending.result().may_be_stored
            assert f"{other.address} is the master now" in str(sending.result())
            await producer.send(Message("T", b"again"), queue=queue)
            assert [message.body for message in other.messages("T")] == [b"again"]
        finally:
            await old.stop()


class GroupAddress:
    """An address that leads to one broker at a time, as that of a Service does: open connections
    stay where they are.
    """

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker: MemoryBroker | None = broker
        """None leads to a machine that stands still: it accepts connections, and that is all."""
        self.address = ""
        self.hung_count = 0
        self._forwarding = TaskSet(NO_LOG)
        self._open = AsyncExitStack()

    async def start(self) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self._open.push_async_exit(server)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def freeze(self) -> None:
        """Leave open connections unanswered, and new ones until `broker` is set."""
        self.broker = None
        await self._forwarding.close()

    async def close(self) -> None:
        await self._forwarding.close()
        await self._open.aclose()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.callback(writer.close)
        if self.broker is None:
            self.hung_count += 1
            return
        source, sink = await asyncio.open_connection("127.0.0.1", self.broker.port)
        self._open.callback(sink.close)
        self._forwarding.spawn(self._forward(reader, sink), name="to the broker")
        self._forwarding.spawn(self._forward(source, writer), name="to the client")

    async def _forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            sink.write(data)
        sink.close()


@pytest.fixture
async def group_address(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[GroupAddress]:
    """The address of the broker in the routes, whichever broker that is."""
    found = GroupAddress(cluster.broker)
    await found.start()

    def data(broker: MemoryBroker) -> BrokerData:
        return BrokerData({MASTER_ID: found.address}, broker.name, "MemoryCluster")

    monkeypatch.setattr(cluster, "broker_data", data)
    yield found
    await found.close()


@pytest.mark.parametrize("timeout_ms", [1_000, 1_900])
async def test_a_send_over_a_forgotten_connection_succeeds_within_a_short_timeout(
    cluster: MemoryCluster, producer: Producer, group_address: GroupAddress, timeout_ms: int
) -> None:
    """A load balancer has forgotten the connection: its packets vanish, new connections work."""
    await producer.send(Message("T", b"before"))
    await group_address.freeze()
    group_address.broker = cluster.broker
    await producer.send(Message("T", b"x"), timeout_ms=timeout_ms)
    assert sorted(one.body for one in cluster.messages("T")) == [b"before", b"x"]
    assert cluster.broker.requests[SEND] == 2


async def test_a_broker_that_stands_still_for_a_moment_gets_each_send_once() -> None:
    """Otherwise both brokers would store the message, although the first one answers in time."""
    async with MemoryCluster(("broker-a", "broker-b")) as cluster:
        cluster.create_topic("T", queue_count=1)
        async with Producer("pg", cluster.namesrv) as producer:
            await producer.send(Message("T", b"before"))
            freeze(*cluster.brokers)
            with pytest.raises(SendFailed):
                await producer.send(Message("T", b"x"), timeout_ms=1_000)
            assert sum(it.requests[SEND] for it in cluster.brokers) == 2
            for broker in cluster.brokers:
                broker.clear_faults()


@pytest.mark.usefixtures("fast")
async def test_sends_in_flight_move_to_a_new_master_of_the_same_address(
    cluster: MemoryCluster, group_address: GroupAddress
) -> None:
    other = MemoryBroker(cluster.broker.name, BROKER_HANDLERS)
    other.queues.create("T", 4)
    await other.start()
    try:
        async with Producer("pg", cluster.namesrv, options=PATIENT) as producer:
            await producer.send(Message("T", b"before"))
            await group_address.freeze()
            async with asyncio.timeout(60), asyncio.TaskGroup() as group:
                sends = [
                    group.create_task(producer.send(Message("T", b"%d" % number)))
                    for number in range(5)
                ]
                await eventually(lambda: group_address.hung_count)
                assert not any(task.done() for task in sends)
                group_address.broker = other
            bodies = sorted(message.body for message in other.messages("T"))
            assert bodies == [b"0", b"1", b"2", b"3", b"4"]
            await eventually(lambda: other.producers.get("pg"), what="a heartbeat")
    finally:
        await other.stop()


async def test_a_client_moves_to_a_new_master_of_the_same_address_without_a_failed_send(
    cluster: MemoryCluster, group_address: GroupAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former master, to which the open connection leads, forwards the sends."""
    monkeypatch.setattr(instance, "MOVE_MS", 10)
    monkeypatch.setattr(instance, "MOVE_AGAIN_MS", 10)
    queue = MessageQueue("T", "broker-a", 1)
    old, other = cluster.broker, MemoryBroker(cluster.broker.name, BROKER_HANDLERS)
    other.queues.create("T", 4)
    await other.start()
    try:
        async with Producer("pg", cluster.namesrv, options=PATIENT) as producer:
            await producer.send(Message("T", b"before"), queue=queue)
            old.send_ext = {**old.send_ext, FORWARDED: "true"}
            await producer.send(Message("T", b"forwarded"), queue=queue)
            group_address.broker = other
            async with asyncio.timeout(60):
                while not other.messages("T"):
                    await producer.send(Message("T", b"x"), queue=queue)
            await eventually(lambda: other.producers.get("pg"), what="a heartbeat")
            assert producer._sender is not None
            producer._sender._instance.remoting._check()
            await eventually(lambda: not old.peers, what="no connection to the former master")
    finally:
        await other.stop()


async def test_a_heartbeat_that_waits_behind_other_answers_is_no_silence(
    cluster: MemoryCluster,
    producer: Producer,
) -> None:
    await producer.send(Message("T", b"before"))
    assert producer._sender is not None
    found, address = producer._sender._instance, cluster.broker.address
    cluster.broker.fail(RequestCode.HEART_BEAT, HANG, times=1_000)
    assert not await found.answers(address, timeout_ms=20)
    async with asyncio.TaskGroup() as group:
        probe = group.create_task(found.answers(address, timeout_ms=200))
        while not probe.done():
            await producer.send(Message("T", b"meanwhile"))
    assert probe.result()
    assert not await found.answers_anew(address, timeout_ms=20)
    cluster.broker.clear_faults()
    assert await found.answers_anew(address, timeout_ms=60_000)
    assert len(cluster.broker.producers["pg"]) == 1


async def _failure(producer: Producer, queue: MessageQueue) -> SendFailed:
    with pytest.raises(SendFailed) as caught:
        await producer.send(Message("T", b"x"), queue=queue)
    return caught.value
