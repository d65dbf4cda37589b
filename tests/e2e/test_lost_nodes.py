# SPDX-License-Identifier: Apache-2.0
"""Nodes and processes stop, and networks are partitioned; the nodes are containers here."""

import json
import time

import pytest

from cometmq.peers.e2e import load as loads
from cometmq.peers.e2e import nodes
from cometmq.peers.e2e.kubectl import run, until

TIMEOUT_S = 300
RESTART_S = 180
"""Longest outage while all brokers restart: kubelets restart containers after growing pauses."""
PATIENCE_S = 60
"""Maximum outage on the busiest machine; the report compares outages with the design's limit."""
PARTITION_S = 15
"""Longer than a lease, and than any timeout after which a member counts as lost."""


def master_apart(world):
    """Move the master to a pod whose node runs neither another broker nor the load.

    The node must not run the acting operator either: recovery then takes longer, and is tested by
    `test_a_standby_operator_fails_over`.
    """
    acting = world.operators.get("lease", "op-cometmq-operator")["spec"]["holderIdentity"]
    found = world.mq.get("pod", loads.POD), world.operators.get("pod", acting)
    taken = [pod["spec"]["nodeName"] for pod in found]
    placed = {name: pod["spec"]["nodeName"] for name, pod in world.pods().items()}
    nodes_of_brokers = list(placed.values())
    alone = [
        name
        for name, node in placed.items()
        if node not in taken and nodes_of_brokers.count(node) == 1
    ]
    assert alone, f"no broker is apart: {placed}; load and operator are on {taken}"
    master = world.status()["master"]
    chosen = master if master in alone else alone[0]
    world.switch_over(chosen)
    return chosen, placed[chosen]


def address(pod):
    return pod["status"]["podIP"]


def api_servers():
    """Return the addresses at which pods reach the API server, after Services are resolved."""
    found = json.loads(run("kubectl", "get", "endpoints", "kubernetes", "--output=json"))
    return [one["ip"] for subset in found["subsets"] for one in subset["addresses"]]


def fail_over(world, load, fault):
    """Start a fault, end it once a different broker is the master, and return the outage."""
    before, since = world.status(), load.settle()
    with fault:
        load.again(load.now())
        world.until_epoch_after(before["epoch"])
        until_later(load, load.now() + PARTITION_S)
    world.until_ready()
    outage = load.outage(since, load.settle())
    load.finish()
    assert load.result["faults"] == []
    return outage


def until_later(load, moment):
    """Wait until a send that began after `moment`, on the load's clock, is acknowledged."""
    until(lambda: load.now() >= moment, TIMEOUT_S, "the fault has lasted long enough")
    load.again(moment)


def test_a_master_without_the_api_server(ready, under_load, report):
    """While its slaves acknowledge, the master needs no API server, and no failover happens."""
    master, node = master_apart(ready)
    epoch, here = ready.status()["epoch"], address(ready.pods()[master])
    with under_load() as load:
        since = load.settle()
        with nodes.cut_off(node, here, api_servers()):
            until_later(load, load.now() + PARTITION_S)
        assert ready.until_ready()["epoch"] == epoch
        outage = load.outage(since, load.settle())
        load.finish()
        assert load.result["faults"] == []
    report.add("API server unreachable", "failed sends", outage.failed_count, limit=0)
    assert outage.failed_count == 0, load.result["errors"]


def test_a_master_without_peers_and_api_server(ready, under_load, report):
    """Clients still reach the old master, but once replaced, it must not acknowledge sends."""
    master, node = master_apart(ready)
    pods = ready.pods()
    operators = ready.operators.list("pods", "app.kubernetes.io/name=cometmq-operator")
    others = [
        *(address(pod) for name, pod in pods.items() if name != master),
        *map(address, operators),
        *api_servers(),
    ]
    with under_load() as load:
        outage = fail_over(ready, load, nodes.cut_off(node, address(pods[master]), others))
    report.add("the master isolated", "without sends", outage.pause_s, limit=10, unit="s")
    assert outage.pause_s < PATIENCE_S


@pytest.mark.parametrize(
    ("fault", "open_directions"),
    [
        ("the master cut off from its slaves", {}),
        ("the master does not hear its slaves", {"sends": True}),
        ("the slaves do not hear the master", {"receives": True}),
    ],
    ids=["both-ways", "to-the-master", "from-the-master"],
)
def test_a_partition_between_copies(ready, under_load, report, fault, open_directions):
    """The master takes its slaves out of the set, and refuses sends while it is alone.

    It reaches the API server and the operator, so there is no failover.
    """
    master, node = master_apart(ready)
    pods, epoch = ready.pods(), ready.status()["epoch"]
    slaves = [address(pod) for name, pod in pods.items() if name != master]
    with under_load() as load:
        load.settle()
        with nodes.cut_off(node, address(pods[master]), slaves, **open_directions):
            until(lambda: ready.status()["inSyncCount"] == 1, TIMEOUT_S, "the master is alone")
            time.sleep(PARTITION_S)
        ended = load.now()
        seconds = load.again(ended) - ended
        assert ready.until_ready()["epoch"] == epoch
        load.finish()
        assert load.result["faults"] == []
    report.add(fault, "until sends succeed after it", seconds, limit=10, unit="s")
    assert seconds < PATIENCE_S


def test_a_paused_master(ready, under_load, report):
    """A slave takes over while the master's process is stopped, as by SIGSTOP."""
    node, container = ready.containers()[ready.status()["master"]]
    with under_load() as load:
        outage = fail_over(ready, load, nodes.paused(node, container))
    report.add("the master's process paused", "without sends", outage.pause_s, limit=4, unit="s")
    assert outage.pause_s < PATIENCE_S


def test_a_paused_slave(ready, under_load, report):
    """The in-sync set shrinks, sends continue with the other copies, and the set grows again."""
    status = ready.status()
    slave = next(one["pod"] for one in status["members"] if one["pod"] != status["master"])
    node, container = ready.containers()[slave]
    with under_load() as load:
        since = load.settle()
        with nodes.paused(node, container):
            until(lambda: ready.status()["inSyncCount"] == 2, TIMEOUT_S, "the set has shrunk")
            load.again(load.now())
        assert ready.until_ready()["epoch"] == status["epoch"]
        outage = load.outage(since, load.settle())
        load.finish()
        assert load.result["faults"] == []
    report.add("a slave's process paused", "failed sends", outage.failed_count, limit=0)
    report.add("a slave's process paused", "longest pause", outage.pause_s, limit=10, unit="s")
    assert outage.failed_count == 0, load.result["errors"]


def test_a_frozen_node(ready, under_load, report):
    """A slave takes over, and the old master learns of it before it acknowledges anything else."""
    _, node = master_apart(ready)
    with under_load() as load:
        outage = fail_over(ready, load, nodes.frozen(node))
    report.add("the master's node frozen", "without sends", outage.pause_s, limit=6, unit="s")
    assert outage.pause_s < PATIENCE_S


def test_a_stopped_node(ready, under_load, report):
    """All processes of the node end at once; it returns, and its broker is in sync again."""
    _, node = master_apart(ready)
    with under_load() as load:
        outage = fail_over(ready, load, nodes.stopped(node))
    report.add("the master's node stopped", "without sends", outage.pause_s, limit=6, unit="s")
    assert outage.pause_s < PATIENCE_S


def test_all_brokers_killed_at_once(ready, under_load, report):
    """No message is lost, because the kernels of the nodes continue and have every byte.

    On other nodes, the stores would count as new copies, and a person would have to decide.
    """
    before = ready.status()
    with under_load() as load:
        since = load.settle()
        ready.kill(*ready.pods())
        load.again(load.now())
        ready.until_epoch_after(before["epoch"])
        ready.until_ready()
        outage = load.outage(since, load.settle())
        load.finish()
        assert load.result["faults"] == []
    report.add("all brokers killed", "without sends", outage.pause_s, unit="s")
    assert outage.pause_s < RESTART_S
