# SPDX-License-Identifier: Apache-2.0
"""A group that had consumed messages that are lost gets the new ones at their offsets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import rmtree

from cometmq.broker.app import BrokerApp
from cometmq.broker.broker import Broker
from cometmq.broker.settings import BrokerSettings
from cometmq.remoting.message.new_message import NewMessage
from cometmq.runtime.clock import SystemClock
from cometmq.runtime.settings import load
from cometmq.testing.broker.logs import RecordingLog

HOST = bytes(8)
FILE_BYTES = 1 << 20


@asynccontextmanager
async def running(folder: Path, log: RecordingLog, **settings: str) -> AsyncIterator[Broker]:
    app = BrokerApp(
        load(
            BrokerSettings,
            prefix="COMETMQ_TEST",
            env={},
            cli={
                "listenPort": "0",
                "bindAddress": "127.0.0.1",
                "brokerIP1": "127.0.0.1",
                "storePathRootDir": str(folder),
                "mappedFileSizeCommitLog": str(FILE_BYTES),
                **settings,
            },
        ),
        log=log,
        clock=SystemClock(),
    )
    await app.start()
    try:
        yield app.broker
    finally:
        await app.stop()


def put(broker: Broker, count: int, topic: str = "T", body: bytes = b"x") -> None:
    for number in range(count):
        text = body + b"%d" % number
        broker.driver.put(NewMessage(topic, 0, 0, 0, 0, HOST, HOST, text), lambda _: None)
    broker.driver.commit()


async def fill(folder: Path) -> None:
    """Store 100 messages, all consumed by `g`; `early` has committed before they arrived."""
    async with running(folder, RecordingLog()) as broker:
        broker.tables.topics.create("T", queue_nums=1)
        put(broker, 100)
        broker.tables.offsets.commit("g", "T", 0, 100)
        broker.tables.offsets.commit("early", "T", 0, 150)
        broker.tables.offsets.commit("slow", "T", 0, 20)
        put(broker, 3, "other", bytes(FILE_BYTES // 2))


def offsets(broker: Broker) -> list[int | None]:
    return [broker.tables.offsets.committed(name, "T", 0) for name in ("g", "early", "slow")]


async def test_offsets_behind_the_end_stay_if_nothing_is_lost(tmp_path: Path) -> None:
    await fill(tmp_path)
    log = RecordingLog()
    async with running(tmp_path, log) as broker:
        assert offsets(broker) == [100, 150, 20]
    assert not log.named("offsets.lowered")


async def test_offsets_are_lowered_after_the_end_of_the_log_was_lost(tmp_path: Path) -> None:
    await fill(tmp_path)
    first, *others = sorted((tmp_path / "commitlog").iterdir())
    data = first.read_bytes()
    first.write_bytes(data[: (at := data.index(b"x60") - 88)].ljust(FILE_BYTES, b"\0"))
    assert at > 0
    for path in (*others, tmp_path / "progress"):
        path.unlink()
    log = RecordingLog()
    async with running(tmp_path, log) as broker:
        assert broker.store.reader.max_offset("T", 0) == 60
        assert offsets(broker) == [60, 60, 20]
    assert [facts["count"] for facts in log.named("offsets.lowered")] == [2]
    async with running(tmp_path, RecordingLog()) as broker:
        assert offsets(broker) == [60, 60, 20]


async def test_offsets_are_lowered_after_queues_without_records_were_lost(tmp_path: Path) -> None:
    await fill(tmp_path)
    min((tmp_path / "commitlog").iterdir()).unlink()  # expired
    rmtree(tmp_path / "consumequeue")
    async with running(tmp_path, RecordingLog()) as broker:
        assert broker.store.reader.max_offset("T", 0) == 0
        assert offsets(broker) == [0, 0, 0]
        put(broker, 1)
        assert broker.store.reader.max_offset("T", 0) == 1


async def test_offsets_of_a_slave_are_lowered_once_it_is_started_as_master(tmp_path: Path) -> None:
    await fill(tmp_path)
    async with running(tmp_path, RecordingLog(), brokerRole="SLAVE", brokerId="1") as broker:
        broker.tables.offsets.commit("g", "T", 0, 130)  # copied before the messages
        assert offsets(broker) == [130, 150, 20]
    async with running(tmp_path, RecordingLog(), brokerRole="SLAVE", brokerId="1") as broker:
        assert offsets(broker) == [130, 150, 20]
    log = RecordingLog()
    async with running(tmp_path, log) as broker:
        assert offsets(broker) == [100, 100, 20]
        broker.tables.offsets.commit("early", "T", 0, 150)
    assert [facts["count"] for facts in log.named("offsets.lowered")] == [2]
    async with running(tmp_path, RecordingLog()) as broker:
        assert offsets(broker) == [100, 150, 20]
