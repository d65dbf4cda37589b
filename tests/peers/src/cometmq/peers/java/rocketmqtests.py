# SPDX-License-Identifier: Apache-2.0
"""Runs RocketMQ's own published integration tests against servers of either implementation."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cometmq.peers.clients.programs import Running
from cometmq.peers.cluster import CLUSTER_NAME, Cluster
from cometmq.peers.java import home_options, java_home
from cometmq.peers.java.maven import JVM_OPTIONS, program, project_class_path
from cometmq.peers.paths import CACHE, ROOT
from cometmq.peers.processes import Child

PROJECT: Final = ROOT / "tests" / "peers" / "rocketmqtests"
MAIN_CLASS: Final = "io.cometmq.peers.RunTests"


def tests_class_path() -> str:
    """Return the class path of the tests and of the class that finds the servers."""
    return project_class_path(PROJECT)


def start_tests(cluster: Cluster, classes: Sequence[str], log_path: Path) -> Running:
    """Start JUnit classes of the package `org.apache.rocketmq.test`, one after the other.

    An event `passed`, `failed` or `ignored` is printed for each test, with the reason.
    """
    broker1, broker2 = cluster.broker_names
    home = java_home(CACHE)
    command = [
        program("java"),
        "-Xmx512m",
        "-XX:+UseSerialGC",
        *JVM_OPTIONS,
        *home_options(home),
        f"-Dpeers.namesrv={cluster.namesrv_addr}",
        f"-Dpeers.cluster={CLUSTER_NAME}",
        f"-Dpeers.broker1={broker1}",
        f"-Dpeers.broker2={broker2}",
        "-cp",
        tests_class_path(),
        MAIN_CLASS,
        *classes,
    ]
    return Running(Child("RocketMQ's tests", command, log_path=log_path))
