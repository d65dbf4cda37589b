# SPDX-License-Identifier: Apache-2.0
"""Settings, images, name servers and nodes change under load, and no send fails."""

import time

from cometmq.peers.e2e import load as loads
from cometmq.peers.e2e.kubectl import run, until

GROUP = "orders"
TIMEOUT_S = 300
REGISTERED_S = 15


def assert_no_failures(load, outage):
    load.finish()
    assert load.result["faults"] == []
    assert outage.failed_count == 0, load.result["errors"]


def restarts(world):
    """Return the restarts of each broker; a replaced pod has a different key."""
    return {
        pod["metadata"]["uid"]: pod["status"]["containerStatuses"][0]["restartCount"]
        for pod in world.pods().values()
    }


def test_a_changed_setting(ready, under_load, report):
    """All brokers restart with the new value, the former master last."""
    master, name = ready.status()["master"], "maxMessageSize"
    size = 4_194_304 + 1024
    with under_load() as load:
        since = load.settle()
        ready.patch({"config": {name: str(size)}})
        ready.until_ready()
        outage = load.outage(since, load.settle())
        report.add("setting changed", "failed sends", outage.failed_count, limit=0)
        report.add("setting changed", "longest pause", outage.pause_s, limit=1, unit="s")
        assert_no_failures(load, outage)
    born = {pod: one["metadata"]["creationTimestamp"] for pod, one in ready.pods().items()}
    assert max(born, key=lambda pod: born[pod]) == master
    command = ("cometmq", "getBrokerConfig", "-c", "DefaultCluster", "-n", ready.namesrv)
    text = ready.mq.kubectl("exec", loads.POD, "--", *command)
    assert text.count(str(size)) == len(born)


def test_an_image_that_does_not_exist(ready, under_load, report):
    """The update stops at the first slave, says why, and ends when the image is set back."""
    name = ready.group()["spec"].get("image", {}).get("name")
    before = ready.pods()
    master, epoch = ready.status()["master"], ready.status()["epoch"]
    with under_load() as load:
        since = load.settle()
        ready.patch({"image": {"name": "cometmq:does-not-exist"}})
        until(
            lambda: "cometmq:does-not-exist" in ready.condition(GROUP, "Ready").get("message", ""),
            TIMEOUT_S, "the condition names the image",
        )  # fmt: skip
        assert ready.condition(GROUP, "Progressing")["reason"] == "RollBlocked"
        time.sleep(REGISTERED_S)  # enough for the next pod, if the update went on
        kept = [name for name, pod in ready.pods().items() if uid(pod) == uid(before[name])]
        assert len(kept) == len(before) - 1
        assert master in kept
        ready.patch({"image": {"name": name}})
        assert ready.until_ready()["epoch"] == epoch
        outage = load.outage(since, load.settle())
        report.add("image does not exist", "failed sends", outage.failed_count, limit=0)
        assert_no_failures(load, outage)


def uid(pod):
    return pod["metadata"]["uid"]


def test_name_servers_are_added_and_removed(ready, under_load, report):
    """Brokers register with a new name server without a restart, and clients keep sending."""
    before = restarts(ready)
    with under_load() as load:
        since = load.settle()
        ready.install_suite("upgrade", "--set=namesrv.replicas=3")
        words = ("rollout", "status", "sts/mq-cometmq-namesrv", "--timeout=5m")
        ready.mq.kubectl(*words)
        started = time.monotonic()
        ready.until_registered(f"mq-cometmq-namesrv-2.{ready.namesrv}")
        seconds = time.monotonic() - started
        ready.install_suite("upgrade", "--set=namesrv.replicas=1")
        last = ("wait", "--for=delete", "pod/mq-cometmq-namesrv-1", "--timeout=120s")
        ready.mq.kubectl(*last)
        load.again(load.now())
        ready.install_suite("upgrade")
        ready.mq.kubectl(*words)
        ready.until_registered()
        outage = load.outage(since, load.settle())
        report.add("a third name server", "until brokers are registered", seconds,
                   limit=REGISTERED_S, unit="s")  # fmt: skip
        report.add("1 to 3 name servers", "failed sends", outage.failed_count, limit=0)
        assert_no_failures(load, outage)
    assert restarts(ready) == before


def test_drained_nodes(ready, under_load, report):
    """The nodes of brokers are drained one after another; the budget admits one lost pod."""
    drained = sorted({pod["spec"]["nodeName"] for pod in ready.pods().values()})
    with under_load() as load:
        since = load.settle()
        for node in drained:
            brokers = f"--pod-selector=cometmq.io/broker-group={GROUP}"
            try:
                run("kubectl", "drain", node, brokers, "--ignore-daemonsets", "--timeout=240s",
                    "--delete-emptydir-data")  # fmt: skip
                load.again(load.now())
            finally:
                run("kubectl", "uncordon", node)
            ready.until_ready()
        outage = load.outage(since, load.settle())
        report.add(f"{len(drained)} nodes drained", "failed sends", outage.failed_count, limit=0)
        report.add(f"{len(drained)} nodes drained", "longest pause", outage.pause_s, limit=3,
                   unit="s")  # fmt: skip
        assert_no_failures(load, outage)
