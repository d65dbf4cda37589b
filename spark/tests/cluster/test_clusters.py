# SPDX-License-Identifier: Apache-2.0
"""A job on a Spark cluster with two workers reads each message once, and builds a report."""

import asyncio
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cometmq.client.admin import AdminClient
from cometmq.peers.cluster import Cluster
from cometmq.peers.processes import Child, wait_until
from cometmq.spark.collect.broker import CollectSettings
from cometmq.spark.collect.snapshot import take, write
from cometmq.testing.spark import fill, numbered

MESSAGES_A_QUEUE = 10_000
JOB_S = 300
FIRST_SNAPSHOT = 29_539_440

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def filled(cluster: Cluster, topic: str) -> dict[str, int]:
    queues = fill(cluster.namesrv_addr, topic, MESSAGES_A_QUEUE)
    bodies = [numbered(queue, n).body for queue in queues for n in range(MESSAGES_A_QUEUE)]
    return {
        "count": len(bodies),
        "keys": len(bodies),
        "checksum": sum(zlib.crc32(body) for body in bodies),
    }


def result(job: Child) -> dict[str, Any]:
    wait_until(lambda: job.exit_status is not None, JOB_S, "end of the job")
    log = job.log()
    assert job.exit_status == 0, log[-4000:]
    line = next(line for line in log.splitlines() if line.startswith("RESULT "))
    found: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return found


async def take_history(namesrv: str, topic: str, history: Path) -> None:
    """Take snapshots of a group that has consumed a single message from one queue."""
    async with AdminClient(namesrv) as admin:
        broker = next(iter((await admin.masters()).values()))
        await broker.commit_offset(f"reader-of-{topic}", topic, 0, 1)
    for number in range(6):
        snapshot = await take(CollectSettings(namesrv=namesrv), FIRST_SNAPSHOT + number)
        write(history, snapshot)


def test_job_on_a_master_with_two_workers(
    cluster: Cluster,
    topic: str,
    standalone: Any,
    tmp_path: Path,
    submit: Callable[..., Child],
) -> None:
    expected = filled(cluster, topic)
    history = tmp_path / "history"
    asyncio.run(take_history(cluster.namesrv_addr, topic, history))
    job = submit(
        standalone.url,
        tmp_path / "job",
        *(cluster.namesrv_addr, topic, str(history)),
    )
    found = result(job)
    assert f"reader-of-{topic}" in found.pop("groups")
    assert found == expected
    assert all("Asked to launch executor" in worker.log() for worker in standalone.workers)
