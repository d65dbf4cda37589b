# SPDX-License-Identifier: Apache-2.0
"""Releases and groups are removed, with and without a backlog; these scenarios come last."""

from cometmq.peers.e2e.kubectl import run, until
from cometmq.peers.ha.load import TOPIC

GROUP = "orders"
TIMEOUT_S = 300
COUNT = 25


def produce(world):
    """Send messages that no consumer reads yet."""
    world.mq.kubectl(
        "exec", "load", "--", "cometmq", "produce", TOPIC, "1", "--count", str(COUNT),
        "-n", world.namesrv,
    )  # fmt: skip


def consume(world):
    """Consume the messages of `produce` with the group that has consumed all others."""
    output = world.mq.kubectl(
        "exec", "load", "--", "cometmq", "consume", TOPIC, "--group", "ledger-readers",
        "--max", str(COUNT), "--timeout", "120", "-n", world.namesrv,
    )  # fmt: skip
    assert output.split() == ["1"] * COUNT


def test_the_operator_is_uninstalled_and_installed_again(ready, under_load, report):
    """Brokers do not need it: no send fails, and the next operator finds the group as it was."""
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


def test_deletion_waits_for_consumers(ready):
    """A deleted group is removed, with its volumes, once its consumers have received everything."""
    produce(ready)
    ready.mq.kubectl("delete", "bg", GROUP, "--wait=false")

    def backlog():
        drain = ready.status().get("drain") or {}
        return drain.get("remainingMessages") == COUNT

    until(backlog, TIMEOUT_S, f"{COUNT} messages remain")
    assert ready.status()["phase"] == "Draining"
    assert ready.mq.get("statefulset", GROUP) is not None
    consume(ready)
    until(lambda: ready.group() is None, TIMEOUT_S, "the group is gone")
    until(lambda: not ready.pods(), TIMEOUT_S, "its pods are gone")
    volumes = f"cometmq.io/broker-group={GROUP}"
    until(lambda: not ready.mq.list("pvc", volumes), TIMEOUT_S, "its volumes are gone")


def test_a_namespace_takes_its_group_along(world):
    """Deletion does not wait for consumers, and the operator needs no rights in the namespace."""
    world.create_group()
    world.mq.delete()
    assert run("kubectl", "get", "namespace", world.mq.name, "--ignore-not-found") == ""
