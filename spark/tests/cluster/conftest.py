# SPDX-License-Identifier: Apache-2.0
"""Runs a real Spark cluster of processes on loopback, and creates topics for it to read."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyspark
import pytest

from cometmq.peers.ports import free_port
from cometmq.peers.processes import Child

SPARK_HOME = Path(pyspark.__file__).parent
HOST = "127.0.0.1"
START_S = 90
STOP_S = 10


class Standalone:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self.url = f"spark://{HOST}:{free_port()}"
        self.workers: list[Child] = []

    def start(self, worker_count: int) -> None:
        """Start the master, then its workers; return once all workers have registered."""
        port = self.url.rpartition(":")[2]
        self.master = self._launch("master", "master.Master", "--port", port)
        self.master.wait_for_log("I have been elected leader", START_S)
        for number in range(worker_count):
            name = f"worker-{number}"
            options = ["--cores", "1", "--memory", "1g", "--work-dir", str(self._folder / name)]
            self.workers.append(self._launch(name, "worker.Worker", *options, self.url))
        for worker in self.workers:
            worker.wait_for_log("Successfully registered with master", START_S)

    def _launch(self, name: str, main: str, *options: str) -> Child:
        program = str(SPARK_HOME / "bin" / "spark-class")
        common = ["--host", HOST, "--webui-port", "0"]
        child = Child(
            name,
            [program, f"org.apache.spark.deploy.{main}", *common, *options],
            log_path=self._folder / f"{name}.log",
            env=environment() | {"SPARK_DAEMON_MEMORY": "256m"},
            cwd=self._folder,
        )
        self._stack.callback(child.stop, STOP_S)
        return child

    def stop(self) -> None:
        """Kill all processes, including the executors of the workers."""
        self._stack.close()


def environment() -> dict[str, str]:
    return {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": HOST,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def start_job(master: str, folder: Path, *arguments: str) -> Child:
    """Start the job as a user does, in a folder without any of our files."""
    folder.mkdir(exist_ok=True)
    settings = {
        "spark.driver.memory": "1g",
        "spark.executor.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.driver.host": HOST,
        "spark.local.dir": str(folder),
        "spark.sql.shuffle.partitions": "4",
        # Both executors get tasks from the start.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
    }
    options = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    job = str(Path(__file__).with_name("job.py"))
    program = str(SPARK_HOME / "bin" / "spark-submit")
    return Child(
        "job",
        [program, "--master", master, *options, job, *arguments],
        log_path=folder / "job.log",
        env=environment(),
        cwd=folder,
    )


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[Standalone]:
    folder = tmp_path / "spark"
    folder.mkdir()
    cluster = Standalone(folder)
    try:
        cluster.start(2)
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def submit() -> Callable[..., Child]:
    return start_job
