# SPDX-License-Identifier: Apache-2.0
"""Clients on this machine, outside the cluster, use a group with node ports across a failover."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cometmq.peers.comet import PROGRAM
from cometmq.peers.e2e import load
from cometmq.peers.e2e.broker_groups import is_ready
from cometmq.peers.e2e.kubectl import run, until
from cometmq.peers.errors import PeerError

GROUP = "outside"
CLUSTER = "OutsideCluster"
"""Its own, so that topics are not created on groups whose pods cannot be reached from outside."""
TOPIC = "outside-orders"
NAMESRV = "outside-namesrv"
NODE_PORTS = [30911, 30912]
COUNT = 20
TIMEOUT_S = 300

Comet = Callable[..., str]


@pytest.fixture(scope="module")
def namesrv(world) -> Iterator[str]:
    """Return an address of the name servers that works outside the cluster."""
    mq = world.mq
    mq.kubectl("expose", "service", "mq-cometmq-namesrv", f"--name={NAMESRV}", "--type=NodePort")
    port = mq.get("service", NAMESRV)["spec"]["ports"][0]["nodePort"]
    yield f"{world.node_addresses()[0]}:{port}"
    mq.kubectl("delete", "service", NAMESRV)


@pytest.fixture(scope="module")
def comet(namesrv) -> Comet:
    return lambda *words: run(str(PROGRAM), *words, "-n", namesrv)


def status(world) -> dict[str, Any]:
    return dict(world.mq.get("bg", GROUP)["status"])


def until_ready(world) -> dict[str, Any]:
    until(lambda: is_ready(world.mq.get("bg", GROUP)), TIMEOUT_S, f"{GROUP} is ready")
    return status(world)


def produce(comet: Comet, text: str) -> None:
    """Send COUNT messages once a send is accepted; a refused attempt stores none."""

    def sent() -> bool:
        try:
            comet("produce", TOPIC, text, "--count", "1")
        except PeerError:
            return False
        return True

    until(sent, TIMEOUT_S, "a send is accepted")
    comet("produce", TOPIC, text, "--count", str(COUNT - 1))


def test_brokers_register_addresses_of_their_nodes(world):
    external = {"type": "NodePort", "nodePorts": NODE_PORTS}
    world.apply_group(GROUP, replicas=2, clusterName=CLUSTER, external=external)
    until_ready(world)
    topic = {"nameServers": [world.namesrv], "clusterName": CLUSTER}
    world.mq.apply(
        {
            "apiVersion": "cometmq.io/v1alpha1", "kind": "Topic", "metadata": {"name": TOPIC},
            "spec": topic,
        }
    )  # fmt: skip
    world.mq.kubectl("wait", "--for=condition=Ready", f"mqt/{TOPIC}", "--timeout=120s")
    # Inside the cluster, the addresses can be reached too: the command fails for a silent broker.
    command = ("cometmq", "cluster", "-n", world.namesrv)
    shown = world.mq.kubectl("exec", load.POD, "--", *command)
    pods = world.mq.list("pods", f"cometmq.io/broker-group={GROUP}")
    for pod in pods:
        port = NODE_PORTS[int(pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"])]
        assert f"{pod['status']['hostIP']}:{port}" in shown


def test_a_failover_loses_nothing_of_clients_outside(world, comet, report):
    produce(comet, "before")
    before = until_ready(world)
    world.kill(before["master"])
    until(lambda: status(world)["epoch"] > before["epoch"], TIMEOUT_S, "the next master")
    produce(comet, "after")
    until_ready(world)
    output = comet(
        "consume", TOPIC, "--group", "outside-billing", "--max", str(2 * COUNT), "--timeout", "120"
    )
    bodies = output.split()
    scenario = "failover for clients outside the cluster"
    report.add(scenario, "lost messages", 2 * COUNT - len(bodies), limit=0)
    assert sorted(bodies) == ["after"] * COUNT + ["before"] * COUNT


def test_addresses_are_taken_back(world):
    world.mq.kubectl("patch", "bg", GROUP, "--type=merge", '-p={"spec":{"external":null}}')

    def is_internal() -> bool:
        services = world.mq.list("services", f"cometmq.io/broker-group={GROUP}")
        names = sorted(one["metadata"]["name"] for one in services)
        return names == [f"{GROUP}-master", f"{GROUP}-peers"]

    until(is_internal, TIMEOUT_S, "the Services of the brokers are gone")
    until_ready(world)
    world.mq.kubectl("delete", "mqt", TOPIC)
    world.mq.kubectl("annotate", "bg", GROUP, "cometmq.io/skip-drain=true")
    world.mq.kubectl("delete", "bg", GROUP, "--wait=false")
    until(lambda: world.mq.get("bg", GROUP) is None, TIMEOUT_S, "the group is gone")
