# SPDX-License-Identifier: Apache-2.0
"""A broker that starts on a copy of a running broker's store reports damage only if there is some.

The parts are copied as docs/guides/backup.md says.
"""

import shutil
from pathlib import Path

import pytest

from cometmq.broker.broker import Broker
from cometmq.testing.broker.logs import RecordingLog

from .test_lost_messages import put, running

PARTS = ("checksums", "abort", "progress", "checkpoint", "commitlog", "consumequeue", "index")


def copy(store: Path, target: Path, *, with_journal: bool) -> None:
    config = target / "config"
    config.mkdir(parents=True)
    if with_journal:
        shutil.copytree(store / "config" / "journal", config / "journal")
    for path in (store / "config").glob("*.json"):
        shutil.copy(path, config)
    for part in PARTS:
        path = store / part
        if path.is_dir():
            shutil.copytree(path, target / part)
        elif path.exists():
            shutil.copy(path, target / part)


def fill(broker: Broker) -> None:
    broker.tables.topics.create("T", queue_nums=1)
    put(broker, 10)
    broker.tables.offsets.commit("g", "T", 0, 10)


async def errors_of(store: Path) -> list[object]:
    log = RecordingLog()
    async with running(store, log) as broker:
        assert broker.store.reader.max_offset("T", 0) == 10
        assert "T" in broker.tables.topics.table
    return [facts.get("error") for facts in log.named("journal.damaged")]


@pytest.mark.parametrize("with_journal", [True, False])
async def test_copy_of_a_running_broker(tmp_path: Path, with_journal: bool) -> None:
    async with running(tmp_path / "store", RecordingLog()) as broker:  # its stop saves a checkpoint
        fill(broker)
    async with running(tmp_path / "store", RecordingLog()) as broker:
        copy(tmp_path / "store", tmp_path / "copy", with_journal=with_journal)
    missing = "the store was in use, but there is no record of its journal"
    assert await errors_of(tmp_path / "copy") == ([] if with_journal else [missing])
    assert await errors_of(tmp_path / "copy") == []


async def test_copies_of_new_and_stopped_brokers_need_no_journal(tmp_path: Path) -> None:
    async with running(tmp_path / "store", RecordingLog()) as broker:
        fill(broker)
        copy(tmp_path / "store", tmp_path / "new", with_journal=False)
    copy(tmp_path / "store", tmp_path / "stopped", with_journal=False)
    for name in ("new", "stopped"):
        assert await errors_of(tmp_path / name) == []
