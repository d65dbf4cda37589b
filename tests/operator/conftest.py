# SPDX-License-Identifier: Apache-2.0
"""Runs one Kubernetes API for all tests of this folder; each test has its own namespace."""

import getpass
import itertools
from collections.abc import Iterator

import pytest

from cometmq.peers.kube import KubeApiServer
from cometmq.peers.paths import ROOT

NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def kube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeApiServer]:
    with KubeApiServer(tmp_path_factory.mktemp("kube")) as server:
        server.kubectl("apply", "-f", str(ROOT / "deploy/crds"))
        server.kubectl("wait", "--for=condition=Established", "crd", "--all")
        yield server


@pytest.fixture
def namespace(kube: KubeApiServer) -> str:
    name = f"test-{next(NUMBERS)}"
    kube.kubectl("create", "namespace", name)
    return name


@pytest.fixture(autouse=True)
def nameless_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run as in a pod, whose user has no entry in /etc/passwd."""

    def getuser() -> str:
        raise KeyError("getpwuid(): uid not found: 10001")

    monkeypatch.setattr(getpass, "getuser", getuser)
