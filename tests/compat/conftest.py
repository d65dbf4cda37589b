# SPDX-License-Identifier: Apache-2.0
"""Provides servers of both implementations, and clients of all kinds.

A test that takes `cluster` runs against CometMQ and, in the long form, against Java too. The run
against Java proves that the test expects RocketMQ's behaviour.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cometmq.peers.cli import CliAnswer, CometCli
from cometmq.peers.clients.cppclient import CppClient
from cometmq.peers.clients.javaclient import VERSION_5, JavaClient, MqAdmin
from cometmq.peers.clients.nodeclient import NodeClient
from cometmq.peers.clients.programs import ClientProgram
from cometmq.peers.cluster import Cluster
from cometmq.peers.comet import CometCluster
from cometmq.peers.content import create_topic
from cometmq.peers.java import Java5Cluster, PatientJavaCluster
from cometmq.peers.processes import wait_until

MAKERS: dict[str, type[Cluster]] = {
    "comet": CometCluster,
    "java": PatientJavaCluster,
    "java-5": Java5Cluster,
}
STATISTICS_TIMEOUT_S = 120.0


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Cluster]]:
    """Clusters by implementation, each started on first use and kept for all tests."""
    clusters: dict[str, Cluster] = {}

    def cluster_of(name: str) -> Cluster:
        if name not in clusters:
            cluster = MAKERS[name](tmp_path_factory.mktemp(name))
            clusters[name] = stack.enter_context(cluster)
        return clusters[name]

    with ExitStack() as stack:
        yield cluster_of


@pytest.fixture(scope="session", params=["comet", pytest.param("java", marks=pytest.mark.slow)])
def cluster(request: pytest.FixtureRequest, running: Callable[[str], Cluster]) -> Cluster:
    """One broker and its name server, shared by all tests: use a fresh topic and group."""
    return running(request.param)


@pytest.fixture(scope="session")
def maker() -> Callable[[str], type[Cluster]]:
    return MAKERS.__getitem__


@pytest.fixture(scope="session")
def mqadmin(cluster: Cluster) -> Iterator[MqAdmin]:
    """RocketMQ's admin tool, connected to `cluster`."""
    with MqAdmin(cluster.namesrv_addr) as session:
        # A Java broker has no statistics in its first seconds.
        wait_until(
            lambda: "V4_9_4" in session.run("clusterList").output,
            STATISTICS_TIMEOUT_S,
            "statistics",
        )
        yield session


@pytest.fixture(scope="session")
def ours(cluster: Cluster) -> Callable[..., CliAnswer]:
    """Run a `cometmq` command against the cluster."""
    return CometCli(cluster.namesrv_addr).run


@pytest.fixture(scope="session")
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clients")


@pytest.fixture(scope="session")
def clients(log_dir: Path) -> dict[str, ClientProgram]:
    return {
        "java-4": JavaClient(log_dir),
        "java-5": JavaClient(log_dir, VERSION_5),
        "cpp": CppClient(log_dir),
        "node": NodeClient(log_dir),
    }


@pytest.fixture(scope="session")
def java(clients: dict[str, ClientProgram]) -> ClientProgram:
    """The Java client 4.9.4."""
    return clients["java-4"]


@pytest.fixture(scope="session")
def fresh_name() -> Callable[[str], str]:
    numbers = itertools.count(1)
    return lambda stem: f"{stem}{next(numbers)}"


@pytest.fixture
def topic(cluster: Cluster, fresh_name: Callable[[str], str]) -> str:
    name = fresh_name("CompatTopic")
    create_topic(cluster.namesrv_addr, cluster.broker_addrs, name)
    return name


@pytest.fixture
def group(fresh_name: Callable[[str], str]) -> str:
    return fresh_name("CompatGroup")
