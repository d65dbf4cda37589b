# SPDX-License-Identifier: Apache-2.0
"""CometMQ continues on a store of RocketMQ 5.5.0 with all its features, and 5.5.0 on it afterwards.

Every message is at its place, every group at its offsets; timer and delayed messages that wait when
a broker stops are delivered once, in time, by the next one.
"""

import asyncio
import shutil
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cometmq.client import Message, Producer
from cometmq.peers.clients.javaclient import VERSION_5, JavaClient
from cometmq.peers.cluster import CLUSTER_NAME, Cluster, Layout
from cometmq.peers.comet import CometCluster
from cometmq.peers.content import Event, named, received, sent
from cometmq.peers.dialect import parse
from cometmq.peers.java import Java5Cluster, mqadmin
from cometmq.peers.java.maven import ROCKETMQ_5_VERSION
from cometmq.peers.processes import wait_until
from cometmq.peers.settled import committed, text_of, wait_for_dispatch
from cometmq.peers.wire import call
from cometmq.remoting.message.recall_handle import RecallHandle
from cometmq.runtime.clock import SystemClock
from cometmq.store.errors import ForeignStore
from cometmq.store.folder import TABLES
from cometmq.store.inspection.inspect import inspect_store
from cometmq.store.inspection.verification import StoreState
from cometmq.store.inspection.verify import verify_store
from cometmq.store.settings import StoreSettings

pytestmark = [pytest.mark.compat, pytest.mark.timeout(600)]

FILES = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2000,
}
CONF = {**FILES, "flushConsumerOffsetInterval": 500, "recallMessageEnable": True}
SHAPE = StoreSettings(max_hash_slot_num=500, max_index_num=2000)
PLAIN, BATCHED, FIFO, LATER, TX = "FivePlain", "FiveBatched", "FiveFifo", "FiveLater", "FiveTx"
TOPICS = {PLAIN: "NORMAL", BATCHED: "NORMAL", FIFO: "FIFO", LATER: "DELAY", TX: "TRANSACTION"}
MODES = {PLAIN: "sync", BATCHED: "batch", FIFO: "ordered"}
COUNT = 40
ORDERLY, GROUP = "FiveOrderly", "FiveGroup"
RECALL_MESSAGE = 370
ENDS = {"clean stop": Cluster.stop, "kill -9": Cluster.kill}
SAVED_S = 60
TIMER_S = 45
"""Longer than a stop of RocketMQ and the start of the next broker."""


class Owners:
    """Brokers of both implementations, one after the other, on one store."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.layout = Layout.fresh(directory, broker_count=1)
        self.java = JavaClient(directory, VERSION_5)
        self._clusters: list[Cluster] = []

    @property
    def store(self) -> Path:
        return self.layout.brokers[0].store_dir

    @property
    def config(self) -> Path:
        return self.store / "config"

    def start(self, maker: type[Cluster], **conf: object) -> Cluster:
        folder = self._directory / f"{len(self._clusters)}-{maker.__name__}"
        cluster = maker(folder, {**CONF, **conf}, layout=self.layout)
        self._clusters.append(cluster)
        cluster.start()
        return cluster

    def close(self) -> None:
        for cluster in self._clusters:
            cluster.kill()

    def table(self, name: str, member: str) -> dict[str, Any]:
        found: dict[str, Any] = parse((self.config / name).read_text(encoding="utf-8"))[member]
        return found


@pytest.fixture
def owners(tmp_path: Path) -> Iterator[Owners]:
    running = Owners(tmp_path)
    yield running
    running.close()


def create(cluster: Cluster) -> None:
    broker = cluster.broker_addrs[0]
    for topic, kind in TOPICS.items():
        arguments = ("-t", topic, "-r", "2", "-w", "2", "-a", f"+message.type={kind}")
        administer(cluster, "updateTopic", "-b", broker, *arguments)
    administer(cluster, "updateSubGroup", "-b", broker, "-g", ORDERLY, "-o", "true", "-r", "7")


def administer(cluster: Cluster, *arguments: str) -> None:
    """Run a command until it succeeds: on a loaded machine, the tool's time-outs are short."""

    def is_done() -> bool:
        done = mqadmin(arguments, cluster.namesrv_addr, version=ROCKETMQ_5_VERSION)
        return "success" in done.stdout

    wait_until(is_done, SAVED_S, " ".join(arguments))


def fill(owners: Owners, cluster: Cluster, label: str) -> list[Event]:
    events: list[Event] = []
    for topic, mode in MODES.items():
        events += named(
            owners.java.run(
                "send", namesrv=cluster.namesrv_addr, topic=topic, count=COUNT, mode=mode,
                key=f"{label}-{topic}", tags="TagA,TagB",
            ),
            "sent",
        )  # fmt: skip
    return events


def places(events: list[Event]) -> dict[str, tuple[int, int]]:
    return {event["key"]: (int(event["queue_id"]), int(event["queue_offset"])) for event in events}


def pulled(owners: Owners, cluster: Cluster, topics: str) -> list[Event]:
    wait_for_dispatch(cluster)
    server = {"namesrv": cluster.namesrv_addr, "topic": topics}
    return named(owners.java.run("pull", group="FivePull", **server), "received")


async def send_timers(
    cluster: Cluster, label: str, *, recalls_one: bool = False
) -> dict[str, float]:
    """Send timer messages for now and for later; return when each is due.

    RocketMQ delivers what CometMQ has recalled (docs/compatibility.md).
    """
    due: dict[str, float] = {}
    async with Producer("FiveTimers", cluster.namesrv_addr) as producer:
        for number, after_s in enumerate((2, 3, TIMER_S, TIMER_S + 1.3, TIMER_S + 2.6)):
            at = datetime.now(UTC) + timedelta(seconds=after_s)
            key = f"{label}-{number}"
            await producer.send(Message(LATER, key.encode(), keys=key, deliver_at=at))
            due[key] = at.timestamp()
        if recalls_one:
            at = datetime.now(UTC) + timedelta(seconds=TIMER_S)
            result = await producer.send(Message(LATER, b"recalled", deliver_at=at))
            due_ms = int(at.timestamp() * 1000)
            place = LATER, cluster.broker_names[0]
            handle = RecallHandle(*place, due_ms, result.message_id).encode()
            fields = {"topic": LATER, "recallHandle": handle, "producerGroup": "FiveTimers"}
            assert call(cluster.broker_addrs[0], RECALL_MESSAGE, fields).code == 0
        key = f"{label}-level"
        await producer.send(Message(LATER, key.encode(), keys=key, delay_level=4))
        due[key] = SystemClock().now_ms() / 1000 + 30
    return due


def delivered(owners: Owners, cluster: Cluster) -> dict[str, float]:
    """Return when each timer message was stored in its topic, in seconds; each is there once."""
    events = pulled(owners, cluster, LATER)
    counts = Counter(event["key"] for event in events)
    assert set(counts.values()) <= {1}
    return {event["key"]: int(event["stored_ms"]) / 1000 for event in events}


def await_timers(
    owners: Owners, cluster: Cluster, due: dict[str, float], *, early_s: float = 1.1
) -> None:
    """Wait until all are delivered, and a little longer; none may be early or doubled."""

    def is_over() -> bool:
        is_late = SystemClock().now_ms() / 1000 > max(due.values()) + 3
        return is_late and delivered(owners, cluster).keys() >= due.keys()

    wait_until(is_over, SAVED_S + TIMER_S, "timers delivered")
    found = delivered(owners, cluster)
    assert found.keys() == due.keys()
    early = {key: at - due[key] for key, at in found.items() if at < due[key] - early_s}
    assert not early


def consume(owners: Owners, cluster: Cluster) -> None:
    for topic, group in ((PLAIN, GROUP), (FIFO, ORDERLY)):
        events = owners.java.run(
            "consume", namesrv=cluster.namesrv_addr, topic=topic, group=group, count=COUNT
        )
        assert len(received(events)) == COUNT


def offsets(cluster: Cluster) -> list[list[int]]:
    return [committed(cluster, *pair, queue_count=2) for pair in ((PLAIN, GROUP), (FIFO, ORDERLY))]


def transact(owners: Owners, cluster: Cluster, label: str) -> None:
    owners.java.run(
        "transact", namesrv=cluster.namesrv_addr, topic=TX, group="FiveTxGroup", key=label,
        plans="commit,rollback", **{"stay-s": 1},
    )  # fmt: skip


def assert_all_is_there(owners: Owners, cluster: Cluster, events: list[Event], tx: int) -> None:
    found = pulled(owners, cluster, ",".join(MODES))
    assert received(found) == sent(events)
    assert places(found) == places(events)
    assert len(found) == len(events)
    assert [event["key"][-2:] for event in pulled(owners, cluster, TX)] == ["-0"] * tx


def assert_intact(owners: Owners) -> None:
    verified = verify_store(str(owners.store), settings=SHAPE)
    assert (verified.state, list(verified.findings)) == (StoreState.HEALTHY, [])


def assert_settings_are_kept(owners: Owners) -> None:
    group = owners.table("subscriptionGroup.json", "subscriptionGroupTable")[ORDERLY]
    assert (group["consumeMessageOrderly"], group["retryMaxTimes"]) == (True, 7)
    assert "groupRetryPolicy" in group
    topics = owners.table("topics.json", "topicConfigTable")
    assert {name: topics[name]["attributes"] for name in TOPICS} == {
        name: {"message.type": kind} for name, kind in TOPICS.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS)
def test_a_store_of_rocketmq_5_is_taken_over_and_given_back(owners: Owners, end: str) -> None:
    five = owners.start(Java5Cluster)
    create(five)
    events = fill(owners, five, "five")
    transact(owners, five, "five")
    consume(owners, five)
    progress = offsets(five)
    assert sum(map(sum, progress)) == 2 * COUNT
    due = asyncio.run(send_timers(five, "five", recalls_one=True))
    ENDS[end](five)
    if end == "clean stop":
        assert (owners.store / "compaction").is_dir()
        assert_intact(owners)

    comet = owners.start(CometCluster)
    assert_all_is_there(owners, comet, events, 1)
    assert offsets(comet) == progress
    await_timers(owners, comet, due)
    events += fill(owners, comet, "comet")
    transact(owners, comet, "comet")
    consume(owners, comet)
    progress = offsets(comet)
    due |= asyncio.run(send_timers(comet, "comet"))
    comet.stop()
    assert_intact(owners)
    assert_settings_are_kept(owners)

    again = owners.start(Java5Cluster)
    assert_all_is_there(owners, again, events, 2)
    assert offsets(again) == progress
    await_timers(owners, again, due, early_s=SAVED_S)  # levels end early, as in 4.9


def test_tables_in_rocksdb_are_taken_over_once_they_are_exported(owners: Owners) -> None:
    five = owners.start(Java5Cluster, storeType="defaultRocksDB")
    create(five)
    events = fill(owners, five, "five")
    consume(owners, five)
    progress = offsets(five)
    five.stop()
    with pytest.raises(ForeignStore, match="rocksDBConfigToJson"):
        inspect_store(str(owners.store))

    for name, file in TABLES.items():
        export = ("-p", str(owners.config), "-t", name, "-e", str(owners.config / file))
        mqadmin(["rocksDBConfigToJson", *export], five.namesrv_addr, version=ROCKETMQ_5_VERSION)
        shutil.rmtree(owners.config / name)
    shutil.rmtree(owners.store / "consumequeue")
    comet = owners.start(CometCluster)
    assert offsets(comet) == progress
    assert_all_is_there(owners, comet, events, 0)


def test_topics_whose_queues_are_not_read_are_named(owners: Owners) -> None:
    five = owners.start(Java5Cluster)
    batch = ("-b", five.broker_addrs[0], "-t", "FiveBatch", "-a", "+queue.type=BatchCQ")
    administer(five, "updateTopic", *batch)
    static = ["updateStaticTopic", "-c", CLUSTER_NAME, "-t", "FiveStatic", "-qn", "2"]
    mqadmin(static, five.namesrv_addr, version=ROCKETMQ_5_VERSION)
    wait_until(
        lambda: "FiveStatic" in text_of(owners.config / "topicQueueMapping.json"), SAVED_S, "saved"
    )
    five.kill()
    with pytest.raises(ForeignStore) as caught:
        inspect_store(str(owners.store))
    assert all(name in str(caught.value) for name in ("FiveBatch", "FiveStatic"))
