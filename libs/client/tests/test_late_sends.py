# SPDX-License-Identifier: Apache-2.0
"""Sends to a frozen broker while another member of its group becomes master."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from cometmq.client import Message, Producer, ProducerOptions, SendFailed
from cometmq.client.cluster import late_sends
from cometmq.client.cluster.late_sends import LATE_TICKS, Flight, LateSends
from cometmq.client.testing import HANG, MemoryBroker, MemoryCluster, eventually
from cometmq.client.testing.handlers import BROKER_HANDLERS
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.log import NO_LOG
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
        assert timeout_ms == late_sends.PROBE_TIMEOUT_MS
        self.probe_count += 1
        return self.is_alive

    def drop(self, address: str, reason: str) -> None:
        self.dropped.append((address, reason))
        self.is_dropped.set()


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture
async def late(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LateSends]:
    monkeypatch.setattr(late_sends, "TICK_MS", 2)
    monkeypatch.setattr(late_sends, "LOOKUP_MS", 2)
    background = TaskSet(NO_LOG)
    yield LateSends(brokers, background, NO_LOG)
    await background.close()


def test_sends_are_late_when_none_has_ended_for_some_ticks() -> None:
    flight = Flight(OLD, "broker-a", "T", count=2)
    for _ in range(LATE_TICKS - 1):
        flight.tick()
    assert not flight.is_late
    flight.tick()
    assert flight.is_late
    flight.is_silent = True
    flight.end()
    flight.tick()
    assert not flight.is_late
    assert not flight.is_silent
    flight.end()
    for _ in range(2 * LATE_TICKS):
        flight.tick()
    assert not flight.is_late  # because none is in flight


def test_lookups_slow_down_the_longer_sends_are_late() -> None:
    flight = Flight(OLD, "broker-a", "T", count=1)
    pauses = []
    for ticks in (3, 20, 100, 1_000):
        flight.late_ticks = ticks
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


async def test_a_master_that_hands_over_is_not_dropped(brokers: Brokers, late: LateSends) -> None:
    """The demoted master still answers sends in flight; closing the connection would fail them."""
    brokers.is_alive = True
    flight = late.begin(OLD, "broker-a", "T")
    brokers.master = NEW
    await eventually(lambda: len(brokers.lookups) > 5 and brokers.probe_count > 5)
    assert not brokers.dropped
    flight.end()
    await eventually(lambda: not late._is_ticking)


async def test_answered_sends_cause_no_lookups(brokers: Brokers, late: LateSends) -> None:
    """Each tick sees a new answer, although a send is always in flight."""
    flight = late.begin(OLD, "broker-a", "T")
    for _ in range(20):
        late.begin(OLD, "broker-a", "T")
        flight.end()
        flight.tick()
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


async def _failure(producer: Producer, queue: MessageQueue) -> SendFailed:
    with pytest.raises(SendFailed) as caught:
        await producer.send(Message("T", b"x"), queue=queue)
    return caught.value
