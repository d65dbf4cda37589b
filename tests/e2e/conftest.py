# SPDX-License-Identifier: Apache-2.0
"""Installs the operator, name servers and a group of three brokers on the KUBECONFIG cluster.

The scenarios run in file order, with the removal last. Each starts with a group that matches its
spec.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from monitoring.prometheus import configuration

from cometmq.peers.e2e import java, load, loads, nodes
from cometmq.peers.e2e.broker_groups import conditions, is_ready
from cometmq.peers.e2e.kubectl import Namespace, until
from cometmq.peers.e2e.lag_reports import LagReports
from cometmq.peers.e2e.loads import Loads
from cometmq.peers.e2e.pod_monitors import scrape_configs
from cometmq.peers.e2e.pod_targets import reachable_pods
from cometmq.peers.e2e.pods import waiting_pod
from cometmq.peers.e2e.report import Report
from cometmq.peers.errors import PeerError
from cometmq.peers.paths import ROOT
from cometmq.peers.prometheus.server import Prometheus

GROUP = "orders"
LAST = "test_removal.py"
SWITCHOVER = "cometmq.io/switchover-to"
NAMESRV = "mq-cometmq-namesrv-pods.{}.svc:9876"
READY_TIMEOUT_S = 300
SCRAPE_INTERVAL_S = 5
LOST_ORDER_S = 15
"""A switchover has succeeded or failed within this time, unless its operator has ended."""
JAVA_PAUSE_S = 5
"""Java clients look up routes every 30 s, but the address of the master does not change."""
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
HELM = ROOT / "deploy/helm"
DECLARED = ROOT / "deploy/examples/topics.yaml"
KUBERNETES = "--kube-version=1.34"
"""`helm template` does not ask the cluster for its version."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--image", default="cometmq:0.1.0", help="the suite's image")
    parser.addoption("--next-image", help="another image of the suite, for the upgrade")
    parser.addoption("--operator-image", default="cometmq-operator:0.1.0")
    parser.addoption("--java-image", help="the Java client's image, for a second load")
    parser.addoption("--spark-image", default="cometmq-spark:0.1.0", help="for lag reports")
    parser.addoption("--rounds", type=int, default=5, help="kills of masters")
    parser.addoption("--switchovers", type=int, default=50)
    parser.addoption("--groups", type=int, default=50, help="small groups that run at once")
    parser.addoption("--report", type=Path, default=ROOT / "dist/e2e/report.md")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the removal last: it deletes the namespace of all other scenarios."""
    items.sort(key=lambda one: one.path.name == LAST)


@pytest.fixture(scope="session")
def report(request: pytest.FixtureRequest) -> Report:
    return Report(request.config.getoption("--report"))


@pytest.fixture(scope="session")
def rounds(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--rounds"))


class World:
    """The namespaces of the operator and of the suite, and their contents."""

    def __init__(self, image: str, operator_image: str, java_image: str | None) -> None:
        self.image, self.operator_image, self.java_image = image, operator_image, java_image
        self.operators = Namespace("cometmq-e2e-operator")
        self.mq = Namespace("cometmq-e2e")
        self.namesrv = NAMESRV.format(self.mq.name)
        # Clients get both addresses: given only the Service's name, they would stay with a hanging
        # server.
        self.namesrvs = ";".join(f"mq-cometmq-namesrv-{one}.{self.namesrv}" for one in range(2))

    def install(self) -> float:
        """Install both charts; return the seconds until everything was ready."""
        self._remove()
        for namespace in (self.mq, self.operators):
            namespace.create(**RESTRICTED)
        started = time.monotonic()
        self.install_operator()
        self.install_suite()
        # The txn-checker is ready once a broker is registered, so --wait would wait in vain.
        self.mq.kubectl("rollout", "status", "sts/mq-cometmq-namesrv", "--timeout=5m")
        return time.monotonic() - started

    def install_operator(
        self, verb: str = "install", *settings: str, keeps_definition: bool = False
    ) -> str:
        return self.operators.helm(
            verb, "op", str(HELM / "cometmq-operator"), "--wait", "--timeout=5m",
            *_image(self.operator_image), f"--set=defaultBrokerImage={self.image}",
            "--set=drainQuietSeconds=5", f"--set=crds.keep={str(keeps_definition).lower()}",
            f"--set=watchNamespaces={{{self.mq.name}}}", *settings,
        )  # fmt: skip

    def install_suite(self, verb: str = "install", *settings: str) -> str:
        values = HELM / "cometmq/ci/operator-values.yaml"
        chart = (str(HELM / "cometmq"), f"--values={values}", *_image(self.image))
        return self.mq.helm(verb, "mq", *chart, *settings)

    def pod_monitors(self, *settings: str) -> dict[str, list[dict[str, Any]]]:
        """Return the PodMonitors that the releases would have, by namespace.

        They are not created, because the cluster does not define the kind.
        """
        enabled = ("template", "--set=metrics.podMonitor.enabled=true", KUBERNETES, *settings)
        rendered = {
            self.mq.name: self.install_suite(*enabled),
            self.operators.name: self.install_operator(*enabled),
        }
        return {
            namespace: [
                one for one in yaml.safe_load_all(text) if one and one["kind"] == "PodMonitor"
            ]
            for namespace, text in rendered.items()
        }

    def _remove(self) -> None:
        """Drop the finalizers of an earlier run's groups, which would block their deletion."""
        try:
            groups = self.mq.kubectl("get", "bg", "--output=name").split()
        except PeerError:  # the kind is not defined
            return
        for group in groups:
            patch = '--patch={"metadata":{"finalizers":null}}'
            self.mq.kubectl("patch", group, "--type=merge", patch)

    def create_group(self) -> float:
        """Create the group; return the seconds until it was ready."""
        started = time.monotonic()
        self.apply_group(GROUP, replicas=3, replication={"minInSync": 2})
        self.until_ready()
        return time.monotonic() - started

    def create_load_pods(self) -> None:
        """Create the pods in which clients run, and the Java client's topic."""
        self.mq.apply(*load.pod(self.image))
        self._wait_for_pod(load.POD)
        self.until_registered()
        if self.java_image is not None:
            # On one node: scenarios need a node that runs a broker and no client.
            node = self.mq.get("pod", load.POD)["spec"]["nodeName"]
            self.mq.apply(*waiting_pod(java.POD, self.java_image, node=node))
            self._wait_for_pod(java.POD)
            create = ("cometmq", "topic", "create", java.TOPIC, "-n", self.namesrv)
            self.mq.kubectl("exec", load.POD, "--", *create)

    def _wait_for_pod(self, name: str) -> None:
        self.mq.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=120s")

    def apply_group(self, name: str, **spec: Any) -> None:
        """Create a small group, or change its spec."""
        self.mq.apply(self.manifest(name, **spec))

    def manifest(
        self, name: str, *, storage: dict[str, Any] | None = None, **spec: Any
    ) -> dict[str, Any]:
        """Return a small group; `spec` adds fields or replaces them."""
        retain = {"whenDeleted": "Delete", "whenScaled": "Delete"}
        limits = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}
        whole = {
            "nameServers": [self.namesrv], "resources": limits,
            "storage": {"size": "1Gi", "retain": retain, **(storage or {})}, **spec,
        }  # fmt: skip
        return {
            "apiVersion": "cometmq.io/v1alpha1", "kind": "BrokerGroup",
            "metadata": {"name": name}, "spec": whole,
        }  # fmt: skip

    def declare_topics(self) -> None:
        """Create the Topic and the ConsumerGroup of the example."""
        self.mq.apply(*yaml.safe_load_all(self.adapted(DECLARED.read_text())))

    def adapted(self, example: str) -> str:
        """Return the text of an example with the namespace of the suite."""
        return example.replace(".default.svc", f".{self.mq.name}.svc")

    def node_addresses(self) -> list[str]:
        return [
            one["address"]
            for node in self.mq.get("nodes")["items"]
            for one in node["status"]["addresses"]
            if one["type"] == "InternalIP"
        ]

    def patch(self, spec: dict[str, Any]) -> None:
        body = {"spec": spec}
        self.mq.kubectl("patch", "bg", GROUP, "--type=merge", f"--patch={_json(body)}")

    def group(self) -> Any:
        return self.mq.get("bg", GROUP)

    def condition(self, group: str, type_: str) -> dict[str, Any]:
        """Return a condition of a group; it is empty if there is none yet."""
        return conditions(self.mq.get("bg", group) or {}).get(type_, {})

    def status(self) -> dict[str, Any]:
        """Return the status; the API omits empty fields, such as the master during an election."""
        return {"master": "", "epoch": 0, **self.group().get("status", {})}

    def pods(self) -> dict[str, Any]:
        """Return the brokers' pods by name."""
        found = self.mq.list("pods", f"cometmq.io/broker-group={GROUP}")
        return {one["metadata"]["name"]: one for one in found}

    def until_ready(self) -> dict[str, Any]:
        """Wait until the group matches its current spec; return the group's status."""

        def ready() -> dict[str, Any] | None:
            group = self.group()
            return group["status"] if is_ready(group) else None

        return until(ready, READY_TIMEOUT_S, f"{GROUP} is ready")

    def switch_over(self, target: str = "auto") -> None:
        """Make `target`, or any slave, the master; repeat an order that was refused, or lost with
        an operator.
        """
        before = self.status()["master"]
        if target == before:
            return
        ordered_at: float | None = None

        def changed() -> bool:
            nonlocal ordered_at
            group = self.group()
            status = group.get("status", {})
            master = status.get("master", "")
            if master == target or (target == "auto" and master and master != before):
                return True
            is_pending = SWITCHOVER in group["metadata"].get("annotations", {})
            is_refused = status.get("lastOperation", {}).get("result") == "Refused"
            is_lost = ordered_at is not None and time.monotonic() > ordered_at + LOST_ORDER_S
            if not is_pending and (is_refused or is_lost or ordered_at is None):
                self.mq.annotate(f"bg/{GROUP}", SWITCHOVER, target)
                ordered_at = time.monotonic()
            return False

        until(changed, READY_TIMEOUT_S, f"a switchover from {before} to {target}")
        self.until_ready()

    def until_master_other_than(self, pod: str) -> str:
        """Wait until a different pod is the master; return its name."""

        def other() -> str:
            found = str(self.status()["master"])
            return "" if found == pod else found

        return until(other, READY_TIMEOUT_S, f"another master than {pod}")

    def until_epoch_after(self, epoch: int) -> None:
        """Wait until a master of a later epoch is open; the same pod may have restarted."""

        def is_later() -> bool:
            status = self.status()
            return bool(status["epoch"] > epoch and status["master"])

        until(is_later, READY_TIMEOUT_S, f"an epoch after {epoch}")

    def until_registered(self, *namesrvs: str) -> None:
        """Wait until these name servers, by default both, list the master; a restarted one lists
        nothing at first.
        """

        def knows(namesrv: str) -> bool:
            command = ("cometmq", "cluster", "--json", "-n", namesrv)
            try:
                found = json.loads(self.mq.kubectl("exec", load.POD, "--", *command))
            except PeerError:
                return False
            return any((one["broker"], one["role"]) == (GROUP, "master") for one in found)

        for one in namesrvs or self.namesrvs.split(";"):
            until(lambda one=one: knows(one), READY_TIMEOUT_S, f"{one} knows the master")  # type: ignore[misc]

    def kill(self, *pods: str) -> None:
        """Kill brokers: in a kind cluster with kill -9, elsewhere by deleting their pods."""
        found = self.containers()
        containers: dict[str, list[str]] = {}
        for pod in pods:
            node, container = found[pod]
            containers.setdefault(node, []).append(container)
        try:
            nodes.kill_containers(containers)
        except (OSError, PeerError):
            now = ("--grace-period=0", "--force", "--wait=false")
            self.mq.kubectl("delete", "pod", *pods, *now)

    def containers(self) -> dict[str, tuple[str, str]]:
        """Return the node and the container of each broker of any group, by pod."""
        brokers = self.mq.list("pods", "cometmq.io/broker-group")
        return {
            one["metadata"]["name"]: (
                one["spec"]["nodeName"],
                one["status"]["containerStatuses"][0]["containerID"].rpartition("//")[2],
            )
            for one in brokers
        }

    def explain(self) -> str:
        """Return states, events and logs that help to explain a failure."""
        words = (
            ("get", "pods", "--output=wide"), ("describe", "bg"), ("describe", "hpa"),
            ("get", "events"),
            ("logs", f"--selector=cometmq.io/broker-group={GROUP}", "--prefix", "--tail=60"),
        )  # fmt: skip
        operator = "--selector=app.kubernetes.io/name=cometmq-operator"
        commands = [(self.mq, one) for one in words]
        commands.append((self.operators, ("logs", operator, "--tail=200")))
        texts = []
        for namespace, one in commands:
            try:
                texts.append(namespace.kubectl(*one))
            except PeerError as error:  # such as a container that has no log yet
                texts.append(str(error))
        return "\n".join(texts)


def _image(name: str) -> list[str]:
    repository, _, tag = name.rpartition(":")
    return [f"--set=image.repository={repository}", f"--set-string=image.tag={tag}"]


def _json(body: Any) -> str:
    return json.dumps(body)


@pytest.fixture(scope="session")
def world(request: pytest.FixtureRequest, report: Report) -> World:
    """Install everything once, from an empty cluster to a group that accepts load."""
    assert "KUBECONFIG" in os.environ, "make e2e sets KUBECONFIG"  # noqa: TID251
    options = request.config
    names = ("--image", "--operator-image", "--java-image")
    found = World(*(options.getoption(name) for name in names))
    seconds = found.install()
    report.add(
        "install both charts",
        "until operators and name servers are ready",
        seconds,
        limit=90,
        unit="s",
    )
    group_seconds = found.create_group()
    report.add("create a group of 3", "until it is ready", group_seconds, limit=90, unit="s")
    found.mq.kubectl("rollout", "status", "sts/mq-cometmq-txn-checker", "--timeout=5m")
    found.create_load_pods()
    return found


@pytest.fixture(scope="module")
def prometheus(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus on this machine that scrapes the pods selected by the charts' PodMonitors."""
    folder = tmp_path_factory.mktemp("prometheus")
    monitors = world.pod_monitors(f"--set=metrics.podMonitor.interval={SCRAPE_INTERVAL_S}s")
    with reachable_pods(folder) as cluster:
        settings = configuration({}, interval_s=SCRAPE_INTERVAL_S)
        settings["scrape_configs"] = [
            config
            for namespace, found in monitors.items()
            for config in scrape_configs(found, namespace, cluster)
        ]
        running = Prometheus(folder, settings)
        try:
            yield running
        finally:
            running.stop()


@pytest.fixture
def ready(world: World, request: pytest.FixtureRequest) -> Iterator[World]:
    """The world with a group that matches its spec; the state is printed if the test fails."""
    world.until_ready()
    failed = request.session.testsfailed
    yield world
    if request.session.testsfailed > failed:
        sys.stdout.write(world.explain())


@pytest.fixture(scope="module")
def lag_reports(world: World, request: pytest.FixtureRequest) -> Iterator[LagReports]:
    """Lag reports, not installed yet, and a consumer group that has read part of a topic."""
    world.until_ready()
    world.until_registered()
    image = request.config.getoption("--spark-image")
    found = LagReports(world.mq, world.namesrv, image, world.install_suite)
    with found.group_behind():
        yield found


@pytest.fixture
def under_load(
    ready: World, report: Report, request: pytest.FixtureRequest
) -> Iterator[Callable[[], AbstractContextManager[Loads]]]:
    ready.until_registered()
    with_java = ready.java_image is not None
    started = []

    @contextmanager
    def running() -> Iterator[Loads]:
        with loads.running(ready.mq, ready.namesrvs, with_java=with_java) as found:
            started.append(found)
            yield found

    yield running
    scenario = request.node.name.removeprefix("test_").replace("_", " ")
    figures = {
        "without sends": [one.pause_s for found in started for one in found.java_outages],
        "without messages": [one for found in started for one in found.java_standstills],
    }
    for figure, pauses in figures.items():
        if pauses:
            limit = JAVA_PAUSE_S
            title = f"Java client: {scenario}"
            report.add(title, f"{figure}, longest", max(pauses), limit=limit, unit="s")
