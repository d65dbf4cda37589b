# SPDX-License-Identifier: Apache-2.0
"""Operators, the record and the API server fail while clients send and consume."""

import json
import threading
import time
from contextlib import contextmanager

from cometmq.peers.e2e import nodes
from cometmq.peers.e2e.kubectl import run, until
from cometmq.peers.ha.report import percentile

GROUP = "orders"
TIMEOUT_S = 300
PATIENCE_S = 60
"""Maximum outage on the busiest machine; the report compares outages with the design's limit."""
API_OUTAGE_S = 300
"""Longer than the 40 s after which nodes count as lost."""
LOST_SLAVE_S = 15
"""Longer than any timeout after which a member counts as lost."""
MOMENTS_S = (0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.2)
"""Times between an order and the end of the operator: it acts within a second, a switchover takes
half a second, and `kubectl delete` and `kubectl annotate` take 0.1 s each.
"""


def operators(world):
    return world.operators.list("pods", "app.kubernetes.io/name=cometmq-operator")


def acting_operator(world):
    return world.operators.get("lease", "op-cometmq-operator")["spec"]["holderIdentity"]


def kill_operator(world, pod):
    world.operators.kubectl("delete", "pod", pod, "--force", "--grace-period=0")


@contextmanager
def delayed(seconds, action):
    """Run an action after some seconds, and have it done before the context is left."""
    timer = threading.Timer(seconds, action)
    timer.start()
    try:
        yield
    finally:
        timer.join()


def until_operators_are_ready(world):
    words = ("rollout", "status", "deploy/op-cometmq-operator", "--timeout=5m")
    world.operators.kubectl(*words)


def test_operators_killed_during_switchovers(ready, under_load, report):
    """The next operator completes the switchover; an order that was lost with one is repeated."""
    pauses = []
    with under_load() as load:
        since = load.settle()
        for moment in MOMENTS_S:
            began, leader = load.now(), acting_operator(ready)
            with delayed(moment, lambda leader=leader: kill_operator(ready, leader)):
                ready.switch_over()
            pauses.append(load.outage(began, load.settle()).pause_s)
            until_operators_are_ready(ready)
        failed = load.outage(since, load.settle()).failed_count
        load.finish()
        assert load.result["faults"] == []
    scenario = f"{len(MOMENTS_S)} operators killed during switchovers"
    report.add(scenario, "failed sends", failed, limit=0)
    report.add(scenario, "longest pause, median", percentile(pauses, 0.5), unit="s")
    report.add(scenario, "longest pause", max(pauses), limit=15, unit="s")
    assert failed == 0
    assert max(pauses) < PATIENCE_S


def test_a_deleted_record(ready, under_load, report):
    """The operator fences all brokers and creates the record again, with a later epoch."""
    before = ready.status()
    with under_load() as load:
        since = load.settle()
        ready.mq.kubectl("delete", "lease", GROUP)
        load.again(load.now())
        ready.until_epoch_after(before["epoch"])
        ready.until_ready()
        outage = load.outage(since, load.settle())
        load.finish()
        assert load.result["faults"] == []
    report.add("record deleted by hand", "without sends", outage.pause_s, limit=10, unit="s")
    assert outage.pause_s < PATIENCE_S


def test_an_unreachable_api_server(ready, under_load, report):
    """Neither brokers nor operators reach the API server, and Kubernetes counts all nodes as lost.

    Sends continue. Once a slave is lost as well, nobody can take it out of the set, so sends wait
    for the API server.
    """
    status = ready.status()
    slave = next(one["pod"] for one in status["members"] if one["pod"] != status["master"])
    control_plane, clients = api_and_clients()
    with under_load() as load:
        since = load.settle()
        with nodes.unreachable_api(control_plane, clients):
            start = load.now()
            until(lambda: load.now() >= start + API_OUTAGE_S, 2 * API_OUTAGE_S, "the outage lasts")
            load.again(load.now())
            outage = load.outage(since, load.settle())
            ready.kill(slave)
            time.sleep(LOST_SLAVE_S)
        ended = load.now()
        seconds = load.again(ended) - ended
        ready.until_ready()
        load.finish()
        assert load.result["faults"] == []
    scenario = f"no API server for {API_OUTAGE_S} s"
    report.add(scenario, "failed sends", outage.failed_count, limit=0)
    report.add(scenario, "longest pause", outage.pause_s, limit=1, unit="s")
    report.add(f"{scenario}, then a slave is killed", "until sends succeed after the outage",
               seconds, limit=10, unit="s")  # fmt: skip
    assert outage.failed_count == 0, load.result["errors"]
    assert seconds < PATIENCE_S


def api_and_clients():
    """Return the node of the API server, and the addresses and networks of nodes and pods."""
    found = json.loads(run("kubectl", "get", "nodes", "--output=json"))["items"]
    addresses = {one["metadata"]["name"]: node_address(one) for one in found}
    (control_plane,) = (name for name in addresses if name.endswith("-control-plane"))
    workers = [address for name, address in addresses.items() if name != control_plane]
    return control_plane, [*workers, *(one["spec"]["podCIDR"] for one in found)]


def node_address(node):
    found = node["status"]["addresses"]
    return next(one["address"] for one in found if one["type"] == "InternalIP")
