# SPDX-License-Identifier: Apache-2.0
"""Runs a Kubernetes API on loopback without nodes: etcd, API server, controller manager.

Pods remain pending, so tests of controllers and custom resources set what a kubelet would report.
The programs are built from Go modules, once per version of tests/peers/kube.
"""

import hashlib
import json
import os
import re
import secrets
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from cometmq.operator.api import ApiServer
from cometmq.peers.errors import PeerError
from cometmq.peers.java.maven import cache_entry
from cometmq.peers.paths import ROOT
from cometmq.peers.ports import HOST, free_port
from cometmq.peers.processes import Child, run_to_end

SOURCES: Final = ROOT / "tests" / "peers" / "kube"
PROGRAMS: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")
GO_MINIMUM: Final = (1, 24)
BUILD_TIMEOUT_S: Final = 3600.0
START_TIMEOUT_S: Final = 120.0


def why_not() -> str:
    """Return why the programs cannot be built on this machine, or an empty text if they can."""
    go = shutil.which("go")
    wanted = ".".join(map(str, GO_MINIMUM))
    if go is None:
        return f"go is not installed: a Kubernetes API for tests needs Go {wanted} or newer"
    text = subprocess.run([go, "version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"go(\d+)\.(\d+)", text)
    if found is None or (int(found[1]), int(found[2])) < GO_MINIMUM:
        return f"{text.strip()}: a Kubernetes API for tests needs Go {wanted} or newer"
    return ""


def binaries() -> Path:
    """Return the folder of the programs; they are built on first use and after changes."""
    content = b"".join((SOURCES / name).read_bytes() for name in ("go.mod", "go.sum", "main.go"))
    with cache_entry(f"kube-{hashlib.sha256(content).hexdigest()[:16]}") as (folder, complete):
        if not complete:
            if reason := why_not():
                raise PeerError(reason)
            command = ["go", "build", "-trimpath", "-ldflags", "-s -w", "-o", str(folder / "kube")]
            run_to_end(
                ["env", "CGO_ENABLED=0", *command, "."], timeout_s=BUILD_TIMEOUT_S, cwd=SOURCES
            )
            for name in PROGRAMS:
                (folder / name).symlink_to("kube")
    return folder


class KubeApiServer:
    """A Kubernetes API, initially empty; its data is deleted with `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.token = secrets.token_hex(16)
        """The token of an administrator."""
        self._programs = binaries()
        self._etcd_port, self._peer_port, self._port = free_port(), free_port(), free_port()
        self._children: list[Child] = []
        self._starter = ThreadPoolExecutor(1)

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    def server(self) -> ApiServer:
        """Return the server as an administrator sees it."""
        token = self.directory / "token"
        token.write_text(self.token, encoding="ascii")
        return ApiServer(host=HOST, port=self._port, ca=self.certificate, token=token)

    @property
    def kubeconfig(self) -> Path:
        return self.directory / "kubeconfig"

    @property
    def certificate(self) -> Path:
        """The certificate that the server has made for itself, once it has started."""
        return self.directory / "certs" / "apiserver.crt"

    @property
    def pids(self) -> dict[str, int]:
        """The processes, by program."""
        return {child.name: child.pid for child in self._children}

    def metrics(self) -> str:
        """Return the metrics of the API server, some MB of text."""
        with self._open("/metrics") as answer:
            text: str = answer.read().decode()
        return text

    def kubectl(self, *arguments: str, stdin: str = "", is_checked: bool = True) -> str:
        """Run kubectl as administrator and return its output.

        If it fails, raise an error, or return its error output too if `is_checked` is false.
        """
        done = subprocess.run(
            [self._programs / "kubectl", f"--kubeconfig={self.kubeconfig}", *arguments],
            input=stdin, capture_output=True, text=True, timeout=60, check=False,
            env={"PATH": os.defpath, "HOME": str(self.directory)},
        )  # fmt: skip
        if is_checked and done.returncode != 0:
            raise PeerError(f"kubectl {' '.join(arguments)}: {done.stderr}")
        return done.stdout if is_checked else done.stdout + done.stderr

    def objects(self, *arguments: str) -> Any:
        """Return the objects that `kubectl get ARGUMENTS` finds, as JSON."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._write_files()
        self._start_etcd()
        server = self.start_api_server()
        self._start(
            "kube-controller-manager",
            *(f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--secure-port=0"),
            f"--service-account-private-key-file={self.directory / 'sa.key'}",
            "--use-service-account-credentials=false",
        )
        server.wait_until(self._has_default_namespace, START_TIMEOUT_S, "default namespace")

    def stop(self) -> None:
        """Kill all programs: their data is not needed, and a graceful stop takes 20 s."""
        for child in reversed(self._children):
            child.kill()
        self._children.clear()
        self._starter.shutdown()

    def _start(self, name: str, *arguments: str) -> Child:
        command = [str(self._programs / name), *arguments]
        # Programs end with the thread that started them, so it must not be one of an event loop.
        log_path = self.directory / f"{name}.log"
        child = self._starter.submit(Child, name, command, log_path=log_path).result()
        self._children.append(child)
        return child

    def _start_etcd(self) -> None:
        client, peer = f"http://{HOST}:{self._etcd_port}", f"http://{HOST}:{self._peer_port}"
        self._start(
            "etcd",
            f"--data-dir={self.directory / 'etcd'}",
            *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}"),
            *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"),
            *(f"--initial-cluster=default={peer}", "--unsafe-no-fsync"),
        )

    def stop_api_server(self) -> None:
        """Kill the API server; etcd keeps its data."""
        (server,) = (one for one in self._children if one.name == "kube-apiserver")
        self._children.remove(server)
        server.kill()

    def start_api_server(self) -> Child:
        server = self._start(
            "kube-apiserver",
            f"--etcd-servers=http://{HOST}:{self._etcd_port}",
            *(f"--bind-address={HOST}", f"--advertise-address={HOST}"),
            *(f"--secure-port={self._port}", f"--cert-dir={self.directory / 'certs'}"),
            f"--token-auth-file={self.directory / 'tokens.csv'}",
            *("--authorization-mode=RBAC", "--service-cluster-ip-range=10.96.0.0/16"),
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.directory / 'sa.pub'}",
            f"--service-account-signing-key-file={self.directory / 'sa.key'}",
            "--disable-admission-plugins=ServiceAccount",
        )
        server.wait_until(self._is_ready, START_TIMEOUT_S, "ready")
        return server

    def _write_files(self) -> None:
        key, public = str(self.directory / "sa.key"), str(self.directory / "sa.pub")
        run_to_end(["openssl", "genrsa", "-out", key, "2048"], timeout_s=60)
        run_to_end(["openssl", "rsa", "-in", key, "-pubout", "-out", public], timeout_s=60)
        (self.directory / "tokens.csv").write_text(f"{self.token},admin,admin,system:masters\n")
        cluster = {"server": self.url, "insecure-skip-tls-verify": True}
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": self.token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }  # fmt: skip
        self.kubeconfig.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML

    def _is_ready(self) -> bool:
        return self._answers("/readyz")

    def _has_default_namespace(self) -> bool:
        return self._answers("/api/v1/namespaces/default")

    def _answers(self, path: str) -> bool:
        try:
            with self._open(path) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def _open(self, path: str) -> Any:
        context = ssl._create_unverified_context()  # made by this server
        request = urllib.request.Request(
            self.url + path, headers={"Authorization": f"Bearer {self.token}"}
        )
        return urllib.request.urlopen(request, timeout=5, context=context)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
