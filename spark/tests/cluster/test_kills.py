# SPDX-License-Identifier: Apache-2.0
"""A million messages are read exactly once while executors and drivers are killed."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from cometmq.peers.cluster import Cluster
from cometmq.peers.content import create_topic
from cometmq.peers.processes import Child
from cometmq.spark.options.offsets_json import Queue
from cometmq.testing.spark import fill, numbered

PROGRAM = Path(__file__).with_name("read_messages.py")
TOPIC = "million"
QUEUES = 4
COUNT = 250_000
BATCHES = 5
RUN_TIMEOUT_S = 900
ENVIRONMENT = {
    "SPARK_LOCAL_IP": "127.0.0.1",
    "PYSPARK_PYTHON": sys.executable,
    "PYSPARK_DRIVER_PYTHON": sys.executable,
}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def filled(maker: type[Cluster], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with maker(tmp_path_factory.mktemp("filled")) as cluster:
        create_topic(cluster.namesrv_addr, cluster.broker_addrs, TOPIC, queue_count=QUEUES)
        fill(cluster.namesrv_addr, TOPIC, COUNT)
        yield cluster


def expected() -> list[list[Any]]:
    """Return the expected rows: count, distinct offsets and sum of checksums per queue."""
    rows = []
    for queue_id in range(QUEUES):
        queue = Queue(TOPIC, "broker-a", queue_id)
        total = sum(crc32(bytes(numbered(queue, number).body)) for number in range(COUNT))
        rows.append(["broker-a", queue_id, COUNT, COUNT, total])
    return rows


class Program:
    def __init__(self, cluster: Cluster, folder: Path, *, master: str, stream: bool) -> None:
        self.folder = folder
        self.given: dict[str, Any] = {
            "master": master,
            "folder": str(folder),
            "stream": stream,
            "options": {
                "nameServer": cluster.namesrv_addr,
                "subscribe": TOPIC,
                "startingOffsets": "earliest",
                "minPartitions": "8",
            },
        }
        if stream:
            self.given["options"]["maxOffsetsPerTrigger"] = str(COUNT * QUEUES // BATCHES)

    def start(self) -> Child:
        command = [sys.executable, str(PROGRAM), json.dumps(self.given)]
        log = self.folder / "program.log"
        return Child("spark", command, log_path=log, env=ENVIRONMENT, cwd=self.folder)

    def report(self, child: Child) -> dict[str, Any]:
        try:
            child.wait_until(lambda: '{"report"' in child.log(), RUN_TIMEOUT_S, "reported")
        finally:
            child.kill()
        line = next(text for text in child.log().splitlines() if '{"report"' in text)
        found: dict[str, Any] = json.loads(line[line.index('{"report"') :])["report"]
        return found


@pytest.mark.parametrize("stream", [False, True], ids=["batch", "stream"])
def test_killed_executor_neither_loses_nor_duplicates(
    filled: Cluster, tmp_path: Path, stream: bool
) -> None:
    program = Program(filled, tmp_path, master="local-cluster[2,1,1024]", stream=stream)
    program.given["kill"] = True
    program.given["options"]["pullPipelineDepth"] = "1"  # slow enough to be killed midway

    report = program.report(program.start())

    assert report == {"killed": True, "queues": expected()}


def kill_in_a_batch(program: Program) -> None:
    """Start a stream, and kill its driver while a planned batch is incomplete."""
    checkpoint = program.folder / "checkpoint"

    def count(name: str) -> int:
        folder = checkpoint / name
        return len([p for p in folder.glob("*") if p.name.isdigit()]) if folder.is_dir() else 0

    child = program.start()
    try:
        child.wait_until(
            lambda: count("commits") >= 1 and count("offsets") > count("commits"),
            RUN_TIMEOUT_S,
            "in the middle of a batch",
        )
    finally:
        child.kill()
    assert count("offsets") > count("commits")


def test_killed_driver_resumes_from_its_checkpoint(filled: Cluster, tmp_path: Path) -> None:
    program = Program(filled, tmp_path, master="local[2]", stream=True)

    kill_in_a_batch(program)

    assert program.report(program.start())["queues"] == expected()


def test_driver_killed_on_a_master_resumes_there(
    filled: Cluster, standalone: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "driver"
    folder.mkdir()
    program = Program(filled, folder, master=standalone.url, stream=True)

    kill_in_a_batch(program)

    assert program.report(program.start())["queues"] == expected()
    for worker in standalone.workers:
        assert worker.log().count("Asked to launch executor") >= 2, "one for each driver"
