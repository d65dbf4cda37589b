# SPDX-License-Identifier: Apache-2.0
"""Releases and groups are removed, with and without a backlog; these scenarios come last."""

from cometmq.peers.e2e import load as loads
from cometmq.peers.e2e.kubectl import run, until
from cometmq.peers.ha.load import CONSUMERS, TOPIC

GROUP = "orders"
TIMEOUT_S = 300
COUNT = 25


def produce(world):
    """Send messages that no consumer reads yet, the last with a delay."""
    words = ("exec", loads.POD, "--", "cometmq", "produce", TOPIC, "1", "-n", world.namesrv)
    world.mq.kubectl(*words, "--count", str(COUNT - 1))
    world.mq.kubectl(*words, "--delay-level", "3")  # 10 s


def consume(world):
    """Consume the messages of `produce` with the group that has consumed all others."""
    output = world.mq.kubectl(
        "exec", "load", "--", "cometmq", "consume", TOPIC, "--group", CONSUMERS,
        "--max", str(COUNT), "--timeout", "120", "-n", world.namesrv,
    )  # fmt: skip
    assert output.split() == ["1"] * COUNT


def test_the_operator_is_uninstalled_and_installed_again(ready, under_load, report):
    """Brokers do not need the operator: no send fails, and the next operator finds the group as it
    was.
    """
    ready.install_operator("upgrade", keeps_definition=True)
    epoch, pods = ready.until_ready()["epoch"], uids(ready)
    with under_load() as load:
        since = load.settle()
        ready.operators.helm("uninstall", "op", "--wait", "--timeout=5m")
        load.again(load.now())
        assert ready.group() is not None
        ready.install_operator()
        assert ready.until_ready()["epoch"] == epoch
        outage = load.outage(since, load.settle())
        load.finish()
        assert load.result["faults"] == []
    assert uids(ready) == pods
    report.add("helm uninstall and install of the operator", "failed sends", outage.failed_count,
               limit=0)  # fmt: skip
    assert outage.failed_count == 0, load.result["errors"]


def uids(world):
    return {name: pod["metadata"]["uid"] for name, pod in world.pods().items()}


def until_backlog(world):
    """Wait until a deletion is waiting for all messages of `produce`, including delayed ones."""

    def backlog():
        drain = world.status().get("drain") or {}
        return drain.get("remainingMessages") == COUNT

    until(backlog, TIMEOUT_S, f"{COUNT} messages remain")
    assert world.status()["phase"] == "Draining"
    assert world.mq.get("statefulset", GROUP) is not None


def until_gone(world):
    until(lambda: world.group() is None, TIMEOUT_S, "the group is gone")
    until(lambda: not world.pods(), TIMEOUT_S, "its pods are gone")
    volumes = f"cometmq.io/broker-group={GROUP}"
    until(lambda: not world.mq.list("pvc", volumes), TIMEOUT_S, "its volumes are gone")


def test_deletion_waits_for_consumers(ready):
    """A deleted group is removed, with its volumes, once its consumers have received everything."""
    produce(ready)
    ready.mq.kubectl("delete", "bg", GROUP, "--wait=false")
    until_backlog(ready)
    consume(ready)
    until_gone(ready)


def test_deletion_without_an_operator(world):
    """The group waits for the next operator, which waits for consumers unless told otherwise."""
    world.create_group()
    world.until_registered()
    with loads.running(world.mq, world.namesrvs) as load:
        load.again(load.now())
        load.finish()
    produce(world)
    pods = uids(world)
    world.install_operator("upgrade", keeps_definition=True)
    world.operators.helm("uninstall", "op", "--wait", "--timeout=5m")
    world.mq.kubectl("delete", "bg", GROUP, "--wait=false")
    assert "deletionTimestamp" in world.group()["metadata"]
    world.install_operator()
    until_backlog(world)
    assert uids(world) == pods
    world.mq.annotate(f"bg/{GROUP}", "cometmq.io/skip-drain", "true")
    until_gone(world)


def test_a_namespace_takes_its_group_along(world):
    """Deletion does not wait for consumers, and the operator needs no rights in the namespace."""
    world.create_group()
    world.mq.delete()
    assert run("kubectl", "get", "namespace", world.mq.name, "--ignore-not-found") == ""
