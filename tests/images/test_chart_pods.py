# SPDX-License-Identifier: Apache-2.0
"""The chart's pods as containers of the engine: their commands, settings and probes, and the test.

A network of the engine resolves the names of the Services, so the programs find each other as they
would in a cluster. Scheduling, volumes and rights are Kubernetes' part and are not tested here.
"""

import subprocess
import uuid
from pathlib import Path

import pytest
import yaml
from build_images import docker

from cometmq.peers.processes import PeerError, wait_until

CHART = Path(__file__).resolve().parents[2] / "deploy/helm/cometmq"
READY_TIMEOUT_S = 120
PROBE = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=5)"


@pytest.fixture
def network():
    name = f"cometmq-test-{uuid.uuid4().hex[:8]}"
    docker("network", "create", name)
    yield name
    docker("network", "rm", name)


@pytest.fixture
def objects(request):
    command = [request.config.getoption("--helm"), "template", "mq", str(CHART)]
    command += [
        "--namespace=prod",
        "--kube-version=1.34",
        f"--values={CHART}/ci/one-broker-values.yaml",
    ]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [one for one in yaml.safe_load_all(text) if one]


class Pods:
    """Runs templates of pods as containers with the security context that they ask for."""

    def __init__(self, network, image, folder, objects):
        self.network = network
        self.image = image
        self.containers: list[str] = []
        self._settings: dict[str, Path] = {}
        for one in objects:
            if one["kind"] == "ConfigMap":
                target = folder / one["metadata"]["name"]
                target.mkdir()
                for name, content in one["data"].items():
                    (target / name).write_text(content, encoding="utf-8")
                self._settings[one["metadata"]["name"]] = target

    def start(self, host, spec, aliases=()):
        """Start the pod's container, detached, as the pod `host`."""
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
        self.containers.append(docker(*words).strip())
        return self.containers[-1]

    def wait_ready(self, container, probe):
        """Call the probe as a kubelet would, until it succeeds."""
        url = f"http://127.0.0.1:8080{probe['httpGet']['path']}"

        def is_ready():
            command = ["docker", "exec", container, "python", "-c", PROBE, url]
            return subprocess.run(command, capture_output=True, check=False).returncode == 0

        try:
            wait_until(is_ready, READY_TIMEOUT_S, f"{url} of {container}")
        except PeerError as error:
            raise AssertionError(logs(container)) from error


@pytest.fixture
def pods(network, image, objects, tmp_path):
    tmp_path.chmod(0o755)
    found = Pods(network, image, tmp_path, objects)
    yield found
    if found.containers:
        docker("rm", "--force", "--volumes", *found.containers)


def test_the_pods_of_the_chart_serve_and_its_test_passes(pods, objects):
    services = {one["metadata"]["name"]: one["spec"] for one in objects if one["kind"] == "Service"}
    sets = [one for one in objects if one["kind"] == "StatefulSet"]
    order = ["namesrv", "broker", "txn-checker"]
    for one in sorted(sets, key=lambda one: order.index(component(one))):
        template = one["spec"]["template"]
        labels = template["metadata"]["labels"].items()
        aliases = [
            f"{name}.prod.svc"
            for name, service in services.items()
            if service["selector"].items() <= labels
        ]
        host = f"{one['metadata']['name']}-0"
        container = pods.start(host, template["spec"], aliases)
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            pods.wait_ready(container, template["spec"]["containers"][0][probe])
    (test,) = [one for one in objects if one["kind"] == "Pod"]
    container = pods.start("tests", test["spec"])
    status = docker("wait", container).strip()
    assert status == "0", logs(container)
    docker("stop", "--time=30", *pods.containers)
    statuses = docker("inspect", "--format={{.State.ExitCode}}", *pods.containers).split()
    assert set(statuses) == {"0"}


def logs(container):
    command = ["docker", "logs", container]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def component(one):
    return one["metadata"]["labels"]["app.kubernetes.io/component"]
