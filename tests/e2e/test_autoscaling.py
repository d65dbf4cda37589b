# SPDX-License-Identifier: Apache-2.0
"""A HorizontalPodAutoscaler scales the consumers of the example by the lag of their group.

It gets the lag as the guide says: from a real prometheus-adapter with the rule of the example, and
from a Prometheus that scrapes the brokers. Both run on this machine.
"""

import re
import time
from functools import partial
from pathlib import Path

import pytest
import yaml

from cometmq.peers.e2e import load, slow_consumer
from cometmq.peers.e2e.kubectl import until
from cometmq.peers.e2e.metrics_adapter import figures, serving_external_metrics
from cometmq.peers.paths import ROOT
from cometmq.peers.prometheus.autoscaling import CONSUMERS, GROUP, TOPIC, autoscaler

GUIDE = ROOT / "docs/guides/autoscaling.md"
SECONDS_PER_MESSAGE = 0.05
"""20 messages a second and replica, as in the guide."""
BACKLOG = 8000
"""After two minutes, one replica still leaves more than the threshold times `REPLICAS`."""
REPLICAS = 5
"""The first step of the example: four more. These have consumed the backlog before the next."""
HASTE = 4
"""The waits before scaling in are shorter by this factor: the example's take seven minutes."""
UNREAD = 17
SCALED_OUT_S = 120
"""New replicas start one to two minutes after a backlog appears, says the guide."""
TIMEOUT_S = 300
POLL_S = 1


@pytest.fixture(scope="module")
def adapter(world, prometheus, tmp_path_factory):
    """The external metrics API, without a figure until the brokers are scraped."""
    folder, node = tmp_path_factory.mktemp("adapter"), world.node_addresses()[0]
    with serving_external_metrics(folder, prometheus.address, node):
        yield


@pytest.fixture(scope="module")
def billing(world):
    """The Deployment of the example, with a slow consumer, and its topic and group."""
    world.until_ready()
    world.until_registered()
    world.declare_topics()
    try:
        for one in ("mqt/orders-paid", f"mqg/{GROUP}"):
            world.mq.kubectl("wait", "--for=condition=Ready", one, "--timeout=120s")
        world.mq.apply(deployment(world))
        yield
    finally:
        world.mq.kubectl("delete", "--ignore-not-found", f"hpa/{GROUP}", f"deployment/{GROUP}")
        until(lambda: not pods(world), TIMEOUT_S, "the consumers are gone", poll_s=POLL_S)
        world.mq.kubectl("delete", "mqt/orders-paid", f"mqg/{GROUP}")
        cometmq(world, "topic", "delete", TOPIC, "--yes")
        cometmq(world, "group", "delete", GROUP, "--topics", "--yes")


def deployment(world):
    found = yaml.safe_load(world.adapted(CONSUMERS.read_text()))
    (container,) = found["spec"]["template"]["spec"]["containers"]
    container["image"] = world.image
    container["command"] = ["python", "-c", Path(slow_consumer.__file__).read_text()]
    container["args"] = [TOPIC, GROUP, str(SECONDS_PER_MESSAGE)]
    return found


def hasty_autoscaler():
    """Return the HPA of the example, which scales in faster."""
    found = autoscaler()
    rules = found["spec"]["behavior"]["scaleDown"]
    rules["stabilizationWindowSeconds"] //= HASTE
    for policy in rules["policies"]:
        policy["periodSeconds"] //= HASTE
    return found


def cometmq(world, *words):
    return world.mq.kubectl("exec", load.POD, "--", "cometmq", *words, "-n", world.namesrv)


def pods(world):
    return world.mq.list("pods", f"app.kubernetes.io/name={GROUP}")


def lag(world):
    """Return the figures that the command of the guide shows, by cluster and group."""
    (path,) = re.findall(r"get --raw '([^']+)'", GUIDE.read_text(encoding="utf-8"))
    found = figures(path.replace("/default/", f"/{world.mq.name}/"))
    return {
        (one["metricLabels"]["cluster"], one["metricLabels"]["group"]): one["value"]
        for one in found
    }


def until_lag(world, value):
    """Wait until the group has this lag, and until it is the only one that is shown."""
    wanted = {("DefaultCluster", GROUP): str(value)}
    until(lambda: lag(world) == wanted, TIMEOUT_S, f"a lag of {value}", poll_s=POLL_S)


def is_active(world):
    """Return whether the autoscaler has a figure to scale by."""
    status = world.mq.get("hpa", GROUP).get("status", {})
    found = {one["type"]: one["status"] for one in status.get("conditions", ())}
    return found.get("ScalingActive") == "True"


class Steps:
    """The numbers of replicas that the Deployment should have, in their order."""

    def __init__(self, world):
        self._world = world
        self.seen = []

    def last(self):
        found = self._world.mq.get("deployment", GROUP)["spec"]["replicas"]
        if self.seen[-1:] != [found]:
            self.seen.append(found)
        return found

    def are_ready(self):
        status = self._world.mq.get("deployment", GROUP)["status"]
        return status.get("readyReplicas") == self.last()


def test_the_adapter_shows_the_lag(ready, adapter, billing):
    """The first replica commits, so that there is a lag even while there are no replicas."""
    until_lag(ready, 0)
    ready.mq.kubectl("scale", f"deployment/{GROUP}", "--replicas=0")
    until(lambda: not pods(ready), TIMEOUT_S, "no consumers", poll_s=POLL_S)
    cometmq(ready, "produce", TOPIC, "an order", "--count", str(UNREAD))
    until_lag(ready, UNREAD)
    ready.mq.kubectl("scale", f"deployment/{GROUP}", "--replicas=1")
    until_lag(ready, 0)


def test_an_autoscaler_follows_the_lag(ready, adapter, billing, report):
    ready.mq.apply(hasty_autoscaler())
    until(lambda: is_active(ready), TIMEOUT_S, "the autoscaler has a figure", poll_s=POLL_S)
    steps = Steps(ready)
    assert steps.last() == 1
    wait = partial(until, timeout_s=TIMEOUT_S, poll_s=POLL_S)

    started = time.monotonic()
    cometmq(ready, "produce", TOPIC, "an order", "--count", str(BACKLOG))
    wait(lambda: steps.last() > 1, what="the autoscaler scales out")
    scaled_out_s = time.monotonic() - started
    wait(lambda: steps.last() == REPLICAS and steps.are_ready(), what="all replicas are ready")
    ready_s = time.monotonic() - started

    wait(lambda: steps.last() and set(lag(ready).values()) == {"0"}, what="no lag")
    consumed = time.monotonic()
    wait(lambda: steps.last() == 1, what="the autoscaler scales in")
    scaled_in_s = time.monotonic() - consumed

    scenario = f"HPA: {BACKLOG:,} messages, {1 / SECONDS_PER_MESSAGE:.0f}/s per replica"
    report.add(scenario, "until it scales out", scaled_out_s, limit=SCALED_OUT_S, unit="s")
    report.add(scenario, f"until {REPLICAS} replicas are ready", ready_s, unit="s")
    report.add(scenario, "until no lag", consumed - started, unit="s")
    report.add(
        f"{scenario}, scaling in {HASTE} times as fast", "from no lag to one replica",
        scaled_in_s, unit="s",
    )  # fmt: skip
    assert max(steps.seen) == REPLICAS, steps.seen
