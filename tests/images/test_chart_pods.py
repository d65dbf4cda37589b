# SPDX-License-Identifier: Apache-2.0
"""Runs the chart's pods as containers of the engine: commands, settings, probes, chart test.

An engine network resolves the names of the Services, so the programs find each other as they would
in a cluster. Kubernetes is responsible for scheduling, volumes and rights, which are not tested
here.
"""

import re
import shutil
import subprocess
import uuid
from pathlib import Path

import pytest
import yaml
from build_images import docker

from cometmq.peers.errors import PeerError
from cometmq.peers.processes import wait_until

CHART = Path(__file__).resolve().parents[2] / "deploy/helm/cometmq"
READY_TIMEOUT_S = 120
ORDER = ["namesrv", "broker", "elector", "txn-checker", "exporter"]
ELECTOR_SETTINGS = "/etc/cometmq/settings/elector.conf"
PROBE = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=5)"


@pytest.fixture
def network():
    name = f"cometmq-test-{uuid.uuid4().hex[:8]}"
    docker("network", "create", name)
    yield name
    docker("network", "rm", name)


@pytest.fixture
def render(request):
    """Render the chart with a values file and further values as JSON; return its objects."""

    def rendered(file, *settings):
        command = [request.config.getoption("--helm"), "template", "mq", str(CHART)]
        command += ["--namespace=prod", "--kube-version=1.34", f"--values={CHART / file}"]
        command += [f"--set-json={one}" for one in settings]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return [one for one in yaml.safe_load_all(text) if one]

    return rendered


class Pods:
    """Runs pod templates as containers with the security context that they request."""

    def __init__(self, network, image, folder):
        self.network = network
        self.image = image
        self.containers: dict[str, str] = {}
        self._folder = folder
        self._settings: dict[str, Path] = {}

    def start_all(self, objects):
        """Start all pods of the objects, name servers first, and wait until they are ready."""
        for one in objects:
            if one["kind"] == "ConfigMap":
                target = self._folder / one["metadata"]["name"]
                target.mkdir()
                for name, content in one["data"].items():
                    (target / name).write_text(content, encoding="utf-8")
                self._settings[one["metadata"]["name"]] = target
        services = [one for one in objects if one["kind"] == "Service"]
        owners = [one for one in objects if one["kind"] in {"StatefulSet", "Deployment"}]
        for one in sorted(owners, key=lambda one: ORDER.index(component(one))):
            template = one["spec"]["template"]
            for number in range(one["spec"]["replicas"]):
                pod = f"{one['metadata']['name']}-{number}"
                self.start(pod, template["spec"], names_of(pod, template, services))
        for one in owners:
            (container,) = one["spec"]["template"]["spec"]["containers"]
            for number in range(one["spec"]["replicas"]):
                for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                    self.wait_ready(f"{one['metadata']['name']}-{number}", container[probe])

    def start(self, host, spec, aliases=()):
        """Start a pod's container, detached."""
        (container,) = spec["containers"]
        words = [
            "run",
            "--detach",
            f"--network={self.network}",
            f"--hostname={host}",
            "--read-only",
        ]
        words += [f"--network-alias={one}" for one in aliases]
        context = spec["securityContext"]
        words += [f"--user={context['runAsUser']}:{context['runAsGroup']}", "--cap-drop=ALL"]
        words += ["--security-opt=no-new-privileges"]
        limit = container["resources"]["limits"]["memory"].removesuffix("i").lower()
        words += [f"--memory={limit}"]
        for one in container["env"]:
            if "value" in one:
                words += ["--env", f"{one['name']}={one['value']}"]
        volumes = {one["name"]: one for one in spec["volumes"]}
        for mount in container["volumeMounts"]:
            volume = volumes.get(mount["name"], {})
            if "configMap" in volume:
                folder = self._settings[volume["configMap"]["name"]]
                words += [f"--volume={folder}:{mount['mountPath']}:ro"]
            elif "emptyDir" in volume:
                words += [f"--tmpfs={mount['mountPath']}:uid={context['runAsUser']}"]
            else:
                words += [f"--mount=type=volume,destination={mount['mountPath']}"]
        command = container.get("command", [])
        words += [f"--entrypoint={command[0]}"] if command else []
        words += [self.image, *command[1:], *container.get("args", [])]
        self.containers[host] = docker(*words).strip()

    def cometmq(self, host, *words):
        """Run a command in a container and return its result."""
        command = ["docker", "exec", self.containers[host], "cometmq", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    def wait_ready(self, host, probe):
        """Call the probe as a kubelet would, until it succeeds."""
        container = self.containers[host]
        url = f"http://127.0.0.1:8080{probe['httpGet']['path']}"

        def is_ready():
            command = ["docker", "exec", container, "python", "-c", PROBE, url]
            return subprocess.run(command, capture_output=True, check=False).returncode == 0

        try:
            wait_until(is_ready, READY_TIMEOUT_S, f"{url} of {container}")
        except PeerError as error:
            raise AssertionError(f"{host}: {logs(container)}") from error


@pytest.fixture
def pods(network, image, tmp_path):
    tmp_path.chmod(0o755)
    found = Pods(network, image, tmp_path)
    yield found
    if found.containers:
        docker("rm", "--force", "--volumes", *found.containers.values())


@pytest.fixture
def etcd(pods, request):
    """A one-member etcd at etcd.prod.svc: a container that runs this machine's program."""
    program = shutil.which("etcd")
    assert program, "etcd is missing: apt-get install etcd-server"
    base = request.config.getoption("--base-image")
    words = ["run", "--detach", f"--network={pods.network}", "--network-alias=etcd.prod.svc"]
    words += [f"--volume={program}:/etcd:ro", "--tmpfs=/data", "--entrypoint=/etcd", base]
    words += ["--data-dir=/data/etcd", "--listen-client-urls=http://0.0.0.0:2379"]
    words += ["--advertise-client-urls=http://etcd.prod.svc:2379"]
    pods.containers["etcd"] = docker(*words).strip()


def test_the_pods_of_the_chart_serve_and_its_test_passes(pods, render):
    objects = render("ci/one-broker-values.yaml")
    pods.start_all(objects)
    (test,) = [one for one in objects if one["kind"] == "Pod"]
    pods.start("tests", test["spec"])
    status = docker("wait", pods.containers["tests"]).strip()
    assert status == "0", logs(pods.containers["tests"])
    containers = pods.containers.values()
    docker("stop", "--time=30", *containers)
    statuses = docker("inspect", "--format={{.State.ExitCode}}", *containers).split()
    assert set(statuses) == {"0"}


@pytest.mark.usefixtures("etcd")
def test_a_group_of_the_chart_survives_a_killed_master(pods, render):
    group = '[{"name": "orders", "replicas": 2, "elector": {"replicas": 1}}]'
    pods.start_all(
        render(
            "ci/one-broker-values.yaml",
            f"brokerGroups={group}",
            'groupRecord={"etcd": {"endpoints": ["etcd.prod.svc:2379"]}}',
        )
    )
    sent = pods.cometmq("mq-cometmq-namesrv-0", "produce", "Orders", *map(str, range(100)))
    assert sent.returncode == 0, sent.stdout + sent.stderr
    first = master(pods)
    docker("kill", "--signal=KILL", pods.containers[f"mq-cometmq-orders-{first}"])
    wait_until(lambda: master(pods) not in {None, first}, READY_TIMEOUT_S, "another master")
    words = ["produce", "Orders", "after", "--timeout", "60"]
    assert pods.cometmq("mq-cometmq-namesrv-0", *words).returncode == 0
    words = ["consume", "Orders", "--from", "first", "--max", "101", "--timeout", "30"]
    found = pods.cometmq("mq-cometmq-namesrv-0", *words).stdout.split()
    assert sorted(found) == sorted([*map(str, range(100)), "after"])


def master(pods):
    """Return the number of the master, or None while there is none."""
    elector = "mq-cometmq-orders-elector-0"
    text = pods.cometmq(elector, "ha", "status", "-c", ELECTOR_SETTINGS).stdout
    found = re.search(r"^master +(\d+)$", text, re.MULTILINE)
    return found and int(found[1])


def names_of(pod, template, services):
    """Return the names that the cluster's DNS has for a pod and its Services."""
    labels = template["metadata"]["labels"].items()
    for one in services:
        if one["spec"]["selector"].items() <= labels:
            name = one["metadata"]["name"]
            yield f"{name}.prod.svc"
            yield f"{pod}.{name}.prod.svc"


def logs(container):
    command = ["docker", "logs", container]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def component(one):
    return one["metadata"]["labels"]["app.kubernetes.io/component"]
