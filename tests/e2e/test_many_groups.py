# SPDX-License-Identifier: Apache-2.0
"""Many small groups under one operator: its memory, writes to the API server, ten lost masters."""

import re
import time
from typing import NamedTuple

import pytest

from cometmq.peers.e2e.broker_groups import is_ready
from cometmq.peers.e2e.kubectl import run, until
from cometmq.peers.e2e.load import sending_to
from cometmq.peers.e2e.metrics import OperatorMetrics, api_writes
from cometmq.peers.ha.report import percentile

WAVE = 10
"""Groups created at once: two cores take seconds to start each broker."""
KILLED_COUNT = 10
QUIET_S = 30
WINDOW_S = 60
TIMEOUT_S = 600
POLL_S = 2
MEMORY_MB = 150
WRITES_PER_SECOND = 1.2
OWN_WRITES_PER_SECOND = 0.2
FAILOVER_S = 10
PATIENCE_S = 60
"""Maximum outage on the busiest machine; the report compares outages with the design's limit."""
OPERATORS = "app.kubernetes.io/name=cometmq-operator"
SMALL = {
    "replicas": 2,
    "deletion": "Now",
    "storage": {"size": "64Mi"},
    "resources": {
        "requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "512Mi"},
    },
}  # fmt: skip


class Groups(NamedTuple):
    names: list[str]
    restarts: int
    """Restarts of operators before the groups were created."""


@pytest.fixture(scope="module")
def groups(world, report, request):
    """The small groups, all of them ready; they are deleted afterwards."""
    count = request.config.getoption("--groups")
    names = [f"many-{number:02}" for number in range(count)]
    found, started = Groups(names, restarts(world)), time.monotonic()
    try:
        for first in range(0, count, WAVE):
            wave = names[first : first + WAVE]
            world.mq.apply(*(world.manifest(name, **SMALL) for name in wave))
            until_ready(world, wave)
        seconds = time.monotonic() - started
        report.add(f"create {count} groups of 2", "until all are ready", seconds, unit="s")
        yield found
    finally:
        world.mq.kubectl("delete", "bg", *names, "--ignore-not-found", "--wait=false")
        until(
            lambda: states(world).keys().isdisjoint(names), TIMEOUT_S, "the groups are gone",
            poll_s=POLL_S,
        )  # fmt: skip
        selector = f"cometmq.io/broker-group in ({','.join(names)})"
        until(
            lambda: not world.mq.list("pods,pvc", selector), TIMEOUT_S,
            "their pods and volumes are gone", poll_s=POLL_S,
        )  # fmt: skip


def states(world):
    """Return all BrokerGroups by name."""
    return {one["metadata"]["name"]: one for one in world.mq.list("bg", "")}


def until_ready(world, names):
    def all_are():
        found = states(world)
        return all(is_ready(found[name]) for name in names)

    until(all_are, TIMEOUT_S, f"{names[0]} to {names[-1]} are ready", poll_s=POLL_S)


def until_quiet(world):
    """Wait until no group has changed for `QUIET_S`."""
    before: dict[str, str] = {}
    since = 0.0

    def has_not_changed():
        nonlocal before, since
        found = states(world)
        versions = {name: one["metadata"]["resourceVersion"] for name, one in found.items()}
        if versions != before:
            before, since = versions, time.monotonic()
        return time.monotonic() - since > QUIET_S

    until(has_not_changed, TIMEOUT_S, "no group changes", poll_s=POLL_S)


def acting_operator(world):
    lease = world.operators.get("lease", "op-cometmq-operator")
    return OperatorMetrics(world.operators, lease["spec"]["holderIdentity"])


def writes_so_far(world):
    """Return the API server's writes, the time when they were read, and the operator's metrics.

    Of several API servers, only one is asked.
    """
    text = run("kubectl", "get", "--raw", "/metrics")
    return api_writes(text), time.monotonic(), acting_operator(world)


def restarts(world):
    return sum(
        status["restartCount"]
        for pod in world.operators.list("pods", OPERATORS)
        for status in pod["status"]["containerStatuses"]
    )


def peak_memory_mb(world, pod):
    """Return the highest resident memory of an operator since it started."""
    status = world.operators.kubectl("exec", pod, "--", "cat", "/proc/1/status")
    (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
    return int(kilobytes) * 1024 / 1e6


def test_writes_while_nothing_happens(ready, groups, report):
    """Masters renew their Leases; the operator has nothing to write but its own Lease."""
    count = len(groups.names)
    until_quiet(ready)
    before, began, own_before = writes_so_far(ready)
    time.sleep(WINDOW_S)
    after, ended, own = writes_so_far(ready)
    writes, group_seconds = after - before, (ended - began) * count
    rate = writes.total() / group_seconds
    own_rate = (own.writes - own_before.writes) / group_seconds
    scenario = f"{count} groups, nothing happens"
    report.add(scenario, "API writes by all clients, per second and group", rate,
               limit=WRITES_PER_SECOND)  # fmt: skip
    report.add(scenario, "API writes by the operator, per second and group", own_rate,
               limit=OWN_WRITES_PER_SECOND)  # fmt: skip
    cores = (own.cpu_s - own_before.cpu_s) / (ended - began)
    report.add(scenario, "processor time of the operator", cores, unit="cores")
    assert own.elections == own_before.elections, "a group has failed over"
    assert rate <= WRITES_PER_SECOND, writes.most_common(10)
    assert own_rate <= OWN_WRITES_PER_SECOND


def test_masters_killed_at_once(ready, groups, report):
    """Each group gets a new master, and no acknowledged message is lost."""
    killed = groups.names[:: max(1, len(groups.names) // KILLED_COUNT)][:KILLED_COUNT]
    found = states(ready)
    before = {name: found[name]["status"] for name in killed}
    with sending_to(ready.mq, ready.namesrvs, killed) as sends:
        since = sends.now()
        ready.kill(*(one["master"] for one in before.values()))
        sends.again(sends.now())
        pauses = [one.pause_s for one in sends.outages(since, sends.now()).values()]
        counts = sends.finish()
    scenario = f"{len(killed)} masters of {len(groups.names)} groups killed at once"
    report.add(scenario, "without sends, median", percentile(pauses, 0.5), unit="s")
    report.add(scenario, "without sends, longest", max(pauses), limit=FAILOVER_S, unit="s")
    until_ready(ready, groups.names)
    after = states(ready)
    epochs = [(before[name]["epoch"], after[name]["status"]["epoch"]) for name in killed]
    assert all(earlier < later for earlier, later in epochs), epochs
    assert {name: it for name, it in counts.items() if it[0] > it[1]} == {}, "messages are lost"
    assert max(pauses) < PATIENCE_S, pauses


def test_memory_of_the_operator(ready, groups, report):
    """The peak covers the creation of all groups and the failovers."""
    pods = [one["metadata"]["name"] for one in ready.operators.list("pods", OPERATORS)]
    peak_mb = max(peak_memory_mb(ready, pod) for pod in pods)
    report.add(f"{len(groups.names)} groups", "peak memory of the operator", peak_mb,
               limit=MEMORY_MB, unit="MB")  # fmt: skip
    assert restarts(ready) == groups.restarts
    assert peak_mb < MEMORY_MB
