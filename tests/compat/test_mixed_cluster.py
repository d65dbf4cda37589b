# SPDX-License-Identifier: Apache-2.0
"""Runs a name server and a broker of different implementations, and clients that use TLS."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cometmq.peers.clients.javaclient import VERSION_5, VERSIONS, JavaClient, MqAdmin
from cometmq.peers.clients.programs import ClientProgram
from cometmq.peers.cluster import Cluster, Layout
from cometmq.peers.content import create_topic, received, sent
from cometmq.peers.processes import wait_until
from cometmq.peers.settled import wait_for_dispatch
from cometmq.peers.wire import call, registered_brokers

pytestmark = pytest.mark.compat

COUNT = 20
GET_ROUTE = 105
TOPIC_NOT_EXIST = 17
FORGET_TIMEOUT_S = 120
PAIRS = [
    pytest.param(("comet", "java"), id="comet-java"),
    pytest.param(("java", "comet"), id="java-comet"),
    pytest.param(("java", "java"), id="java-java", marks=pytest.mark.slow),
]


@pytest.fixture
def mixed_cluster(
    request: pytest.FixtureRequest, tmp_path: Path, maker: Callable[[str], type[Cluster]]
) -> Iterator[tuple[Cluster, Cluster]]:
    layout = Layout.fresh(tmp_path, broker_count=1)
    with ExitStack() as stack:
        namesrv, broker = (
            maker(name)(tmp_path / f"{number}-{name}", layout=layout)
            for number, name in enumerate(request.param)
        )
        stack.callback(namesrv.kill)
        stack.callback(broker.kill)
        namesrv.start_namesrv()
        broker.directory.mkdir(parents=True, exist_ok=True)
        broker.start_broker()
        yield namesrv, broker


@pytest.mark.parametrize("mixed_cluster", PAIRS, indirect=True)
def test_a_broker_lives_with_the_other_makers_name_server(
    mixed_cluster: tuple[Cluster, Cluster], java: ClientProgram
) -> None:
    namesrv, broker = mixed_cluster
    create_topic(namesrv.namesrv_addr, broker.broker_addrs, "MixedTopic")
    server = {"namesrv": namesrv.namesrv_addr, "topic": "MixedTopic", "count": COUNT}
    wanted = sent(java.run("send", **server))
    assert received(java.run("consume", group="MixedGroup", **server)) == wanted

    broker.kill_broker()
    wait_until(
        lambda: not registered_brokers(namesrv.namesrv_addr), FORGET_TIMEOUT_S, "broker forgotten"
    )
    answer = call(namesrv.namesrv_addr, GET_ROUTE, {"topic": "MixedTopic"})
    assert answer.code == TOPIC_NOT_EXIST


@pytest.mark.parametrize("version", VERSIONS)
def test_java_clients_use_tls_on_the_same_port(
    cluster: Cluster, log_dir: Path, topic: str, group: str, version: str
) -> None:
    client = JavaClient(
        log_dir, version, properties={"tls.enable": "true", "tls.client.authServer": "false"}
    )
    server = {"namesrv": cluster.namesrv_addr, "topic": topic, "count": COUNT}

    wanted = sent(client.run("send", **server))

    assert received(client.run("consume", group=group, **server)) == wanted


def test_binary_headers(cluster: Cluster, log_dir: Path, topic: str, group: str) -> None:
    """The client encodes headers in the compact form instead of JSON."""
    client = JavaClient(log_dir, properties={"rocketmq.serialize.type": "ROCKETMQ"})
    server = {"namesrv": cluster.namesrv_addr, "topic": topic, "count": COUNT}

    wanted = sent(client.run("send", mode="batch", **server))

    assert received(client.run("consume", group=group, orderly="true", **server)) == wanted


def test_mqadmin_of_5x(cluster: Cluster, topic: str, group: str) -> None:
    """Newer tools work with our server as far as they work with a 4.9.4 server."""
    address = cluster.broker_addrs[0]
    with MqAdmin(cluster.namesrv_addr, VERSION_5) as mqadmin:
        listed = {row[0] for row in mqadmin.run("topicList").rows()}
        route = mqadmin.run("topicRoute", "-t", topic, "-l").rows()[0]
        created = mqadmin.run("updateTopic", "-b", address, "-t", f"{topic}New", "-r", "2")
        granted = mqadmin.run("updateSubGroup", "-b", address, "-g", group)
        ((broker, queue, status, unique_id),) = mqadmin.run(
            "sendMessage", "-t", topic, "-p", "by hand", "-k", "hand"
        ).rows()
        wait_for_dispatch(cluster)
        found = mqadmin.run("queryMsgByKey", "-t", topic, "-k", "hand").rows()

    assert topic in listed
    assert route[-3:] == ["4", "4", "6"]
    assert f"create topic to {address} success." in created.output
    assert f"create subscription group to {address} success." in granted.output
    assert (broker, status) == (cluster.broker_names[0], "SEND_OK")
    assert [row[:3] for row in found] == [[unique_id, queue, "0"]]  # 5.5 adds the key in the index
