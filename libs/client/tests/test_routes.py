# SPDX-License-Identifier: Apache-2.0
"""Routes: which queues of a topic a client sends to and pulls from."""

from cometmq.client.cluster.routes import as_default_route, route_of
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.route import BrokerData, QueueData, TopicRoute

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
    queues = as_default_route("New", ROUTE, queue_nums=2).publish_queues
    assert queues == (MessageQueue("New", "a", 0), MessageQueue("New", "a", 1))
