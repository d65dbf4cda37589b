# SPDX-License-Identifier: Apache-2.0
"""A consumer of many topics starts with only a few requests, most of them concurrent."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cometmq.client import (
    LitePullConsumer,
    MessageQueue,
    PullConsumer,
    PushConsumer,
    PushOptions,
)
from cometmq.client.cluster.namesrv import Namesrv
from cometmq.client.cluster.route_book import LOOKUPS_MAX
from cometmq.client.consume.queues import owned
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.client.turns import for_each
from cometmq.remoting.bodies.route import TopicRoute
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.errors import ConnectFailed
from cometmq.remoting.transport.client import RemotingClient

TOPICS = [f"T{number}" for number in range(40)]


class Running:
    """Counts how many calls run at the same time."""

    def __init__(self) -> None:
        self.count = 0
        self.most = 0

    async def turn(self) -> None:
        """Let the other calls begin."""
        self.count += 1
        self.most = max(self.most, self.count)
        await asyncio.sleep(0.001)
        self.count -= 1


def consumer_of_many(cluster: MemoryCluster, kind: type[Any]) -> Any:
    listener = {"listener": print} if kind is PushConsumer else {}
    consumer = kind("cg", cluster.namesrv, **listener)
    for topic in TOPICS:
        cluster.create_topic(topic, queue_count=2)
        (consumer.register if kind is PullConsumer else consumer.subscribe)(topic)
    return consumer


@pytest.mark.parametrize("kind", [PushConsumer, LitePullConsumer])
async def test_routes_and_offsets_are_asked_concurrently(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, kind: type[Any]
) -> None:
    lookups, offsets = Running(), Running()
    route: Callable[..., Awaitable[TopicRoute | None]] = Namesrv.route
    invoke: Callable[..., Awaitable[Any]] = RemotingClient.invoke

    async def counted_route(self: Namesrv, topic: str) -> TopicRoute | None:
        await lookups.turn()
        return await route(self, topic)

    async def counted_invoke(
        self: RemotingClient, address: str, code: int, *more: Any, **rest: Any
    ) -> Any:
        if code == RequestCode.QUERY_CONSUMER_OFFSET:
            await offsets.turn()
        return await invoke(self, address, code, *more, **rest)

    monkeypatch.setattr(Namesrv, "route", counted_route)
    monkeypatch.setattr(RemotingClient, "invoke", counted_invoke)
    async with consumer_of_many(cluster, kind) as consumer:
        assert len(consumer.queues) == 2 * len(TOPICS)
    assert lookups.most == LOOKUPS_MAX
    assert offsets.most > 2


@pytest.mark.parametrize("fails", [False, True])
async def test_a_topic_of_many_queues_is_opened_in_parts(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setattr(owned, "OPENED_AT_ONCE", 8)
    offsets = Running()
    asked: list[int] = []
    invoke: Callable[..., Awaitable[Any]] = RemotingClient.invoke

    async def counted_invoke(
        self: RemotingClient, address: str, code: int, header: Any, *more: Any, **rest: Any
    ) -> Any:
        if code == RequestCode.QUERY_CONSUMER_OFFSET and header.topic == "Wide":
            asked.append(header.queue_id)
            await offsets.turn()
            if fails and len(asked) <= 8:
                raise ConnectFailed("down")
        return await invoke(self, address, code, header, *more, **rest)

    monkeypatch.setattr(RemotingClient, "invoke", counted_invoke)
    cluster.create_topic("Wide", queue_count=40)
    consumer = PushConsumer("cg", cluster.namesrv, listener=print)
    consumer.subscribe("Wide")
    async with consumer:
        if fails:
            assert len(asked) == 8  # the others would wait as long for a broker that hangs
        await eventually(lambda: len(consumer.queues) == 40)
        assert offsets.most == 8


@pytest.mark.parametrize("kind", [PushConsumer, LitePullConsumer, PullConsumer])
async def test_members_are_asked_once_for_all_topics(
    cluster: MemoryCluster, kind: type[Any]
) -> None:
    async with consumer_of_many(cluster, kind) as consumer:
        assert len(consumer.queues) == 2 * len(TOPICS)
        assert cluster.broker.requests[RequestCode.GET_CONSUMER_LIST_BY_GROUP] < 10


async def test_the_locks_of_all_topics_are_asked_for_at_once(pair: MemoryCluster) -> None:
    for topic in TOPICS:
        pair.create_topic(topic, queue_count=2)
    options = PushOptions(orderly=True)
    consumer = PushConsumer("cg", pair.namesrv, listener=lambda _: None, options=options)
    for topic in TOPICS:
        consumer.subscribe(topic)
    async with consumer:
        assert len(consumer.queues) == 4 * len(TOPICS)
        for broker in pair.brokers:
            assert len(broker.locks) >= 2 * len(TOPICS)
            assert 1 <= broker.requests[RequestCode.LOCK_BATCH_MQ] <= 3
    assert not any(broker.locks for broker in pair.brokers)


async def test_a_queue_locked_elsewhere_delays_no_other_topic(cluster: MemoryCluster) -> None:
    taken = {MessageQueue(topic, "broker-a", 1) for topic in TOPICS[::2]}
    cluster.broker.locks.update({("cg", queue): "another" for queue in taken})
    for topic in TOPICS:
        cluster.create_topic(topic, queue_count=2)
    options = PushOptions(orderly=True)
    consumer = PushConsumer("cg", cluster.namesrv, listener=lambda _: None, options=options)
    for topic in TOPICS:
        consumer.subscribe(topic)
    async with consumer:
        assert len(consumer.queues) == 2 * len(TOPICS) - len(taken)
        assert not taken.intersection(consumer.queues)
        cluster.broker.locks.clear()
        await eventually(lambda: taken.issubset(consumer.queues))


@pytest.mark.parametrize("kind", [PushConsumer, LitePullConsumer, PullConsumer])
async def test_callbacks_do_not_overlap(cluster: MemoryCluster, kind: type[Any]) -> None:
    running, told = Running(), set[MessageQueue]()
    consumer = consumer_of_many(cluster, kind)

    async def assigned(queues: list[MessageQueue]) -> None:
        await running.turn()
        told.update(queues)

    consumer.on_assigned(assigned)
    async with consumer:
        assert told == set(consumer.queues)
    assert running.most == 1


async def test_a_callback_may_ask_for_the_share_of_another_topic(cluster: MemoryCluster) -> None:
    counts: list[int] = []
    for topic in TOPICS:
        cluster.create_topic(topic, queue_count=2)
    consumer = PullConsumer("cg", cluster.namesrv)

    @consumer.on_assigned
    async def assigned(queues: list[MessageQueue]) -> None:
        counts.append(len(await consumer.queues_in_balance(TOPICS[-1])))

    async with consumer:
        for topic in TOPICS:
            consumer.register(topic)
        await eventually(lambda: len(consumer.queues) == 2 * len(TOPICS))
    assert counts[-1] == 2


async def test_concurrent_lookups_pass_a_dead_name_server(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each failure used to move all lookups to the next name server, and thus back to the dead
    one.
    """
    asked: list[str] = []

    class Remoting:
        async def invoke(self, address: str, *_: Any, **__: Any) -> Any:
            asked.append(address)
            await asyncio.sleep(0)
            if address == "dead:1":
                raise ConnectFailed("dead")
            return address

    remoting: Any = Remoting()
    namesrv = Namesrv(["dead:1", "live:1"], remoting, timeout_ms=1)
    namesrv.addresses.sort()
    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(namesrv.invoke(RequestCode.GET_BROKER_CLUSTER_INFO))
    assert sorted(asked) == ["dead:1"] * 4 + ["live:1"] * 4
    await namesrv.invoke(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert asked[-1] == "live:1"


async def test_the_first_error_cancels_the_other_calls() -> None:
    begun: list[int] = []

    async def action(item: int) -> None:
        begun.append(item)
        if item == 1:
            raise ValueError("one")
        await asyncio.Event().wait()

    with pytest.raises(ValueError, match="one"):
        await for_each(range(9), action, running_max=3)
    assert begun == [0, 1, 2]
