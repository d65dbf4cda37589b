# SPDX-License-Identifier: Apache-2.0
"""Routes: which queues a client sends to and pulls from, and when it looks them up again."""

import msgspec
import pytest

from cometmq.client import (
    AdminClient,
    LitePullConsumer,
    LitePullOptions,
    Message,
    Producer,
    ProducerOptions,
)
from cometmq.client.cluster.routes import as_default_route, contradicts, route_of
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.route import BrokerData, QueueData, TopicRoute
from cometmq.remoting.errors import ServerError, SystemBusy, TopicNotExist

ROUTE = TopicRoute(
    broker_datas=[
        BrokerData({0: "a:1", 1: "a:2"}, "a", "c"),
        BrokerData({1: "b:2"}, "b", "c"),
    ],
    queue_datas=[
        QueueData(broker_name="b", perm=6, read_queue_nums=1, write_queue_nums=1),
        QueueData(broker_name="a", perm=6, read_queue_nums=3, write_queue_nums=2),
    ],
)


def test_sends_need_a_master_and_pulls_do_not() -> None:
    route = route_of("T", ROUTE)
    assert route.publish_queues == (MessageQueue("T", "a", 0), MessageQueue("T", "a", 1))
    assert [q.broker_name for q in route.subscribe_queues] == ["a", "a", "a", "b"]


def test_permissions_hide_queues() -> None:
    data = TopicRoute(
        broker_datas=ROUTE.broker_datas,
        queue_datas=[QueueData(broker_name="a", perm=4, read_queue_nums=1, write_queue_nums=1)],
    )
    route = route_of("T", data)
    assert route.publish_queues == ()
    assert len(route.subscribe_queues) == 1


def test_an_order_configuration_sets_the_queues_to_send_to() -> None:
    data = TopicRoute(ROUTE.broker_datas, {}, "a:3;b:1", ROUTE.queue_datas)
    queues = route_of("T", data).publish_queues
    assert [(q.broker_name, q.queue_id) for q in queues] == [("a", 0), ("a", 1), ("a", 2), ("b", 0)]


def test_a_topic_to_be_created_gets_no_more_queues_than_wanted() -> None:
    data = default_topic(7)
    route = as_default_route("New", data, queue_nums=2)
    assert route is not None
    assert route.publish_queues == (MessageQueue("New", "a", 0), MessageQueue("New", "a", 1))
    assert route.is_default


@pytest.mark.parametrize(
    ("perms", "brokers"),
    [((7, 7), {"a", "b"}), ((6, 7), {"b"}), ((6, 6), {"a", "b"}), ((5, 5), set())],
)
def test_brokers_whose_default_topic_is_inherited_are_preferred(
    perms: tuple[int, int], brokers: set[str]
) -> None:
    data = TopicRoute(
        broker_datas=[BrokerData({0: "h:1"}, name, "C") for name in "ab"],
        queue_datas=[
            QueueData(broker_name=name, perm=perm, read_queue_nums=8, write_queue_nums=8)
            for name, perm in zip("ab", perms, strict=True)
        ],
    )
    route = as_default_route("New", data, queue_nums=4)
    assert route is not None
    assert {queue.broker_name for queue in route.publish_queues} == brokers


def default_topic(perm: int) -> TopicRoute:
    return TopicRoute(
        broker_datas=ROUTE.broker_datas,
        queue_datas=[msgspec.structs.replace(it, perm=perm) for it in ROUTE.queue_datas],
    )


@pytest.mark.parametrize(
    ("error", "is_contradiction"),
    [
        (TopicNotExist("topic[T] not exist"), True),
        (ServerError("request queueId[7] is illegal, TopicConfig [topicName=T"), True),
        (ServerError("queueId[7] is illegal, topic:[T] topicConfig.readQueueNums:[4]"), True),
        (ServerError("store putMessage return null"), False),
        (SystemBusy("queueId"), False),
        (OSError("queueId[7] is illegal"), False),
    ],
)
def test_some_refusals_contradict_a_route(error: Exception, *, is_contradiction: bool) -> None:
    assert contradicts(error) is is_contradiction


NEVER_MS = 3_600_000
"""Longer than any test, so the regular refresh never runs."""
SHORT_HOLD = LitePullOptions(poll_namesrv_interval_ms=NEVER_MS, suspend_ms=100)


def queue_consumer(cluster: MemoryCluster) -> LitePullConsumer:
    consumer = LitePullConsumer("lg", cluster.namesrv, options=SHORT_HOLD)
    consumer.subscribe("T")
    return consumer


async def test_a_refused_queue_makes_producers_look_up_the_route(cluster: MemoryCluster) -> None:
    options = ProducerOptions(poll_namesrv_interval_ms=NEVER_MS)
    async with Producer("pg", cluster.namesrv, options=options) as producer:
        await producer.send(Message("T", b"x"))
        cluster.broker.queues.configure("T", 1, perm=6)

        async def has_one_queue() -> bool:
            await producer.send(Message("T", b"x"))
            return len(await producer.queues("T")) == 1

        await eventually(has_one_queue, 60, what="a route with one queue")


async def test_a_refused_queue_makes_consumers_look_up_the_route(cluster: MemoryCluster) -> None:
    async with queue_consumer(cluster) as consumer:
        await eventually(lambda: len(consumer.queues) == 4, 60)
        cluster.broker.queues.configure("T", 1, perm=6)
        await eventually(lambda: len(consumer.queues) == 1, 60, what="one queue")


async def test_a_client_sees_the_queues_that_it_creates_or_asks_for(
    cluster: MemoryCluster,
) -> None:
    async with queue_consumer(cluster) as consumer, AdminClient(cluster.namesrv) as admin:
        await eventually(lambda: len(consumer.queues) == 4, 60)
        await consumer.admin.create_topic("T", queue_count=5)
        await eventually(lambda: len(consumer.queues) == 5, 60, what="five queues")
        # Changed elsewhere: the consumer is not notified.
        await admin.create_topic("T", queue_count=6)
        assert len(await consumer.queues_of("T")) == 6
        await eventually(lambda: len(consumer.queues) == 6, 60, what="six queues")
