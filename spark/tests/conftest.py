# SPDX-License-Identifier: Apache-2.0
"""Provides brokers of both implementations, and one Spark session for all tests that need it.

A test that takes `cluster` runs against CometMQ, and in the long form also against RocketMQ.
"""

import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cometmq.peers.cluster import Cluster
from cometmq.peers.comet import CometCluster
from cometmq.peers.content import create_topic
from cometmq.peers.java import PatientJavaCluster
from cometmq.peers.processes import wait_until
from cometmq.spark.cluster.topics import NameServers
from cometmq.spark.options.definitions import parse
from cometmq.spark.source import RocketMQDataSource
from cometmq.testing.spark import Gateway

MAKERS: dict[str, type[Cluster]] = {"comet": CometCluster, "java": PatientJavaCluster}


@pytest.fixture(scope="session", params=["comet", pytest.param("java", marks=pytest.mark.slow)])
def maker(request: pytest.FixtureRequest) -> type[Cluster]:
    return MAKERS[request.param]


@pytest.fixture(scope="session")
def cluster(maker: type[Cluster]) -> Iterator[Cluster]:
    """A name server and two brokers that do not create groups automatically."""
    with (
        tempfile.TemporaryDirectory(prefix="cometmq-spark-") as folder,
        maker(Path(folder), {"autoCreateSubscriptionGroup": False}, broker_count=2) as running,
    ):
        yield running


@pytest.fixture
def make_topic(cluster: Cluster) -> Callable[[str], str]:
    """Return a function that creates a topic with two queues per broker and waits for its route."""

    def make(name: str) -> str:
        create_topic(cluster.namesrv_addr, cluster.broker_addrs, name, queue_count=2)
        options = parse({"nameServer": cluster.namesrv_addr})

        def is_everywhere() -> bool:
            with NameServers(options) as names:
                route = names.route(name)
            return route is not None and len(route.read_queues) == 4

        wait_until(is_everywhere, 20, f"route of {name}")
        return name

    return make


@pytest.fixture
def topic(make_topic: Callable[[str], str], request: pytest.FixtureRequest) -> str:
    return make_topic(re.sub(r"\W", "_", request.node.name)[:100])


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local Spark session whose workers run in an empty folder, to prevent accidental imports."""
    with (
        tempfile.TemporaryDirectory(prefix="cometmq-spark-work-") as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        patch.chdir(folder)
        session = (
            SparkSession.builder.master("local[2]")
            .appName("cometmq-spark-tests")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.memory", "1g")
            # Test queries end before the C2 compiler would pay off.
            .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.local.dir", folder)
            .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("ERROR")
        session.dataSource.register(RocketMQDataSource)
        yield session
        session.stop()


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with Gateway() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


_SERVERS = frozenset({"spark", "maker", "cluster"})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that start Spark or brokers."""
    for item in items:
        if not _SERVERS.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.servers)
