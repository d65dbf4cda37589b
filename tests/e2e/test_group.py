# SPDX-License-Identifier: Apache-2.0
"""A group of three brokers on a real cluster survives failovers and planned changes under load."""

import json
import time

from cometmq.peers.e2e.kubectl import run, until
from cometmq.peers.ha.report import percentile

GROUP = "orders"
TIMEOUT_S = 300
PATIENCE_S = 30
"""Maximum outage on the busiest machine; the report compares outages with the design's limit."""


def assert_clean(load):
    load.finish()
    assert load.result["faults"] == []


def test_install(world):
    """Everything becomes ready in namespaces with the strictest pod security standard."""
    status = world.until_ready()
    assert status["inSyncCount"] == 3
    assert status["master"] in world.pods()
    for pod in world.pods().values():
        assert all(one["restartCount"] == 0 for one in pod["status"]["containerStatuses"])


def test_send_and_consume_by_helm_test(ready):
    output = ready.mq.helm("test", "mq", "--timeout=5m")
    assert "Succeeded" in output


def test_killed_masters(ready, under_load, report, rounds):
    """A slave takes over each time, and acknowledged messages survive."""
    pauses = []
    with under_load() as load:
        started = load.now()
        for _ in range(rounds):
            before, since = ready.status(), load.settle()
            ready.kill(before["master"])
            load.again(load.now())
            ready.until_epoch_after(before["epoch"])
            ready.until_ready()
            pauses.append(load.outage(since, load.settle()).pause_s)
        seconds = load.now() - started
        assert_clean(load)
    per_second = load.result["acknowledged"] / seconds
    report.add("master killed", "without sends, p95", percentile(pauses, 0.95), limit=3, unit="s")
    report.add("master killed", "without sends, longest", max(pauses), limit=10, unit="s")
    report.add("master killed", "messages delivered again, per kill",
               load.result["repeated"] / rounds, limit=per_second)  # fmt: skip
    assert max(pauses) < PATIENCE_S


def test_deleted_master_pod(ready, under_load, report):
    """A pod that is being stopped hands over its role, so no send fails."""
    with under_load() as load:
        since, master = load.settle(), ready.status()["master"]
        ready.mq.kubectl("delete", "pod", master, "--wait=false")
        ready.until_master_other_than(master)
        ready.until_ready()
        outage = load.outage(since, load.settle())
        assert_clean(load)
    report.add("master's pod deleted", "failed sends", outage.failed_count, limit=0)
    report.add("master's pod deleted", "longest pause", outage.pause_s, limit=3, unit="s")
    assert outage.failed_count == 0, load.result["errors"]


def test_switchovers(ready, under_load, report, request):
    count = request.config.getoption("--switchovers")
    with under_load() as load:
        since, pauses = load.settle(), []
        for _ in range(count):
            began = load.now()
            ready.switch_over()
            pauses.append(load.outage(began, load.settle()).pause_s)
        failed = load.outage(since, load.settle()).failed_count
        assert_clean(load)
    report.add(f"{count} switchovers", "failed sends", failed, limit=0)
    report.add(f"{count} switchovers", "longest pause", max(pauses), limit=1, unit="s")
    assert failed == 0, load.result["errors"]


def test_rolling_upgrade(ready, under_load, report, request):
    """Slaves restart first, then a switchover, then the old master; no send fails."""
    before, master = ready.pods(), ready.status()["master"]
    image = request.config.getoption("--next-image")
    change = {"image": {"name": image}} if image else {"config": {"maxMessageSize": "4194305"}}
    with under_load() as load:
        since, started = load.settle(), time.monotonic()
        ready.patch(change)
        ready.until_ready()
        seconds = time.monotonic() - started
        outage = load.outage(since, load.settle())
        assert_clean(load)
    after = ready.pods()
    born = {name: pod["metadata"]["creationTimestamp"] for name, pod in after.items()}
    assert {pod["metadata"]["uid"] for pod in after.values()}.isdisjoint(
        pod["metadata"]["uid"] for pod in before.values()
    )
    assert max(born, key=lambda name: born[name]) == master
    report.add("rolling upgrade", "failed sends", outage.failed_count, limit=0)
    report.add("rolling upgrade", "longest pause", outage.pause_s, limit=1, unit="s")
    report.add("rolling upgrade", "until done", seconds, limit=180, unit="s")
    assert outage.failed_count == 0, load.result["errors"]


def test_scale_out_and_in(ready, under_load, report):
    """A fourth copy joins the in-sync set; later, the pod of the master is removed."""
    with under_load() as load:
        since = load.settle()
        ready.mq.kubectl("scale", "bg", GROUP, "--replicas=4")
        ready.until_ready()
        ready.switch_over(f"{GROUP}-3")
        ready.mq.kubectl("scale", "bg", GROUP, "--replicas=3")
        ready.until_ready()
        outage = load.outage(since, load.settle())
        assert_clean(load)
    until(lambda: len(ready.pods()) == 3, TIMEOUT_S, "three pods")
    report.add("scale 3 to 4 to 3", "failed sends", outage.failed_count, limit=0)
    assert outage.failed_count == 0, load.result["errors"]


def test_objects_changed_by_hand_are_repaired(ready):
    ready.mq.kubectl("delete", "service", f"{GROUP}-peers")
    ready.mq.kubectl("scale", "statefulset", GROUP, "--replicas=5")
    until(lambda: ready.mq.get("service", f"{GROUP}-peers"), TIMEOUT_S, "the service is back")
    until(
        lambda: ready.mq.get("statefulset", GROUP)["spec"]["replicas"] == 3,
        TIMEOUT_S, "three replicas",
    )  # fmt: skip
    until(lambda: len(ready.pods()) == 3, TIMEOUT_S, "three pods")


def test_a_standby_operator_fails_over(ready, under_load, report):
    """The operator and the master are killed together."""
    leases = ("lease", "op-cometmq-operator")
    leader = ready.operators.get(*leases)["spec"]["holderIdentity"]
    with under_load() as load:
        before, since = ready.status(), load.settle()
        ready.operators.kubectl("delete", "pod", leader, "--force", "--grace-period=0")
        ready.kill(before["master"])
        load.again(load.now())
        ready.until_epoch_after(before["epoch"])
        ready.until_ready()
        outage = load.outage(since, load.settle())
        assert_clean(load)
    assert ready.operators.get(*leases)["spec"]["holderIdentity"] != leader
    report.add("operator and master killed", "without sends", outage.pause_s, limit=15, unit="s")
    assert outage.pause_s < PATIENCE_S


def test_a_fenced_master(ready, under_load, report):
    """The master stops at once, and a different broker is elected."""
    with under_load() as load:
        before, since = ready.status(), load.settle()
        ready.mq.annotate(f"bg/{GROUP}", "cometmq.io/fence", before["master"])
        assert ready.until_master_other_than(before["master"])
        ready.until_ready()
        outage = load.outage(since, load.settle())
        assert_clean(load)
    report.add("master fenced", "without sends", outage.pause_s, limit=3, unit="s")
    assert outage.pause_s < PATIENCE_S


def test_a_rebuilt_slave(ready, under_load, report):
    """A slave discards its store and copies everything, while the others continue."""

    def restarts(pod):
        (container,) = ready.pods()[pod]["status"]["containerStatuses"]
        return container["restartCount"]

    with under_load() as load:
        since, status = load.settle(), ready.status()
        slave = next(one["pod"] for one in status["members"] if one["pod"] != status["master"])
        count = restarts(slave)
        ready.mq.annotate(f"bg/{GROUP}", "cometmq.io/rebuild", slave)
        until(lambda: restarts(slave) > count, TIMEOUT_S, f"{slave} has restarted")
        ready.until_ready()
        outage = load.outage(since, load.settle())
        assert_clean(load)
    folder = "/var/lib/cometmq"
    found = ready.mq.kubectl("exec", slave, "--", "find", folder, "-name", "discarded-*")
    assert found.strip(), "the old files are kept"
    report.add("slave rebuilt", "failed sends", outage.failed_count, limit=0)
    report.add("slave rebuilt", "longest pause", outage.pause_s, limit=5, unit="s")


def test_volumes_that_cannot_grow(ready):
    """The condition gives the reason, and the volumes grow once their class allows it."""
    name, storage_class = "small", "cometmq-e2e-growing"
    classes = json.loads(run("kubectl", "get", "storageclass", "--output=json"))["items"]
    default = "storageclass.kubernetes.io/is-default-class"
    found = next(one for one in classes if one["metadata"].get("annotations", {}).get(default))
    copied = {key: value for key, value in found.items() if key not in ("metadata", "status")}
    body = {**copied, "metadata": {"name": storage_class}, "allowVolumeExpansion": False}
    ready.mq.apply(body)
    storage = {"className": storage_class}
    try:
        ready.apply_group(name, replicas=1, deletion="Now", storage=storage)
        until(
            lambda: ready.condition(name, "Ready").get("status") == "True", TIMEOUT_S, "it is ready"
        )
        ready.apply_group(name, replicas=1, deletion="Now", storage={**storage, "size": "2Gi"})
        accepted = until(
            lambda: (
                (one := ready.condition(name, "SpecAccepted")).get("status") == "False" and one
            ),
            TIMEOUT_S, "the growth is refused",
        )  # fmt: skip
        assert accepted["reason"] == "Refused"
        assert "resize" in accepted["message"]
        run("kubectl", "patch", "storageclass", storage_class,
            '--patch={"allowVolumeExpansion":true}')  # fmt: skip
        until(
            lambda: ready.condition(name, "SpecAccepted").get("status") == "True", TIMEOUT_S,
            "the growth is accepted",
        )  # fmt: skip
        (claim,) = ready.mq.list("pvc", f"cometmq.io/broker-group={name}")
        assert claim["spec"]["resources"]["requests"]["storage"] == "2Gi"
    finally:
        ready.mq.kubectl("delete", "bg", name, "--ignore-not-found")
        run("kubectl", "delete", "storageclass", storage_class)
