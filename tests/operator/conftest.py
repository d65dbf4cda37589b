# SPDX-License-Identifier: Apache-2.0
"""Runs one Kubernetes API for the tests of this folder; each test has its own namespace.

The tests with many groups have an API server of their own, and their figures are printed at the end
of the run.
"""

import gc
import getpass
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cometmq.peers.kube import KubeApiServer
from cometmq.peers.operated import OperatedGroup
from cometmq.peers.paths import ROOT

NUMBERS = itertools.count(1)
FIGURES = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--groups", type=int, default=50, help="number of groups in test_many_groups.py"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FIGURES] = []
    # Connections are still open when the loop of kopf's thread ends.
    ignored = "ignore::pytest.PytestUnraisableExceptionWarning"
    config.addinivalue_line("filterwarnings", ignored)


@pytest.fixture(scope="session", autouse=True)
def _all_collected() -> Iterator[None]:
    """Find open connections in the last test: after it, pytest ignores no warnings any more."""
    yield
    for _ in range(5):  # finalizers can make new garbage
        gc.collect()


@pytest.fixture(scope="session")
def figures(request: pytest.FixtureRequest) -> list[str]:
    """Lines to print at the end of the run."""
    return request.config.stash[FIGURES]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if lines := config.stash[FIGURES]:
        terminalreporter.section(f"{config.getoption('--groups')} groups")
        terminalreporter.write("".join(f"{line}\n" for line in lines))


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


@pytest.fixture
async def world(
    kube: KubeApiServer, namespace: str, tmp_path: Path
) -> AsyncIterator[OperatedGroup]:
    one = OperatedGroup(kube, namespace, tmp_path)
    yield one
    await one.close()


@pytest.fixture(autouse=True)
def nameless_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run as in a pod, whose user has no entry in /etc/passwd."""

    def getuser() -> str:
        raise KeyError("getpwuid(): uid not found: 10001")

    monkeypatch.setattr(getpass, "getuser", getuser)
