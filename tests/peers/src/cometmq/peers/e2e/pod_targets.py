# SPDX-License-Identifier: Apache-2.0
"""Lists the ports of pods for Prometheus, because Debian's build lacks Kubernetes discovery.

The labels are those that Prometheus itself would set (`kubernetes_sd_configs`, role `pod`).
"""

import http.server
import json
import re
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from cometmq.peers.ports import HOST, free_port
from cometmq.peers.processes import Child

META: Final = "__meta_kubernetes"
START_TIMEOUT_S: Final = 60
STOP_TIMEOUT_S: Final = 30
REQUEST_TIMEOUT_S: Final = 30


class Cluster(NamedTuple):
    """Two loopback addresses: of the API server, for pods only, and of the lists of ports."""

    api: str
    discovery: str

    def url(self, namespaces: Sequence[str]) -> str:
        """Return the URL that lists the ports of these namespaces, or of all if there are none."""
        query = urllib.parse.urlencode([("namespace", one) for one in namespaces])
        return f"http://{self.discovery}/?{query}"


def label_name(key: str) -> str:
    """Return the label that holds a pod's label."""
    return f"{META}_pod_label_{re.sub('[^a-zA-Z0-9_]', '_', key)}"


def target_groups(pods: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a target for each declared port of each pod that has an address."""
    return [
        {
            "targets": [f"{pod['status']['podIP']}:{port['containerPort']}"],
            "labels": {
                **_pod_labels(pod),
                f"{META}_pod_container_name": container["name"],
                f"{META}_pod_container_port_name": port.get("name", ""),
                f"{META}_pod_container_port_number": str(port["containerPort"]),
            },
        }
        for pod in pods
        if "podIP" in pod["status"]
        for container in pod["spec"]["containers"]
        for port in container.get("ports", ())
    ]


def _pod_labels(pod: dict[str, Any]) -> dict[str, str]:
    metadata = pod["metadata"]
    return {
        f"{META}_namespace": metadata["namespace"],
        f"{META}_pod_name": metadata["name"],
        f"{META}_pod_phase": pod["status"]["phase"],
        **{label_name(key): value for key, value in metadata.get("labels", {}).items()},
    }


@contextmanager
def reachable_pods(folder: Path) -> Iterator[Cluster]:
    """Make the pods of the KUBECONFIG cluster available to a Prometheus on this machine."""
    with _api(folder) as api, _discovery(api) as discovery:
        yield Cluster(api, discovery)


@contextmanager
def _api(folder: Path) -> Iterator[str]:
    port = free_port()
    command = [
        "kubectl", "proxy", f"--port={port}",
        "--accept-paths=^/api/v1/(namespaces/[^/]+/)?pods(/|$)",
        "--reject-methods=^(POST|PUT|PATCH|DELETE)$",
    ]  # fmt: skip
    child = Child("kubectl-proxy", command, log_path=folder / "kubectl-proxy.log")
    try:
        child.wait_for_log("Starting to serve", START_TIMEOUT_S)
        yield f"{HOST}:{port}"
    finally:
        child.stop(STOP_TIMEOUT_S)


@contextmanager
def _discovery(api: str) -> Iterator[str]:
    class Lists(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            words = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
            places = [f"namespaces/{one}/pods" for one in words.get("namespace", ())] or ["pods"]
            try:
                pods = [pod for place in places for pod in _items(api, place)]
            except OSError as error:
                self.send_error(503, str(error))  # Prometheus keeps its targets
                return
            body = json.dumps(target_groups(pods)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = http.server.ThreadingHTTPServer((HOST, 0), Lists)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"{HOST}:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _items(api: str, place: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"http://{api}/api/v1/{place}", timeout=REQUEST_TIMEOUT_S) as found:
        return list(json.load(found)["items"])
