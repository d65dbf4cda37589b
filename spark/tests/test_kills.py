# SPDX-License-Identifier: Apache-2.0
"""A million messages: read whole, with an executor killed, with the driver killed in mid-batch.

The same against a broker of RocketMQ.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from cometmq.peers.cluster import Cluster
from cometmq.peers.comet import CometCluster
from cometmq.peers.content import create_topic
from cometmq.peers.java import JavaCluster
from cometmq.peers.processes import Child, wait_until
from cometmq.spark.metadata import Metadata
from cometmq.spark.offsets_json import Queue
from cometmq.spark.options import parse
from cometmq.spark.testing import fill, numbered

PROGRAM = Path(__file__).parent / "programs" / "read_messages.py"
TOPIC = "million"
QUEUES = 4
COUNT = 250_000
RUN_TIMEOUT_S = 900
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[CometCluster, JavaCluster], ids=["comet", "java"])
def filled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """A broker with the messages."""
    with request.param(tmp_path_factory.mktemp("filled")) as cluster:
        create_topic(cluster.namesrv_addr, cluster.broker_addrs, TOPIC, queue_count=QUEUES)
        queues = fill(cluster.namesrv_addr, TOPIC, COUNT)
        with Metadata(parse({"nameServer": cluster.namesrv_addr, "subscribe": TOPIC})) as metadata:
            metadata.queues()
            wait_until(  # RocketMQ puts messages into queues after it stored them
                lambda: all(end == COUNT for _, end in metadata.ends(queues).values()),
                60,
                "messages in their queues",
            )
        yield cluster


def expected() -> list[list[Any]]:
    """What was sent: count, different offsets, and sum of checksums by queue."""
    rows = []
    for queue_id in range(QUEUES):
        queue = Queue(TOPIC, "broker-a", queue_id)
        total = sum(crc32(bytes(numbered(queue, number).body)) for number in range(COUNT))
        rows.append(["broker-a", queue_id, COUNT, COUNT, total])
    return rows


class Program:
    """Runs the Spark program in an empty folder."""

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
            },
        }

    def start(self) -> Child:
        python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        command = [sys.executable, str(PROGRAM), json.dumps(self.given)]
        log = self.folder / "program.log"
        return Child("spark", command, log_path=log, env=python, cwd=self.folder)

    def report(self, child: Child) -> dict[str, Any]:
        try:
            child.wait_until(lambda: '{"report"' in child.log(), RUN_TIMEOUT_S, "reported")
        finally:
            child.kill()
        line = next(text for text in child.log().splitlines() if '{"report"' in text)
        found: dict[str, Any] = json.loads(line[line.index('{"report"') :])["report"]
        return found


def test_every_message_is_read_once(filled: Cluster, tmp_path: Path) -> None:
    program = Program(filled, tmp_path, master="local[2]", stream=False)
    program.given["options"]["minPartitions"] = "8"

    assert program.report(program.start())["queues"] == expected()


def test_a_killed_executor_loses_and_doubles_nothing(filled: Cluster, tmp_path: Path) -> None:
    program = Program(filled, tmp_path, master="local-cluster[2,1,1024]", stream=False)
    program.given["kill"] = True
    program.given["options"]["minPartitions"] = "16"
    program.given["options"]["pullPipelineDepth"] = "1"  # slow enough to be killed in the middle

    report = program.report(program.start())

    assert report == {"killed": True, "queues": expected()}


def test_a_killed_driver_goes_on_where_its_checkpoint_is(filled: Cluster, tmp_path: Path) -> None:
    program = Program(filled, tmp_path, master="local[2]", stream=True)
    limit = COUNT * QUEUES // 5
    program.given["options"]["maxOffsetsPerTrigger"] = str(limit)
    offsets, commits = tmp_path / "checkpoint" / "offsets", tmp_path / "checkpoint" / "commits"

    def planned(folder: Path) -> int:
        return len([p for p in folder.glob("*") if p.name.isdigit()]) if folder.is_dir() else 0

    child = program.start()
    try:
        # a batch is planned that is not done: it is read right now
        child.wait_until(
            lambda: planned(commits) >= 1 and planned(offsets) > planned(commits),
            RUN_TIMEOUT_S,
            "in the middle of a batch",
        )
    finally:
        child.kill()
    assert planned(offsets) > planned(commits)
    wait_until(lambda: child.exit_status is not None, 10, "the driver's end")

    assert program.report(program.start())["queues"] == expected()
