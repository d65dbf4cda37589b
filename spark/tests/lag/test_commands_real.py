# SPDX-License-Identifier: Apache-2.0
"""Runs each command of `cometmq-lag` against brokers of CometMQ and RocketMQ."""

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cometmq.client import AdminClient, ConsumeFrom, MessageExt, PushConsumer, PushOptions
from cometmq.client.clock import wall_ms
from cometmq.peers.cluster import Cluster
from cometmq.peers.content import create_topic
from cometmq.peers.java import mqadmin
from cometmq.peers.processes import wait_until
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.spark.collect.broker import CollectSettings
from cometmq.spark.collect.snapshot import snapshot_id_of, take, write
from cometmq.spark.lag.cli import Exit
from cometmq.spark.lag.columns import Report
from cometmq.spark.lag.members import GroupAnswers, query_members
from cometmq.testing.spark import Gateway, fill, run_lag

pytestmark = [pytest.mark.servers, pytest.mark.timeout(900)]

TOPIC = "Orders"
QUEUES = 4
SENT = 300
"""Messages sent to each queue; every third has the tag that one group subscribes to."""
COMMITTED = {"stopped": [100, 200, 300, 300], "fine": [SENT] * QUEUES}
HANGING = "hanging"
ROUNDS = 7


@pytest.fixture(scope="module")
def cluster(maker: type[Cluster], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker with messages, and two groups that have consumed some of them."""
    settings = {"autoCreateTopicEnable": False}
    with maker(tmp_path_factory.mktemp("lag"), settings) as running:
        namesrv = running.namesrv_addr
        retries = (
            f"%RETRY%{group}" for group in COMMITTED
        )  # mqadmin only knows groups with a configuration
        for name in (TOPIC, "CMQ_LAG_ALERT", *retries):
            create_topic(namesrv, running.broker_addrs, name, queue_count=QUEUES)
        fill(namesrv, TOPIC, SENT)
        asyncio.run(commit(running))
        yield running


async def commit(cluster: Cluster) -> None:
    async with AdminClient(cluster.namesrv_addr) as admin:
        for group, offsets in COMMITTED.items():
            for queue_id, offset in enumerate(offsets):
                queue = MessageQueue(TOPIC, cluster.broker_names[0], queue_id)
                await admin.commit_offset(group, queue, offset)


def progress_of(history: Path, group: str) -> dict[int, dict[str, Any]]:
    """Return the rows of a group in the newest snapshot, keyed by queue."""
    path = max(history.glob("raw/progress/*/*/snap-*.parquet"))
    rows = pq.read_table(path, partitioning=None).to_pylist()
    return {r["queue_id"]: r for r in rows if r["group"] == group and r["topic"] == TOPIC}


def mqadmin_progress(cluster: Cluster, group: str) -> tuple[dict[int, tuple[int, int]], int]:
    """Return offsets by queue, and the total of their differences."""
    said = mqadmin(["consumerProgress", "-g", group], cluster.namesrv_addr).stdout
    rows = [line.split() for line in said.splitlines() if line.startswith(f"{TOPIC} ")]
    (total,) = re.findall(r"Diff Total: (\d+)", said)
    return {int(row[2]): (int(row[3]), int(row[4])) for row in rows}, int(total)


def test_snapshot_agrees_with_mqadmin(cluster: Cluster, tmp_path: Path) -> None:
    status, out, lines = run_lag("snapshot", tmp_path, "--namesrv", cluster.namesrv_addr)

    assert (status, out, len(lines)) == (Exit.OK, "", 1)
    for group in COMMITTED:
        rows = progress_of(tmp_path, group)
        offsets, total = mqadmin_progress(cluster, group)
        assert {
            queue: (row["max_offset"], row["consumer_offset"]) for queue, row in rows.items()
        } == offsets
        assert sum(row["max_offset"] - row["consumer_offset"] for row in rows.values()) == total
    assert run_lag("verify", tmp_path)[0] == Exit.OK
    # The hour is not over, so nothing is compacted or removed.
    assert run_lag("compact", tmp_path)[2] == [
        "cometmq-lag: compacted 0 hours",
        "cometmq-lag: removed 0 files and folders",
    ]


@contextmanager
def a_consumer(cluster: Cluster) -> Iterator[None]:
    """Run a member that subscribes to a third of the messages and whose listener never returns."""
    ready, stop = threading.Event(), threading.Event()

    async def listen(_: list[MessageExt]) -> None:
        ready.set()
        await asyncio.Event().wait()

    async def run() -> None:
        options = PushOptions(
            consume_from=ConsumeFrom.FIRST_OFFSET,
            instance_name=HANGING,
            persist_offset_interval_ms=500,
            drain_ms=1,
        )
        consumer = PushConsumer(HANGING, cluster.namesrv_addr, listener=listen, options=options)
        consumer.subscribe(TOPIC, "t1")
        async with consumer:
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    try:
        assert ready.wait(60)
        yield
    finally:
        stop.set()
        thread.join()


async def take_rounds(cluster: Cluster, history: Path) -> None:
    """Take snapshots numbered as if a minute apart; their timestamps are real."""
    settings = CollectSettings(namesrv=cluster.namesrv_addr, sample_tags=90)
    first_id = snapshot_id_of(wall_ms()) - ROUNDS
    for number in range(ROUNDS):
        write(history, await take(settings, first_id + number))


def test_members_report_their_queues_and_messages_are_sampled(cluster: Cluster) -> None:
    settings = CollectSettings(namesrv=cluster.namesrv_addr, sample_tags=90)
    row = {"cluster": "c", "group": HANGING, "severity": "error", "online": True}
    report = Report(None, {"group": pa.Table.from_pylist([row])})  # type: ignore[arg-type]
    with a_consumer(cluster):
        found: list[GroupAnswers] = []
        counts: dict[str, dict[str, int]] = {}

        def is_reported() -> bool:
            found[:] = asyncio.run(query_members(report, settings))
            groups = asyncio.run(take(settings)).table("groups").to_pylist()
            own = next(it for it in groups if it["group"] == HANGING)
            counts.update({name: dict(own[name] or ()) for name in ("tried", "matched")})
            return len(readers(found)) == QUEUES and counts["tried"] == {TOPIC: 90}

        wait_until(is_reported, 120, "queues of the member")
    (client_id,) = set(readers(found).values())
    assert HANGING in client_id
    assert "deliver" in found[0].stacks[client_id]  # the task that hangs
    assert 15 <= counts["matched"][TOPIC] <= 45  # every third message has that tag


def readers(found: list[GroupAnswers]) -> dict[int, str]:
    """Return the member that reads each queue."""
    held = ((queue, member) for it in found for queue, (member, _) in it.held.items())
    return {queue.queue_id: member for queue, member in held if queue.topic == TOPIC}


def test_report_of_a_running_cluster(cluster: Cluster, tmp_path: Path, gateway: Gateway) -> None:
    out, metrics = tmp_path / "out", tmp_path / "metrics"
    with a_consumer(cluster):
        rows: dict[int, dict[str, Any]] = {}

        def has_offsets() -> bool:
            asyncio.run(take_rounds(cluster, tmp_path / "probe"))
            rows.update(progress_of(tmp_path / "probe", HANGING))
            return len(rows) == QUEUES and all(
                r["consumer_offset"] is not None for r in rows.values()
            )

        wait_until(has_offsets, 60, "offsets of the consumer")
        asyncio.run(take_rounds(cluster, tmp_path / "history"))
        status, _, lines = run_lag(
            "report", tmp_path / "history", "--out", out, "--textfile", metrics,
            "--pushgateway", gateway.url, "--window", 60, "--long-window", 3600,
            "--allowed-age", 0.001, "--fail-on", "error", "--deep",
            "--namesrv", cluster.namesrv_addr,
        )  # fmt: skip
    assert status == Exit.ERROR, lines

    report = json.loads((out / "report.json").read_bytes())
    groups = {row["group"]: row for row in report["group"]}
    for group, found in (("fine", "OK"), ("stopped", "STOPPED"), (HANGING, "STALLED")):
        assert groups[group]["status"] == found
    assert groups["stopped"]["lag_sum"] == QUEUES * SENT - sum(COMMITTED["stopped"])
    assert groups["stopped"]["lag_sum"] == mqadmin_progress(cluster, "stopped")[1]
    check_filter(report)
    check_members(report, out)
    check_files(out, metrics, gateway.requests)
    (kept,) = tmp_path.glob("history/report/group/*/*/part.parquet")
    assert set(pq.read_table(kept, partitioning=None)["group"].to_pylist()) == set(groups)


def check_filter(report: dict[str, Any]) -> None:
    """Check the estimate: the filter matches every third message; 90 of 1,200 were sampled."""
    (row,) = report["filtered"]
    assert (row["group"], row["topic"], row["expression"]) == (HANGING, TOPIC, "t1")
    assert row["tried"] == 90
    assert 15 <= row["matched"] <= 45
    wanted = row["lag"] / 3
    assert row["lag_low"] <= wanted <= row["lag_high"]
    assert row["lag_low"] < row["lag_matching"] < row["lag_high"]


def check_members(report: dict[str, Any], out: Path) -> None:
    own = [row for row in report["holder"] if row["group"] == HANGING and row["topic"] == TOPIC]
    assert len(own) == QUEUES
    (client_id,) = {row["client_id"] for row in own}
    assert HANGING in client_id
    assert all(row["cached_count"] > 0 for row in own)
    (stacks,) = (out / "threads").iterdir()
    assert "deliver" in stacks.read_text()  # the task that hangs


def check_files(out: Path, metrics: Path, pushes: list[tuple[str, str, str]]) -> None:
    page = (out / "report.html").read_text()
    for words in ("Who reads these queues", "Groups with a filter", HANGING, "stopped"):
        assert words in page
    (file,) = metrics.iterdir()
    line = 'cometmq_lag_messages{cluster="PeersCluster",group="stopped"} '
    assert f"{line}{QUEUES * SENT - sum(COMMITTED['stopped'])}.0\n" in file.read_text()
    (_, (method, path, pushed)) = pushes
    assert method == "PUT"
    assert path == "/metrics/job/cometmq_lag/cluster/PeersCluster"
    assert line in pushed
