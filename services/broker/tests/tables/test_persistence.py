# SPDX-License-Identifier: Apache-2.0

import errno
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.broker.tables.offsets import Offsets, offset_file
from cometmq.broker.tables.persistence import TableSaver
from cometmq.broker.tables.subscription_groups import Groups, group_file
from cometmq.broker.tables.topics import Topics, topic_file
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.large import PART_ENTRIES
from cometmq.remoting.bodies.topic_config import SubscriptionGroupTable, TopicConfigTable
from cometmq.remoting.log import NO_LOG
from cometmq.runtime.worker import Worker
from cometmq.store.json_config import OsFiles


class FullDisk(OsFiles):
    __slots__ = ("is_full",)

    is_full: bool

    def write(self, path: Path, data: bytes) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(path, data)


@pytest.fixture
def saver() -> Iterator[TableSaver]:
    worker = Worker("test-config")
    yield TableSaver(worker, log=NO_LOG)
    worker.close()


@pytest.fixture
def offsets(tmp_path: Path) -> Offsets:
    return Offsets(offset_file(str(tmp_path / "consumerOffset.json")))


async def test_a_table_encoded_in_steps_is_on_disk_after_the_save(
    saver: TableSaver, offsets: Offsets
) -> None:
    offsets.commit("g", "t", 0, 5)
    await saver.save(offsets)
    assert offsets.file is not None
    assert offsets.file.path.read_bytes() == b'{"offsetTable":{"t@g":{"0":5}}}'
    assert not offsets.is_dirty


async def test_a_burst_of_changes_encodes_the_table_once(
    saver: TableSaver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = Groups(
        group_file(tmp_path / "subscriptionGroup.json"),
        clock_ms=lambda: 1,
        changed=lambda: saver.request_if_dirty(groups),
    )
    encoded: list[int] = []
    encode = groups.encode_for_file
    monkeypatch.setattr(
        groups, "encode_for_file", lambda: encoded.append(groups.version.counter) or encode()
    )
    for number in range(500):
        groups.find(f"g{number}", auto_create=True)
    await saver.drain()

    assert encoded == [500]
    reloaded = Groups(group_file(tmp_path / "subscriptionGroup.json"), clock_ms=lambda: 1)
    assert reloaded.version == groups.version
    assert "g499" in reloaded.table


async def test_only_changed_tables_are_saved(saver: TableSaver, offsets: Offsets) -> None:
    saver.request_if_dirty(offsets)
    await saver.drain()
    assert offsets.file is not None
    assert not offsets.file.path.exists()


async def test_a_failed_save_is_logged_and_retried(saver: TableSaver, offsets: Offsets) -> None:
    disk = FullDisk()
    disk.is_full = True
    assert offsets.file is not None
    offsets.file._files = disk
    offsets.commit("g", "t", 0, 5)
    with pytest.raises(OSError, match="No space"):
        await saver.save(offsets)
    assert not saver.is_healthy
    assert saver.failed_count == 1

    disk.is_full = False
    offsets.commit("g", "t", 0, 6)
    saver.retry()
    await saver.drain()

    assert saver.is_healthy
    assert b'"0":6' in offsets.file.path.read_bytes()


async def test_a_table_without_a_file_is_not_saved(saver: TableSaver) -> None:
    await saver.save(Offsets())
    saver.request(Offsets())
    await saver.drain()
    assert saver.is_healthy
    assert saver.failed_count == 0


@pytest.mark.parametrize("kind", ["topics", "groups"])
async def test_large_tables_are_encoded_in_steps(
    saver: TableSaver, tmp_path: Path, kind: str
) -> None:
    count = 10_000
    topics = Topics(topic_file(tmp_path / "topics.json"), clock_ms=lambda: 1)
    groups = Groups(group_file(tmp_path / "groups.json"), clock_ms=lambda: 1)
    table: Topics | Groups = topics if kind == "topics" else groups
    for number in range(count):
        if kind == "topics":
            topics.create(f"t{number}", queue_nums=1)
        else:
            groups.find(f"g{number}", auto_create=True)
    assert len(list(table.encode_for_file())) >= count // PART_ENTRIES
    assert not table.is_dirty
    unfinished = table.encode_for_file()
    next(unfinished)
    unfinished.close()
    assert table.is_dirty
    await saver.save(table)
    assert table.file is not None
    content = (
        TopicConfigTable(topics.version, topics.table)
        if kind == "topics"
        else SubscriptionGroupTable(groups.version, groups.table)
    )
    assert json.loads(table.file.path.read_bytes()) == json.loads(encode_json(content))
