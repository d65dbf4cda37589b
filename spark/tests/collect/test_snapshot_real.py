# SPDX-License-Identifier: Apache-2.0
"""Snapshots of a real broker cover the sent messages and the committed offsets."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cometmq.client import AdminClient, Message, Producer
from cometmq.peers.cluster import Cluster
from cometmq.peers.comet import CometCluster
from cometmq.peers.content import create_topic
from cometmq.peers.shared.strangers import ODD_NAMES, Stranger
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.errors import CometError
from cometmq.spark.collect.broker import CollectSettings
from cometmq.spark.collect.snapshot import NothingCollected, is_taken, snapshot_path, take, write
from cometmq.testing.spark import LAG

QUEUE_COUNT = 4
SENT_COUNT = 40
COMMITTED = {0: 10, 1: 3, 2: 0}
"""Committed offsets by queue; the last of the four queues has none."""


@pytest.fixture(scope="module")
def cluster(maker: type[Cluster], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with maker(tmp_path_factory.mktemp("snapshots")) as running:
        create_topic(running.namesrv_addr, running.broker_addrs, "Orders", queue_count=QUEUE_COUNT)
        yield running


@pytest.fixture
async def filled(cluster: Cluster) -> Cluster:
    async with Producer("Senders", cluster.namesrv_addr) as producer:
        for number in range(SENT_COUNT):
            queue = MessageQueue("Orders", cluster.broker_names[0], number % QUEUE_COUNT)
            await producer.send(Message("Orders", b"x"), queue=queue)
    async with AdminClient(cluster.namesrv_addr) as admin:
        for queue_id, offset in COMMITTED.items():
            queue = MessageQueue("Orders", cluster.broker_names[0], queue_id)
            await admin.commit_offset("Readers", queue, offset)
    return cluster


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    with CometCluster(tmp_path) as running:
        create_topic(running.namesrv_addr, running.broker_addrs, "Orders", queue_count=1)
        yield running


async def test_names_of_strangers_hide_no_rows(own_cluster: Cluster) -> None:
    settings = CollectSettings(namesrv=own_cluster.namesrv_addr)
    async with AdminClient(own_cluster.namesrv_addr) as admin:
        await admin.broker(own_cluster.broker_addrs[0]).commit_offset("Readers", "Orders", 0, 0)

    async def good() -> dict[str, list[dict[str, object]]]:
        """Return the topic's and the group's rows in each table."""
        snapshot = await take(settings)
        assert snapshot.failures == {}
        return {
            name: [
                {"topic": row.get("topic"), "group": row.get("group")}
                for row in table.to_pylist()
                if "Orders" in row.values() or "Readers" in row.values()
            ]
            for name, table in snapshot.tables().items()
        }

    before = await good()
    assert before["progress"]
    stranger = Stranger(own_cluster.namesrv_addr, own_cluster.broker_addrs[0])
    await stranger.register(ODD_NAMES, topic="Orders", group="Others")
    after = await good()
    await stranger.close()
    assert {
        name: [row for row in rows if row not in after[name]] for name, rows in before.items()
    } == {name: [] for name in before}


async def test_snapshot_has_offsets_ends_and_ages(filled: Cluster) -> None:
    snapshot = await take(CollectSettings(namesrv=filled.namesrv_addr))

    rows = {
        row["queue_id"]: row
        for row in snapshot.table("progress").to_pylist()
        if row["group"] == "Readers" and row["topic"] == "Orders"
    }
    assert {queue: row["consumer_offset"] for queue, row in rows.items()} == COMMITTED | {3: None}
    end = rows[0]["max_offset"]
    assert end >= SENT_COUNT // QUEUE_COUNT
    assert {row["max_offset"] for row in rows.values()} == {end}
    assert all(row["read_ts"] <= row["max_read_ts"] for row in rows.values())
    assert not any(row["online"] for row in rows.values())
    unread = rows[1]
    assert unread["consume_ts"] <= unread["next_ts"] <= unread["max_read_ts"]
    assert unread["delay_ms"] >= 0
    assert rows[2]["consume_ts"] is None
    assert rows[2]["next_ts"] is not None


async def test_snapshot_has_broker_settings(filled: Cluster) -> None:
    snapshot = await take(CollectSettings(namesrv=filled.namesrv_addr))

    (broker,) = snapshot.table("brokers").to_pylist()
    assert broker["reachable"]
    assert broker["file_reserved_hours"] > 0
    assert broker["delete_when"] == "04"
    assert 0 < broker["commitlog_disk_ratio"] < 1
    assert broker["commitlog_max"] > broker["commitlog_min"]
    assert abs(broker["clock_skew_ms"]) < 5_000
    groups = {row["group"] for row in snapshot.table("groups").to_pylist()}
    assert "Readers" in groups
    kinds = {row["topic"]: row["topic_kind"] for row in snapshot.table("offsets").to_pylist()}
    assert kinds["Orders"] == "NORMAL"
    assert kinds["SCHEDULE_TOPIC_XXXX"] == "SCHEDULE"


async def test_files_are_complete_and_the_first_collector_wins(
    filled: Cluster, tmp_path: Path
) -> None:
    first = await take(CollectSettings(namesrv=filled.namesrv_addr), 29_000_000)
    counts = write(tmp_path, first)

    assert is_taken(tmp_path, first.snapshot_id)
    for name, count in counts.items():
        path = snapshot_path(tmp_path, name, first.snapshot_id)
        assert pq.read_metadata(path).num_rows == count > 0
        assert [it.name for it in path.parent.iterdir()] == [path.name]
    before = snapshot_path(tmp_path, "progress", first.snapshot_id).read_bytes()
    assert (
        write(tmp_path, await take(CollectSettings(namesrv=filled.namesrv_addr), 29_000_000)) == {}
    )
    assert snapshot_path(tmp_path, "progress", first.snapshot_id).read_bytes() == before


async def test_unknown_cluster_is_named(cluster: Cluster) -> None:
    with pytest.raises(NothingCollected, match="cluster Elsewhere does not exist; known: "):
        await take(CollectSettings(namesrv=cluster.namesrv_addr, cluster="Elsewhere"))


async def test_unreachable_name_server_is_a_one_line_error() -> None:
    with pytest.raises(CometError, match=r"127\.0\.0\.1:1\b") as caught:
        await take(CollectSettings(namesrv="127.0.0.1:1"))
    assert "\n" not in str(caught.value)


def test_command_takes_snapshots_until_stopped(cluster: Cluster, tmp_path: Path) -> None:
    words = [LAG, "snapshot", tmp_path, "--namesrv", cluster.namesrv_addr, "--interval", "60"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as child:
        said = child.stderr.readline()
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 0
    assert " offsets, " in said
    (path,) = tmp_path.glob("raw/progress/*/*/*.parquet")
    assert said.startswith(f"cometmq-lag: snapshot {path.stem.removeprefix('snap-')}: ")
