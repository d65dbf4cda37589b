# SPDX-License-Identifier: Apache-2.0
"""Bytes that change in any file of a stopped broker are noticed, or change nothing.

Each case changes bytes of one file of a folder that a broker has left after a stop, a kill, or a
crash of the host, or replaces a file, and starts a broker on it. Then every message is the right
one or left out, committed offsets and topics are right, and whatever is not right has an event; or
the start is refused.
"""

import asyncio
import shutil
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import pytest

from cometmq.broker.assembly import Inputs, assemble
from cometmq.broker.broker import Broker
from cometmq.broker.delays.level import DelayFile
from cometmq.broker.opening import was_killed
from cometmq.broker.registration.addresses import Ports
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.storing.disk_jobs import Workers
from cometmq.broker.tables.journal import Journal
from cometmq.peers.long_forms import case_count
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.message.record import decode_record
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.settings import ClientSettings
from cometmq.runtime.settings import load
from cometmq.store.errors import CorruptStore
from cometmq.store.message_store import MessageStore
from cometmq.store.os_disk import OsDisk
from cometmq.store.reads import finish
from cometmq.store.results import GetStatus
from cometmq.testing.broker.logs import RecordingLog
from cometmq.testing.runtime.clock import FakeClock
from cometmq.testing.store.builders import make_message

BOOT_ID: Final = "0" * 36
OTHER_BOOT_ID: Final = "1" * 36
QUEUES: Final = [(topic, queue_id) for topic in ("Orders", "Events") for queue_id in (0, 1)]
JOURNAL_BYTES: Final = 256 << 10  # each case copies it twice
SEALED_COUNT: Final = 40  # messages of each queue before the last checkpoint
TAIL_COUNT: Final = 5
STOPS: Final = ("stop", "kill", "crash")

FILES: Final = {
    "sealed log": "commitlog/00000000000000000000",
    "last log file": "commitlog/00000000000000131072",
    "queue": "consumequeue/Orders/0/00000000000000000000",
    "index": "index/*",
    "checkpoint": "checkpoint",
    "progress": "progress",
    "abort": "abort",
    "lock": "lock",
    "checksums": "checksums/00000000000000000000",
    "scrub state": "checksums/scrub.json",
    "topics": "config/topics.json",
    "topics' backup": "config/topics.json.bak",
    "groups": "config/subscriptionGroup.json",
    "offsets": "config/consumerOffset.json",
    "offsets' backup": "config/consumerOffset.json.bak",
    "delay offsets": "config/delayOffset.json",
    "journal": "config/journal/*",
}
POSITIONS: Final = case_count(2, long=4)
CASES: Final = [(stop, kind, at) for stop in STOPS for kind in FILES for at in range(POSITIONS)]


class Inline:
    """Runs jobs at once."""

    def submit(self, job: Any) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            future.set_result(job())
        except Exception as error:  # noqa: BLE001  # what a worker would hand back
            future.set_exception(error)
        return future


class Node(NamedTuple):
    broker: Broker
    store: MessageStore
    journal: Journal
    clock: FakeClock
    log: RecordingLog


def started(folder: Path, boot_id: str = BOOT_ID) -> Node:
    log, clock, disk, worker = RecordingLog(), FakeClock(), OsDisk(), Inline()
    options = {
        "storePathRootDir": str(folder), "brokerIP1": "10.0.0.1",
        "mappedFileSizeCommitLog": str(128 << 10), "mappedFileSizeConsumeQueue": "2000",
        "maxHashSlotNum": "64", "maxIndexNum": "1000",
    }  # fmt: skip
    loaded = load(BrokerSettings, prefix="COMETMQ_TEST", env={}, cli=options)
    store = MessageStore.open(
        loaded.value, disk=disk, clock_ms=clock.now_ms, log=log, boot_id=boot_id
    )
    workers: Any = [worker] * len(Workers._fields)
    jobs: Any = worker
    journal = Journal(disk, store.layout.journal, worker=jobs, log=log,
                      file_bytes=JOURNAL_BYTES, was_killed=was_killed(store),
                      log_end=lambda: store.commit_log.end)  # fmt: skip
    inputs = Inputs(
        loaded, clock, log, Workers(*workers), store,
        RemotingClient(ClientSettings(), log=log, clock_ms=clock.monotonic_ms),
        Ports(10911, None, 10912), None, None, journal,
    )  # fmt: skip
    return Node(assemble(inputs), store, journal, clock, log)


def work(node: Node, rounds: int = 3) -> None:
    """Run the jobs that are due."""
    for _ in range(rounds):
        node.clock.advance(1_000)
        now_ms = node.clock.now_ms()
        flush = node.store.upkeep.flusher.job(now_ms, is_forced=True)
        if flush is not None:
            flush.run()
            node.store.upkeep.flusher.done(flush)
        for job in node.store.jobs(now_ms):
            job.run()
            job.done(None)


def body(topic: str, queue_id: int, number: int) -> bytes:
    return Random(f"{topic}{queue_id}{number}").randbytes(1_200)


def put(node: Node, numbers: range) -> None:
    for number in numbers:
        for topic, queue_id in QUEUES:
            text = f"{topic}-{queue_id}-{number}"
            node.store.writer.put(
                make_message(topic, queue_id, body(topic, queue_id, number), tags="t", keys=text),
                lambda _: None,
            )
        node.store.writer.commit()


async def leave(folder: Path) -> dict[str, Path]:
    """Leave a folder after each kind of stop."""
    node = started(folder / "live")
    broker = node.broker
    for topic in ("Orders", "Events"):
        broker.tables.topics.create(topic, queue_nums=4)
    broker.tables.groups.put(SubscriptionGroupConfig(group_name="group"))
    put(node, range(SEALED_COUNT))
    work(node)
    broker.deferred.delays.positions.adopt(DelayFile({1: 3}))
    tables = (
        broker.tables.topics,
        broker.tables.groups,
        broker.tables.offsets,
        broker.deferred.delays.positions,
    )
    for number, (topic, queue_id) in enumerate(QUEUES):
        broker.tables.offsets.commit("group", topic, queue_id, number + 1)
    for table in tables:
        await broker.tables.saver.save(table)
    for number, (topic, queue_id) in enumerate(QUEUES):
        broker.tables.offsets.commit("group", topic, queue_id, number + 11)
    broker.tables.topics.create("Late", queue_nums=2)
    node.journal.write()
    job = node.store.upkeep.scrubber.job(node.clock.now_ms())
    if job is not None:
        job.run()
        job.done(None)
    put(node, range(SEALED_COUNT, SEALED_COUNT + TAIL_COUNT))
    left = {}
    for stop in ("kill", "crash"):
        left[stop] = folder / stop
        shutil.copytree(folder / "live", left[stop])
    for table in tables:
        await broker.tables.saver.save(table)
    await node.journal.close()
    node.store.close()
    left["stop"] = folder / "live"
    return left


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return asyncio.run(leave(tmp_path_factory.mktemp("left")))


def damage(path: Path, random: Random, at: int, *, begin: int = 0) -> None:
    data = bytearray(path.read_bytes())
    end = max(begin + 1, len(bytes(data).rstrip(b"\0")))
    place = random.randrange(begin, min(end, len(data)))
    if at % 2:
        data[place] ^= 1 << random.randrange(8)
    else:
        count = min(40, len(data) - place)
        data[place : place + count] = random.randbytes(count) if at else bytes(count)
    path.write_bytes(data)


def read(node: Node, topic: str, queue_id: int) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    offset, end = 0, node.store.reader.max_offset(topic, queue_id)
    while offset < end:
        result = node.store.reader.get_messages(topic, queue_id, offset, 32).load()
        result = node.store.reader.settled(topic, queue_id, offset, result)
        if result.awaits_repair:
            work(node, 1)
            continue
        assert result.status in {GetStatus.FOUND, GetStatus.MESSAGE_WAS_REMOVING}
        assert result.next_offset > offset
        for record in map(decode_record, map(bytes, result.records)):
            assert (record.topic, record.queue_id) == (topic, queue_id)
            key = f"{topic}-{queue_id}-{record.queue_offset}"
            assert record.body == b"after" or (record.tags, record.keys) == ("t", (key,))
            found[record.queue_offset] = record.body
        offset = result.next_offset
    return found


def check_messages(node: Node) -> bool:
    """Check everything that readers get; return whether it is all there."""
    is_whole = True
    for topic, queue_id in QUEUES:
        found = read(node, topic, queue_id)
        for number, data in found.items():
            assert data == body(topic, queue_id, number)
        is_whole &= len(found) == SEALED_COUNT + TAIL_COUNT
        for number in range(0, SEALED_COUNT + TAIL_COUNT, 7):
            key = f"{topic}-{queue_id}-{number}"
            for record in finish(node.store.reader.query(topic, key, 9, 0, 1 << 60)).records:
                assert record.body == body(topic, queue_id, number)
    return is_whole


def check_tables(node: Node) -> bool:
    broker = node.broker
    topics = {name: broker.tables.topics.get(name) for name in ("Orders", "Events", "Late")}
    return (
        all(
            topic is not None and topic.write_queue_nums == (2 if name == "Late" else 4)
            for name, topic in topics.items()
        )
        and broker.tables.groups.get("group") is not None
        and all(
            broker.tables.offsets.committed("group", topic, queue_id) == number + 11
            for number, (topic, queue_id) in enumerate(QUEUES)
        )
    )


async def test_without_damage_everything_is_there(left: dict[str, Path], tmp_path: Path) -> None:
    for stop in STOPS:
        shutil.copytree(left[stop], tmp_path / stop)
        node = started(tmp_path / stop, OTHER_BOOT_ID if stop == "crash" else BOOT_ID)
        assert check_messages(node)
        assert check_tables(node)
        assert [event for event in node.log.alarms if "damaged" in event.name] == []


@pytest.mark.long
@pytest.mark.parametrize(("stop", "kind", "at"), CASES, ids=lambda it: str(it).replace(" ", "-"))
async def test_changed_bytes_are_noticed_or_harmless(
    left: dict[str, Path], tmp_path: Path, stop: str, kind: str, at: int
) -> None:
    folder = tmp_path / "store"
    shutil.copytree(left[stop], folder)
    paths = sorted(folder.glob(FILES[kind]))
    if not paths:
        assert (stop, kind) == ("stop", "abort")
        return
    random = Random(f"{stop}{kind}{at}")
    damage(paths[-1], random, at)
    await check_restarts(folder, stop)


@pytest.mark.parametrize("at", range(case_count(6, long=40)))
@pytest.mark.parametrize("stop", STOPS)
async def test_a_damaged_index_finds_every_message_after_a_walk(
    left: dict[str, Path], tmp_path: Path, stop: str, at: int
) -> None:
    folder = tmp_path / "store"
    shutil.copytree(left[stop], folder)
    damage(max(folder.glob(FILES["index"])), Random(f"{stop}{at}"), at)
    node = started(folder, OTHER_BOOT_ID if stop == "crash" else BOOT_ID)
    work(node)
    node.clock.advance(200 * 3_600_000)
    scrubber = node.store.upkeep.scrubber
    for _ in range(10):
        node.clock.advance(20_000)
        job = scrubber.job(node.clock.now_ms())
        if job is not None:
            job.run()
            job.done(None)
        work(node, 1)  # a checkpoint completes the file, which then is rebuilt
    assert [topic for topic in QUEUES if lacks_keys(node, *topic)] == []


def lacks_keys(node: Node, topic: str, queue_id: int) -> list[int]:
    """Return the numbers of the messages that a search by key does not find."""
    keys = [f"{topic}-{queue_id}-{number}" for number in range(SEALED_COUNT + TAIL_COUNT)]
    searches = (node.store.reader.query(topic, key, 9, 0, 1 << 60) for key in keys)
    return [number for number, it in enumerate(searches) if len(finish(it).records) != 1]


@pytest.mark.parametrize("way", ["gone", "empty", "short", "zeros", "foreign"])
@pytest.mark.parametrize("kind", ["checksums", "topics", "offsets", "journal"])
@pytest.mark.parametrize("stop", STOPS)
async def test_a_replaced_file_is_noticed_or_harmless(
    left: dict[str, Path], tmp_path: Path, stop: str, kind: str, way: str
) -> None:
    folder = tmp_path / "store"
    shutil.copytree(left[stop], folder)
    path = max(folder.glob(FILES[kind]))
    size, data = path.stat().st_size, path.read_bytes().rstrip(b"\0")
    path.unlink()
    if way != "gone":
        other = (folder / "commitlog" / ("0" * 20)).read_bytes()
        new = {"empty": b"", "short": data[: len(data) // 2], "zeros": bytes(size)}
        path.write_bytes(new.get(way, other[:size]))
    await check_restarts(folder, stop)


async def check_restarts(folder: Path, stop: str) -> None:
    """Start a broker twice on a damaged folder, and check what clients get."""
    try:
        node = started(folder, OTHER_BOOT_ID if stop == "crash" else BOOT_ID)
    except CorruptStore:
        return  # an operator decides
    is_whole = check_messages(node)
    work(node, 2)
    node.store.writer.put(make_message("Orders", 0, b"after"), lambda _: None)
    node.store.writer.commit()
    is_whole &= check_tables(node)
    if not is_whole:
        assert node.log.alarms, "nothing says what is wrong"
    again = folder.parent / "again"
    shutil.copytree(folder, again)  # as after a kill
    try:
        node = started(again)
    except CorruptStore:
        return
    for topic, queue_id in QUEUES:
        for number, data in read(node, topic, queue_id).items():
            assert data in {b"after", body(topic, queue_id, number)}
