# SPDX-License-Identifier: Apache-2.0
"""Offsets of missing queues are refused, because brokers answer 0 for them and store any offset."""

from collections.abc import Awaitable, Callable

import pytest

from cometmq.client import (
    AdminClient,
    InvalidArgument,
    LitePullConsumer,
    MessageQueue,
    NoRoute,
    Producer,
    PullConsumer,
    PullOptions,
)
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.remoting.codes import RequestCode
from cometmq.testing.client.listening import QUEUE_0, send, texts

BEYOND = MessageQueue("T", "broker-a", 4)
ELSEWHERE = MessageQueue("T", "broker-z", 0)
MISSING = [
    (BEYOND, "the topic T has no queue 4 at broker-a: its queues there are 0 to 3"),
    (ELSEWHERE, "the topic T has no queue 0 at broker-z: it has none there"),
]


async def first_page(admin: AdminClient, queue: MessageQueue) -> None:
    async for _ in admin.read(queue, 0, 1):
        return


@pytest.mark.parametrize(("queue", "text"), MISSING)
async def test_every_client_refuses_a_missing_queue(
    cluster: MemoryCluster, queue: MessageQueue, text: str
) -> None:
    async with (
        AdminClient(cluster.namesrv) as admin,
        Producer("pg", cluster.namesrv) as producer,
        PullConsumer("cg", cluster.namesrv) as consumer,
        LitePullConsumer("lg", cluster.namesrv) as lite,
    ):
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: admin.min_offset(queue),
            lambda: admin.max_offset(queue),
            lambda: admin.search_offset(queue, 0),
            lambda: admin.earliest_store_time(queue),
            lambda: admin.committed_offset("cg", queue),
            lambda: first_page(admin, queue),
            lambda: producer.admin.min_offset(queue),
            lambda: producer.admin.max_offset(queue),
            lambda: producer.admin.search_offset(queue, 0),
            lambda: producer.admin.earliest_store_time(queue),
            lambda: consumer.min_offset(queue),
            lambda: consumer.max_offset(queue),
            lambda: consumer.search_offset(queue, 0),
            lambda: consumer.fetch_offset(queue),
            lambda: consumer.pull(queue, 0),
            lambda: lite.committed(queue),
            lambda: lite.offset_for_timestamp(queue, 0),
        ]
        for number, call in enumerate(calls):
            with pytest.raises(InvalidArgument) as caught:
                await call()
            assert (number, str(caught.value)) == (number, text)


async def test_bounds_are_known_without_an_earlier_call(cluster: MemoryCluster) -> None:
    """The client used to report an unknown broker name instead of looking up the route."""
    await send(cluster, *texts(3))
    async with PullConsumer("cg", cluster.namesrv) as consumer:
        assert await consumer.max_offset(QUEUE_0) == 3
    async with PullConsumer("cg", cluster.namesrv) as consumer:
        assert await consumer.min_offset(QUEUE_0) == 0
    async with PullConsumer("cg", cluster.namesrv) as consumer:
        with pytest.raises(NoRoute, match="no broker has the topic Gone: check the name"):
            await consumer.max_offset(MessageQueue("Gone", "broker-a", 0))


async def test_a_new_queue_is_found_at_once(cluster: MemoryCluster) -> None:
    async with PullConsumer("cg", cluster.namesrv) as consumer:
        assert await consumer.max_offset(QUEUE_0) == 0
        cluster.create_topic("T", queue_count=5)
        assert await consumer.max_offset(BEYOND) == 0


# -- offsets beyond the end -------------------------------------------------------------------


async def test_an_offset_beyond_the_end_is_not_committed(cluster: MemoryCluster) -> None:
    await send(cluster, *texts(3))
    other = MessageQueue("T", "broker-a", 1)
    async with PullConsumer("cg", cluster.namesrv) as consumer:
        consumer.update_offset(QUEUE_0, 4)
        consumer.update_offset(other, 0)
        with pytest.raises(InvalidArgument, match="offset 4 is beyond the end of queue 0 of T at"):
            await consumer.commit()
        assert await consumer.fetch_offset(QUEUE_0) == 0
        await send(cluster, *texts(1))
        await consumer.commit()  # storing 4 now would skip the new message
        assert cluster.committed("cg", "T") == {other: 0}
        consumer.update_offset(QUEUE_0, 4)
        await consumer.commit()
        assert cluster.committed("cg", "T") == {QUEUE_0: 4, other: 0}


async def test_an_offset_that_was_dropped_at_an_interval_fails_the_next_commit(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    options = PullOptions(persist_offset_interval_ms=10)
    async with PullConsumer("cg", cluster.namesrv, options=options) as consumer:
        consumer.update_offset(QUEUE_0, 9)
        await eventually(lambda: "the offset 9 is beyond the end" in caplog.text)
        assert await consumer.fetch_offset(QUEUE_0) == 0
        with pytest.raises(InvalidArgument, match="the offset 9 is beyond the end"):
            await consumer.commit()
        await consumer.commit()
        consumer.update_offset(QUEUE_0, 8)
        await eventually(lambda: "the offset 8 is beyond the end" in caplog.text)
        consumer.update_offset(QUEUE_0, 0)
        await consumer.commit()
    assert caplog.text.count("is beyond the end") == 2


async def test_the_offset_of_a_missing_queue_is_not_committed(cluster: MemoryCluster) -> None:
    async with PullConsumer("cg", cluster.namesrv) as consumer:
        consumer.update_offset(BEYOND, 0)
        with pytest.raises(InvalidArgument, match="has no queue 4 at broker-a"):
            await consumer.commit()
    assert cluster.committed("cg", "T") == {}


async def test_a_known_end_costs_no_request(cluster: MemoryCluster) -> None:
    await send(cluster, *texts(3))
    async with PullConsumer("cg", cluster.namesrv) as consumer:
        found = await consumer.pull(QUEUE_0, 0)
        consumer.update_offset(QUEUE_0, found.next_offset)
        await consumer.commit()
    assert cluster.committed("cg", "T") == {QUEUE_0: 3}
    assert not cluster.broker.requests[RequestCode.GET_MAX_OFFSET]
