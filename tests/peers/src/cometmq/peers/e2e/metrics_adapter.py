# SPDX-License-Identifier: Apache-2.0
"""Runs prometheus-adapter on this machine, as the external metrics API of the KUBECONFIG cluster.

The adapter gets the arguments and the rights that its chart would give it. It has no pod: the
cluster reaches it through a Service whose EndpointSlice contains an address of this machine. The
test cluster rejects the traffic of pods to the outside, so a pod would not reach a Prometheus here.
"""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from cometmq.peers.e2e.kubectl import Namespace, run
from cometmq.peers.errors import PeerError
from cometmq.peers.ports import free_port
from cometmq.peers.processes import Child
from cometmq.peers.prometheus.autoscaling import adapter_config

PROGRAM: Final = "prometheus-adapter"
VERSION: Final = "v1beta1"
GROUP: Final = "external.metrics.k8s.io"
PLACE: Final = Namespace("kube-system")
"""The RoleBinding must be here; the other objects are here to be deleted with it."""
START_TIMEOUT_S: Final = 120
STOP_TIMEOUT_S: Final = 30
RBAC: Final = "rbac.authorization.k8s.io"


@contextmanager
def serving_external_metrics(folder: Path, prometheus: str, node: str) -> Iterator[None]:
    """Serve the metrics of a Prometheus, given by its address, by the rules of the example.

    `node` is the address of a node; nodes must reach this machine at the address from which this
    machine reaches them.
    """
    address, port = _address_towards(node), free_port()
    objects = [*_rights(), *_service(address, port)]
    body = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    PLACE.kubectl("apply", "--filename=-", stdin=body)
    try:
        child = Child(PROGRAM, _command(folder, prometheus, address, port),
                      log_path=folder / "adapter.log")  # fmt: skip
        try:
            available = ("wait", "--for=condition=Available", f"apiservice/{VERSION}.{GROUP}")
            child.wait_for_log("Serving securely", START_TIMEOUT_S)
            PLACE.kubectl(*available, f"--timeout={START_TIMEOUT_S}s")
            yield
        finally:
            child.stop(STOP_TIMEOUT_S)
    finally:
        PLACE.kubectl("delete", "--ignore-not-found", "--filename=-", stdin=body)


def figures(path: str) -> list[dict[str, Any]]:
    """Return the figures at a path of the API; there are none while the adapter knows no series."""
    try:
        found = json.loads(run("kubectl", "get", "--raw", path))
    except PeerError as error:
        if "NotFound" in str(error):
            return []
        raise
    return list(found["items"])


def _address_towards(node: str) -> str:
    """Return the address from which this machine connects to a node."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
        connection.connect((node, 9))  # sends nothing
        return str(connection.getsockname()[0])


def _command(folder: Path, prometheus: str, address: str, port: int) -> list[str]:
    config, credentials = folder / "adapter.yaml", folder / "adapter.kubeconfig"
    config.write_text(json.dumps(adapter_config()), encoding="utf-8")  # JSON is YAML
    credentials.write_text(json.dumps(_credentials()), encoding="utf-8")
    places = ("authentication", "authorization", "lister")
    return [
        PROGRAM, f"--config={config}", f"--prometheus-url=http://{prometheus}",
        "--metrics-relist-interval=1m",  # the chart's default
        f"--bind-address={address}", f"--secure-port={port}", f"--cert-dir={folder / 'cert'}",
        *(f"--{place}-kubeconfig={credentials}" for place in places),
    ]  # fmt: skip


def _credentials() -> dict[str, Any]:
    """Return the current credentials, with the token of the adapter's ServiceAccount."""
    config: dict[str, Any] = json.loads(
        run("kubectl", "config", "view", "--raw", "--minify", "--output=json")
    )
    token = PLACE.kubectl("create", "token", PROGRAM).strip()
    (user,) = config["users"]
    user["user"] = {"token": token}
    return config


def _rights() -> list[dict[str, Any]]:
    """Return the ServiceAccount and its rights: to check the tokens and rights of clients."""
    subject = {"kind": "ServiceAccount", "name": PROGRAM, "namespace": PLACE.name}

    def binding(kind: str, role_kind: str, role: str) -> dict[str, Any]:
        return {
            "apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": {"name": PROGRAM},
            "roleRef": {"apiGroup": RBAC, "kind": role_kind, "name": role}, "subjects": [subject],
        }  # fmt: skip

    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": PROGRAM}},
        binding("ClusterRoleBinding", "ClusterRole", "system:auth-delegator"),
        binding("RoleBinding", "Role", "extension-apiserver-authentication-reader"),
    ]


def _service(address: str, port: int) -> list[dict[str, Any]]:
    """Return the registration of the API, and a Service without pods that leads to the adapter."""
    of_service = {"kubernetes.io/service-name": PROGRAM}
    return [
        {
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": PROGRAM},
            "spec": {"ports": [{"port": 443, "targetPort": port}]},
        },
        {
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": PROGRAM, "labels": of_service},
            "ports": [{"port": port}], "endpoints": [{"addresses": [address]}],
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": f"{VERSION}.{GROUP}"},
            "spec": {
                "group": GROUP, "version": VERSION,
                "service": {"name": PROGRAM, "namespace": PLACE.name},
                # The adapter makes its own certificate; the chart's default is the same.
                "insecureSkipTLSVerify": True,
                "groupPriorityMinimum": 100, "versionPriority": 100,
            },
        },
    ]  # fmt: skip
