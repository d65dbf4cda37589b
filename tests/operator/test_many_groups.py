# SPDX-License-Identifier: Apache-2.0
"""One operator manages 50 groups within its limits of memory, API writes and failover times.

The operator is a process of its own, started as in its container; see
`cometmq.peers.scale.operator` for the two arguments that differ. The brokers are real, with the
settings that the operator renders, but many share a process. Their addresses are given to the
operator in place of DNS names: a hosts file in a mount namespace would need root and an API server
on port 443, and would change nothing else. The limits are meant for 50 groups (`--groups`): the
operator renews one Lease however many groups there are.
"""

import asyncio
import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cometmq.operator.broker_groups.group import SWITCHOVER
from cometmq.operator.leader import RENEW_MS
from cometmq.peers.e2e.metrics import api_writes
from cometmq.peers.kube import KubeApiServer
from cometmq.peers.paths import ROOT
from cometmq.peers.ports import free_broker_port, free_port
from cometmq.peers.processes import wait_until
from cometmq.peers.scale.cluster import GROUPS_MAX, Cluster, group_name
from cometmq.peers.scale.processes import (
    Operator,
    grown,
    memory_mb,
    node,
    processor_s,
    running,
)
from cometmq.remoting.errors import CometError
from cometmq.testing.broker.clients import Client

pytestmark = pytest.mark.timeout(2_400)  # 100 brokers start within minutes on two cores

NAMESPACE = "many"
LOST_MAX = 10
"""Masters that are lost at once; all of them run on one node, which runs nothing else."""
PODS_PER_NODE = 30
RUNNING_S = 600.0
QUIET_S = 10.0
"""The groups have settled when the operator has changed nothing for this time."""
SETTLED_S = 180.0
MEASURED_S = 60.0
MINUTES_MAX = 4
AGAIN_S = 60.0

MEMORY_MB = 140
WRITES = 1.2
OWN_REQUESTS = 0.2
"""Per second and group."""
FAILOVER_S = 10.0


class World:
    """An API server, an operator, and nodes that run the brokers of many groups."""

    def __init__(self, folder: Path, count: int) -> None:
        assert 0 < count <= GROUPS_MAX
        self.names = [group_name(number) for number in range(count)]
        self.lost = self.names[:LOST_MAX]
        self.kube = KubeApiServer(folder / "kube")
        self._folder = folder
        self._stack = ExitStack()

    def start(self) -> None:
        stack, kube, file = self._stack, self.kube, self._folder / "cluster.json"
        stack.enter_context(kube)
        kube.kubectl("apply", "-f", str(ROOT / "deploy/crds"))
        kube.kubectl("wait", "--for=condition=Established", "crd", "--all")
        kube.kubectl("create", "namespace", NAMESPACE)
        token = self._folder / "token"
        token.write_text(kube.token)
        self.cluster = Cluster(
            api_port=kube.port, ca=str(kube.certificate), token=str(token), namespace=NAMESPACE,
            main_port=free_broker_port(), control_port=free_port(),
        )  # fmt: skip
        self.cluster.save(file)
        self.operator = Operator(file, self._folder)
        stack.enter_context(running(self.operator.child))
        body = {"apiVersion": "v1", "kind": "List", "items": [group(name) for name in self.names]}
        kube.kubectl("apply", "-f", "-", stdin=json.dumps(body))
        self.nodes = {}
        for name, pods in self._placed().items():
            self.nodes[name] = stack.enter_context(running(node(name, file, self._folder, pods)))
        for one in self.nodes.values():
            one.wait_for_log("node.ready", RUNNING_S)
        self.operator.child.wait_until(self.is_running, RUNNING_S, "all groups are running")

    def stop(self) -> None:
        self._stack.close()

    def _placed(self) -> dict[str, list[str]]:
        """Return the pods of each node; those on the node `lost` become masters."""
        lost = [f"{name}-0" for name in self.lost]
        rest = [f"{name}-{n}" for name in self.names for n in (0, 1) if f"{name}-{n}" not in lost]
        parts = [rest[at : at + PODS_PER_NODE] for at in range(0, len(rest), PODS_PER_NODE)]
        return {"lost": lost} | {f"node-{number}": part for number, part in enumerate(parts)}

    @property
    def pids(self) -> dict[str, int]:
        nodes = {name: one.pid for name, one in self.nodes.items() if one.exit_status is None}
        return {"operator": self.operator.child.pid, **self.kube.pids, **nodes}

    def statuses(self) -> dict[str, Any]:
        found = self.kube.objects("bg", "-n", NAMESPACE)["items"]
        return {one["metadata"]["name"]: one.get("status", {}) for one in found}

    def is_running(self) -> bool:
        statuses = self.statuses()
        return len(statuses) == len(self.names) and all(
            (one.get("phase"), one.get("inSyncCount")) == ("Running", 2)
            for one in statuses.values()
        )

    def figures(self):
        """Return the operator's requests, all clients' writes, and processor times, so far."""
        requests, writes = self.operator.requests(), api_writes(self.kube.metrics())
        return requests, writes, processor_s(self.pids)

    def until_settled(self) -> None:
        """Wait until all groups run and the operator writes nothing but its own Lease."""
        renewals = QUIET_S * 1000 // RENEW_MS + 1
        end = time.monotonic() + SETTLED_S
        while time.monotonic() < end:
            before = self.operator.writes()
            time.sleep(QUIET_S)
            if self.operator.writes() - before <= renewals and self.is_running():
                return
        raise AssertionError(f"not settled: {self.statuses()}")


def group(name):
    return {
        "apiVersion": "cometmq.io/v1alpha1",
        "kind": "BrokerGroup",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"replicas": 2, "nameServers": ["127.0.0.1:1"]},
    }


@pytest.fixture(scope="module")
def world(request, tmp_path_factory):
    one = World(tmp_path_factory.mktemp("many"), request.config.getoption("--groups"))
    try:
        one.start()
        yield one
    finally:
        one.stop()


def test_groups_at_rest_cause_few_requests(world, figures):
    """Counts during a minute in which no status changes, which a busy machine may prevent."""
    count, per = len(world.names), MEASURED_S * len(world.names)
    for _ in range(MINUTES_MAX):
        world.until_settled()
        statuses = world.statuses()
        before = world.figures()
        time.sleep(MEASURED_S)
        own, writes, used = map(grown, before, world.figures())
        if world.statuses() == statuses:
            break
    else:
        pytest.fail(f"the groups were not at rest: {world.statuses()}")
    figures += [
        f"groups at rest: {count}, for {MEASURED_S:.0f} s",
        f"  API writes of all clients: {sum(writes.values()) / per:.3f} /s and group: {writes}",
        f"  requests of the operator: {sum(own.values()) / per:.3f} /s and group: {own}",
        *(f"  processor, {name}: {s / MEASURED_S:.3f} s/s" for name, s in used.items()),
        f"  memory of the operator: {memory_mb(world.operator.child.pid):.0f} MB",
    ]
    assert writes.get("PATCH leases", 0) > count * MEASURED_S * 0.1, "no master renews its record"
    assert sum(writes.values()) / per <= WRITES
    assert sum(own.values()) / per <= OWN_REQUESTS


async def test_masters_that_are_lost_at_once_are_replaced(world, figures):
    await asyncio.to_thread(make_masters, world)
    before = await asyncio.to_thread(world.statuses)
    for name in world.lost:
        await send(world.cluster.main(name, 0))
    used = processor_s(world.pids)
    world.nodes["lost"].kill()
    killed = time.monotonic()
    again: dict[str, float] = {}
    async with asyncio.timeout(AGAIN_S), asyncio.TaskGroup() as tasks:
        for name in world.lost:
            tasks.create_task(note_again(world, name, killed, again))
    used = grown(used, processor_s(world.pids))
    await asyncio.to_thread(wait_until, lambda: are_replaced(world, before), AGAIN_S, "new masters")
    times = sorted(again.values())
    outages = [
        value
        for key, value in world.operator.metrics().items()
        for family, _, labels in [key.partition(":")]
        if family == "cometmq_elector_last_outage_seconds"
        and set(labels.split(":")) & set(world.lost)
    ]
    figures += [
        f"masters lost at once: {len(times)}",
        f"  seconds until a send succeeds: {' '.join(f'{one:.2f}' for one in times)}",
        f"  seconds from loss noticed to master: {' '.join(f'{s:.2f}' for s in sorted(outages))}",
        f"  processor meanwhile [s]: { {name: round(s, 2) for name, s in used.items()} }",
    ]
    assert times[-1] < FAILOVER_S


def test_the_operator_needs_little_memory(world, figures):
    """Runs last: the peak includes the creation of all groups and the failovers."""
    peak = memory_mb(world.operator.child.pid, "VmHWM")
    figures.append(f"peak memory of the operator: {peak:.0f} MB")
    assert peak < MEMORY_MB


def make_masters(world):
    """Make the brokers on the node that will be lost masters of their groups."""
    world.until_settled()
    statuses = world.statuses()
    wanted = {name: f"{name}-0" for name in world.lost}
    for name, pod in wanted.items():
        if statuses[name].get("master") != pod:
            world.kube.kubectl("annotate", "bg", name, "-n", NAMESPACE, f"{SWITCHOVER}={pod}")

    def are_masters():
        found = world.statuses()
        return all(found[name].get("master") == pod for name, pod in wanted.items())

    wait_until(are_masters, SETTLED_S, "the masters run on one node")
    world.until_settled()


def are_replaced(world, before):
    after = world.statuses()
    return all(
        after[name].get("master") == f"{name}-1" and after[name]["epoch"] > before[name]["epoch"]
        for name in world.lost
    )


async def note_again(world, name, killed, again):
    while True:
        try:
            await send(world.cluster.main(name, 1))
        except CometError:
            await asyncio.sleep(0.05)
            continue
        again[name] = time.monotonic() - killed
        return


async def send(address):
    client = Client(address)
    try:
        assert (await client.send(b"one")).code == 0
    finally:
        await client.close()
