# SPDX-License-Identifier: Apache-2.0
"""Anybody who can reach a name server can register brokers and topics, so clients survive any
route.
"""

from typing import Any

import pytest

from cometmq.client import AdminClient, Message, Producer
from cometmq.client.cluster.routes import (
    ADDRESSES_MAX,
    as_default_route,
    checked_cluster,
    checked_route,
    created_part,
    route_of,
)
from cometmq.client.testing import MemoryCluster
from cometmq.client.testing.broker import MemoryBroker
from cometmq.remoting.bodies.route import BrokerData, ClusterInfo, QueueData, TopicRoute
from cometmq.remoting.bodies.topic_config import QUEUES_MAX
from cometmq.remoting.errors import AccessDenied, RemoteProtocolError

WRONG = (
    "\x1b[2J:5",
    "",
    "nowhere",
    "host:0",
    f"host:{'9' * 5_000}",
    "http://host:1",
    "a b:1",
    "a..b:1",
    "\ufffd:1",
)


def topic_of(count: int, order: str | None = None) -> TopicRoute:
    queues = QueueData(broker_name="a", perm=6, read_queue_nums=count, write_queue_nums=1)
    return TopicRoute([BrokerData({0: "a:1"}, "a", "c")], {}, order, [queues])


@pytest.mark.parametrize(
    "data",
    [
        topic_of(2**31 - 1),
        topic_of(QUEUES_MAX + 1),
        topic_of(1, "a:2000000000"),
        topic_of(1, ";".join(["a:100000"] * 2)),
        topic_of(1, f"a:{'9' * 5_000}"),
    ],
)
def test_a_route_with_more_queues_than_any_topic_is_refused(data: TopicRoute) -> None:
    with pytest.raises(RemoteProtocolError, match=r"has [\d,]+ queues, more than 16,384"):
        checked_route("T", data)


@pytest.mark.parametrize("is_one_group", [True, False])
def test_more_brokers_than_any_client_connects_to_are_refused(is_one_group: bool) -> None:
    addresses = {number: f"host:{number + 1}" for number in range(ADDRESSES_MAX + 1)}
    groups = {
        str(number): BrokerData({0: address}, str(number), "c")
        for number, address in addresses.items()
    }
    if is_one_group:
        groups = {"a": BrokerData(addresses, "a", "c")}
    for check in (
        lambda: checked_route("T", TopicRoute([*groups.values()])),
        lambda: checked_cluster(ClusterInfo(groups)),
    ):
        with pytest.raises(RemoteProtocolError, match=r"has 1,025 brokers, more than 1,024"):
            check()


def test_millions_of_entries_are_refused_before_they_are_visited() -> None:
    class Entries(list[Any]):
        def __iter__(self) -> Any:
            raise AssertionError("visited")

    many = Entries([QueueData()] * (ADDRESSES_MAX + 1))
    with pytest.raises(RemoteProtocolError, match="has 1,025 brokers"):
        checked_route("T", TopicRoute(queue_datas=many))
    with pytest.raises(RemoteProtocolError, match="has 4,194,304 brokers"):
        checked_route("T", TopicRoute(order_topic_conf="a:0;" * (1 << 22)))


def test_a_queue_that_is_listed_twice_is_one_queue() -> None:
    data = topic_of(2)
    data.queue_datas *= 2
    route = route_of("T", checked_route("T", data))
    assert [it.queue_id for it in route.subscribe_queues] == [0, 1]
    assert [it.queue_id for it in route.publish_queues] == [0]


def test_a_broker_that_created_a_topic_may_leave_the_route() -> None:
    """It raised KeyError for every later send without the default topic."""
    data = topic_of(1)
    data.queue_datas[0].perm = 7
    route = as_default_route("T", data, queue_nums=4)
    assert route is not None
    assert created_part(route, {"a", "gone"}).queue_counts == {"a": 1}
    assert created_part(route, {"gone"}).publish_queues == ()


@pytest.mark.parametrize("data", [topic_of(-5), topic_of(QUEUES_MAX), topic_of(1, "a:\u00b2;b:x")])
def test_other_routes_are_used(data: TopicRoute) -> None:
    route = route_of("T", checked_route("T", data))
    assert len(route.subscribe_queues) == max(0, data.queue_datas[0].read_queue_nums)
    assert len(route.publish_queues) == 1


@pytest.mark.parametrize("address", WRONG)
def test_a_broker_with_a_wrong_address_has_none(address: str) -> None:
    data = BrokerData({0: address, 1: "a:2"}, "a", "c")
    assert checked_route("T", TopicRoute([data])).broker_datas == [BrokerData({1: "a:2"}, "a", "c")]
    info = checked_cluster(ClusterInfo({"a": data}, {"c": ["a", "missing"]}))
    assert info == ClusterInfo({"a": BrokerData({1: "a:2"}, "a", "c")}, {"c": ["a"]})


@pytest.mark.parametrize("address", WRONG)
async def test_a_wrong_registration_keeps_nobody_from_the_other_brokers(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = MemoryCluster(["broker-a", "broker-b"])
    described = cluster.broker_data

    def registered(broker: MemoryBroker) -> BrokerData:
        data = described(broker)
        wrong = BrokerData({0: address}, data.broker_name, data.cluster)
        return wrong if broker.name == "broker-b" else data

    monkeypatch.setattr(cluster, "broker_data", registered)
    async with cluster:
        cluster.create_topic("T")
        async with AdminClient(cluster.namesrv) as admin:
            assert list(await admin.masters()) == ["broker-a"]
        async with Producer("pg", cluster.namesrv) as producer:
            sent = {(await producer.send(Message("T", b"x"))).queue.broker_name for _ in range(8)}
        assert sent == {"broker-a"}


async def test_brokers_with_changing_addresses_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Containers get a new address at every start; a client may run for years."""
    cluster = MemoryCluster()
    described, hosts = cluster.broker_data, ["127.0.0.1"]

    def registered(broker: MemoryBroker) -> BrokerData:
        data = described(broker)
        port = data.broker_addrs[0].rpartition(":")[2]
        return BrokerData({0: f"{hosts[-1]}:{port}"}, data.broker_name, data.cluster)

    monkeypatch.setattr(cluster, "broker_data", registered)
    async with cluster, Producer("pg", cluster.namesrv) as producer:
        cluster.create_topic("T")
        await producer.send(Message("T", b"x"))
        instance = producer._running()
        heartbeats, routes = instance.heartbeats, instance.routes
        assert await heartbeats.send()
        (former,) = heartbeats._greeted
        heartbeats.refusals[former] = AccessDenied("no")
        hosts.append("localhost")
        await routes.refresh("T")
        assert await heartbeats.send()
        assert heartbeats._greeted == set(routes.brokers.all(with_slaves=True)) != {former}
        assert heartbeats.refusals == {}
