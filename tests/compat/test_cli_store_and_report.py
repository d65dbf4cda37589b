# SPDX-License-Identifier: Apache-2.0
"""Runs `lag --report`, and `store verify` while a broker runs, after a kill and after a stop."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.client import Message, Producer
from cometmq.peers.cli import CometCli
from cometmq.peers.cluster import Cluster
from cometmq.peers.comet import PROGRAM

pytestmark = pytest.mark.compat

COUNT = 200
TIMEOUT_S = 120
IN_USE, NEEDS_RECOVERY, HEALTHY = (3, "in use", 0), (4, "needs recovery", 0), (0, "healthy", 0)


async def send(cluster: Cluster, topic: str) -> None:
    """Store messages with keys, so that each has an entry in the index."""
    async with Producer("reports", cluster.namesrv_addr) as producer:
        for number in range(COUNT):
            await producer.send(Message(topic, b"body", keys=(f"key{number}",)))


def verified(cluster: Cluster) -> tuple[int, str, int]:
    command = [str(PROGRAM), "store", "verify", str(cluster.store_dir), "--json"]
    done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)
    found = json.loads(done.stdout)
    return done.returncode, found["state"], found["findings"]


@pytest.mark.parametrize("name", ["comet", pytest.param("java", marks=pytest.mark.slow)])
async def test_the_state_of_a_store_follows_its_broker(
    name: str, maker: Callable[[str], type[Cluster]], tmp_path: Path
) -> None:
    with maker(name)(tmp_path) as cluster:
        await send(cluster, "Verified")
        assert verified(cluster) == IN_USE
        cluster.kill_broker()
        assert verified(cluster) == NEEDS_RECOVERY
        cluster.start_broker()
        await send(cluster, "Verified")
        cluster.stop_broker()
        assert verified(cluster) == HEALTHY


async def test_a_report_names_a_group_that_stopped(
    cluster: Cluster, topic: str, group: str, tmp_path: Path
) -> None:
    await send(cluster, topic)
    cli = CometCli(cluster.namesrv_addr)
    wanted = ("-g", group, "--from", "first", "--max", "10", "--timeout", "60")
    assert cli.run("consume", topic, *wanted).status == 0
    file = tmp_path / "lag.html"
    answer = cli.run("lag", group, "--report", str(file))
    assert answer.status == 0, answer.errors
    page = file.read_text()
    assert "stopped" in page
    assert f"{topic}: {COUNT - 10} unread in 4 queues" in page
