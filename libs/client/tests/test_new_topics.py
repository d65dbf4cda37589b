# SPDX-License-Identifier: Apache-2.0
"""Calls about a topic that a send has just created, before brokers have registered it."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from cometmq.client import (
    AdminClient,
    Message,
    MessageQueue,
    NoRoute,
    Producer,
    PullConsumer,
    SendResult,
)
from cometmq.client.cluster import route_book
from cometmq.client.testing import MemoryCluster
from cometmq.remoting.bodies.route import TopicRoute

LATE_MS = 100
"""How long after its first message a topic has no route."""


@pytest.fixture
def late(pair: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    """Register each broker's new topics late."""
    route = pair.route
    known: set[tuple[str, str]] = set()

    def late_route(topic: str) -> TopicRoute | None:
        found = route(topic)
        if found is None or topic != "New":
            return found
        names = {queue.broker_name for queue in found.queue_datas}
        for place in {(topic, name) for name in names} - known:
            asyncio.get_running_loop().call_later(LATE_MS / 1000, known.add, place)
        return (
            TopicRoute(
                broker_datas=[it for it in found.broker_datas if (topic, it.broker_name) in known],
                queue_datas=[it for it in found.queue_datas if (topic, it.broker_name) in known],
            )
            if any((topic, name) in known for name in names)
            else None
        )

    monkeypatch.setattr(pair, "route", late_route)
    return pair


CALLS: dict[str, Callable[[AdminClient, SendResult], Awaitable[object]]] = {
    "view by unique key": lambda admin, sent: admin.view_message(sent.message_id, "New"),
    "view by offset id": lambda admin, sent: admin.view_message(sent.offset_message_id, "New"),
    "query": lambda admin, sent: admin.query_by_key("New", "k"),
    "queues": lambda admin, sent: admin.queues("New"),
    "max offset": lambda admin, sent: admin.max_offset(sent.queue),
    "search": lambda admin, sent: admin.search_offset(sent.queue, 0),
    "statistics": lambda admin, sent: admin.topic_stats("New"),
}


@pytest.mark.parametrize("call", CALLS)
async def test_an_admin_call_finds_a_topic_that_a_send_has_just_created(
    late: MemoryCluster, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(
        route_book, "NEW_TOPIC_MS", 60_000
    )  # a busy machine may need more than 0.3 s
    async with Producer("pg", late.namesrv) as producer, AdminClient(late.namesrv) as admin:
        sent = await producer.send(Message("New", b"x", keys="k"))
        assert await CALLS[call](admin, sent) is not None


async def test_the_admin_of_a_producer_waits_for_all_brokers_that_have_its_messages(
    late: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route_book, "NEW_TOPIC_MS", 0)
    async with Producer("pg", late.namesrv) as producer:
        for name in ("broker-a", "broker-b"):
            queue = MessageQueue("New", name, 0)
            sent = await producer.send(Message("New", b"x"), queue=queue)
            found = await producer.admin.view_message(sent.message_id, "New")
            assert found.queue == queue


async def test_a_consumer_finds_the_queues_of_a_topic_that_a_send_has_just_created(
    late: MemoryCluster,
) -> None:
    async with Producer("pg", late.namesrv) as producer, PullConsumer("cg", late.namesrv) as reader:
        sent = await producer.send(Message("New", b"x"))
        assert sent.queue in await reader.queues_of("New")
        assert (await reader.pull(sent.queue, 0)).messages


async def test_a_missing_topic_is_reported_after_a_moment(
    admin: AdminClient, lookups: list[str]
) -> None:
    async with asyncio.timeout(30):
        with pytest.raises(NoRoute):
            await admin.queues("Nowhere")
    assert 1 < lookups.count("Nowhere") < 10


async def test_no_call_waits_for_a_retry_topic(cluster: MemoryCluster, lookups: list[str]) -> None:
    async with AdminClient(cluster.namesrv) as admin:
        with pytest.raises(NoRoute):
            await admin.queues("%RETRY%cg")
    assert lookups.count("%RETRY%cg") == 1
