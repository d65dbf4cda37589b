# SPDX-License-Identifier: Apache-2.0
"""Files of the journal: filled, deleted and synced, on disks that are full or fail."""

import copy
import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.broker.tables.journal import Journal
from cometmq.broker.tables.journal_files import FILES_MAX
from cometmq.broker.tables.offsets import PIECE_COUNT_MAX
from cometmq.remoting.bodies.topic_config import TopicConfig
from cometmq.runtime.worker import Worker
from cometmq.testing.broker.journals import (
    FILE_BYTES,
    FOLDER,
    SMALL_BYTES,
    InlineWorker,
    MemoryFiles,
    Node,
    read_whole,
)
from cometmq.testing.broker.logs import RecordingLog
from cometmq.testing.store.memory_disk import MemoryDisk


class Faults:
    def __init__(self, disk: MemoryDisk) -> None:
        self.number = 0
        disk.fault = lambda operation, path: self.number if operation != "read" else 0


def test_a_full_disk_fails_no_change_and_a_retry_writes_them() -> None:
    node = Node(MemoryDisk(), MemoryFiles())
    faults = Faults(node.disk)
    node.offsets.commit("g", "T", 0, 7)
    node.journal.write()
    faults.number = errno.ENOSPC
    for offset in (8, 9):
        node.offsets.commit("g", "T", 0, offset)
        node.journal.write()
    assert "ENOSPC" in node.journal.fault
    assert node.journal.files.failed_count == 1  # not once per turn
    node.journal.retry()
    assert len(node.log.named("journal.write_failed")) == 1
    faults.number = 0
    assert Node(node.disk, node.files).offsets.committed("g", "T", 0) == 7
    node.journal.retry()
    assert node.journal.fault == ""
    assert node.killed().offsets.committed("g", "T", 0) == 9


def test_a_file_that_is_saved_while_the_journal_fails_is_newer_than_the_journal() -> None:
    node = Node(MemoryDisk(), MemoryFiles())
    node.offsets.commit("g", "T", 0, 7)
    node.journal.write()
    faults = Faults(node.disk)
    faults.number = errno.EIO
    node.offsets.commit("g", "T", 0, 100)
    node.journal.write()
    node.save(node.offsets)
    faults.number = 0
    assert copy.deepcopy(node).killed().offsets.committed("g", "T", 0) == 100
    node.offsets.commit("g", "T", 1, 5)
    node.journal.retry()
    assert node.killed().offsets.queues("g", "T") == {0: 100, 1: 5}


def test_full_files_go_once_every_table_is_saved() -> None:
    node = Node(MemoryDisk(), MemoryFiles(), file_bytes=SMALL_BYTES)
    filled: list[int] = []
    node.journal.turn.filled.connect(lambda: filled.append(1))
    node.topics.put(TopicConfig(topic_name="T"))
    for offset in range(300):
        node.offsets.commit("g", "T", 0, offset)
        node.journal.write()
    assert filled
    files = len(node.disk.names(FOLDER))
    node.save(node.offsets)
    assert len(node.disk.names(FOLDER)) == files  # the first file has the topic
    node.save(node.topics)
    assert len(node.disk.names(FOLDER)) == 1
    assert node.killed(file_bytes=SMALL_BYTES).state() == node.state()


def test_a_kill_before_full_files_are_deleted_loses_nothing() -> None:
    node = Node(
        MemoryDisk(), MemoryFiles(), file_bytes=SMALL_BYTES, worker=InlineWorker(is_dead=True)
    )
    for offset in range(400):
        node.offsets.commit("g", "T", 0, offset)
        node.journal.write()
        if offset in {200, 300}:
            node.save(node.offsets)
    files = node.disk.names(FOLDER)
    after = node.killed(file_bytes=SMALL_BYTES)
    assert after.offsets.committed("g", "T", 0) == 399
    assert after.log.named("journal.damaged") == []
    after.save(after.offsets)
    assert len(after.disk.names(FOLDER)) == 1 < len(files)


def test_a_file_that_cannot_be_deleted_is_deleted_later() -> None:
    node = Node(MemoryDisk(), MemoryFiles(), file_bytes=SMALL_BYTES)
    node.disk.fault = lambda operation, _: errno.EIO if operation == "delete" else 0
    for offset in range(200):
        node.offsets.commit("g", "T", 0, offset)
        node.journal.write()
    node.save(node.offsets)
    assert node.log.named("journal.not_deleted")
    assert node.journal.fault == ""
    node.disk.fault = None
    node.save(node.offsets)
    assert len(node.disk.names(FOLDER)) == 1
    assert node.killed(file_bytes=SMALL_BYTES).state() == node.state()


def test_tables_that_cannot_be_saved_stop_the_journal_at_its_bound() -> None:
    node = Node(MemoryDisk(), MemoryFiles(), file_bytes=SMALL_BYTES)
    for offset in range(3000):
        node.offsets.commit("g", "T", 0, offset)
        node.journal.write()
    assert node.journal.fault
    assert len(node.disk.names(FOLDER)) == FILES_MAX
    node.save(node.offsets)
    node.journal.retry()
    assert node.journal.fault == ""
    assert node.killed(file_bytes=SMALL_BYTES).offsets.committed("g", "T", 0) == 2999


def test_saves_that_fail_for_long_leave_the_file_to_which_the_journal_belongs() -> None:
    node = Node(MemoryDisk(), MemoryFiles())
    node.save(node.offsets)
    for offset in range(30):
        node.offsets.commit("g", "T", 0, offset)
        node.journal.write()
        node.save(node.offsets, steps=1)
    assert node.killed().offsets.committed("g", "T", 0) == 29


def test_long_changes_are_divided() -> None:
    node = Node(MemoryDisk(), MemoryFiles(), file_bytes=16 << 20)
    for queue_id in range(PIECE_COUNT_MAX // 2 + 1):
        node.offsets.commit("g", "T", queue_id, 1)
        node.offsets.commit("h", "T", queue_id, 1)
    node.topics.put(TopicConfig(topic_name="T"))
    node.journal.write()
    assert node.journal.number == 3
    assert node.killed(file_bytes=16 << 20).state() == node.state()


def test_a_change_that_fits_into_no_file_is_left_to_the_next_save() -> None:
    node = Node(MemoryDisk(), MemoryFiles(), file_bytes=SMALL_BYTES)
    node.offsets.commit("g" * SMALL_BYTES, "T", 0, 1)
    node.journal.write()
    assert node.log.named("journal.entry_too_long")
    node.offsets.commit("g", "T", 0, 1)
    node.journal.write()
    assert node.killed(file_bytes=SMALL_BYTES).offsets.queues("g", "T") == {0: 1}


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker("test-config")
    yield worker
    worker.close()


async def test_a_stop_leaves_only_marks_unless_a_table_is_not_saved(worker: Worker) -> None:
    node = Node(MemoryDisk(), MemoryFiles(), worker=worker)
    node.offsets.commit("g", "T", 0, 1)
    node.journal.write()
    await node.journal.close()
    assert node.killed().offsets.committed("g", "T", 0) == 1
    for table in node.tables:
        node.save(table)
    await node.journal.close()
    (_,) = node.disk.names(FOLDER)
    assert read_whole(node.disk).entries == []
    assert node.killed().log.named("table.changed") == []
    content = node.files.contents[Path("/config/consumerOffset.json")]
    node.files.contents[Path("/config/consumerOffset.json")] = content.replace(b"1", b"3")
    after = node.killed()
    assert after.offsets.committed("g", "T", 0) == 3  # perhaps an operator wants that
    assert [facts["table"] for facts in after.log.named("table.changed")] == ["consumerOffset.json"]


async def test_a_sync_makes_the_journal_survive_a_power_failure(worker: Worker) -> None:
    disk, files = MemoryDisk(), MemoryFiles()
    node = Node(disk, files)
    node.journal = Journal(disk, FOLDER, worker=worker, log=node.log, file_bytes=FILE_BYTES)
    node.journal.attach(node.offsets)
    node.journal.begin()
    node.offsets.commit("g", "T", 0, 1)
    node.journal.write()
    node.journal.files.sync()
    await worker.submit(lambda: None)
    assert disk.sync_count == 1
    node.offsets.commit("g", "T", 0, 2)
    node.journal.write()
    disk.lose_power()
    assert node.killed().offsets.committed("g", "T", 0) == 1


async def test_a_failed_sync_has_the_tables_saved(worker: Worker) -> None:
    disk, log = MemoryDisk(), RecordingLog()
    saves: list[int] = []
    journal = Journal(disk, FOLDER, worker=worker, log=log, file_bytes=FILE_BYTES)
    journal.turn.filled.connect(lambda: saves.append(1))
    journal.begin()
    disk.fault = lambda operation, _: errno.EIO if operation == "sync" else 0
    journal.files.sync()
    await worker.submit(lambda: None)
    assert saves
    assert journal.files.failed_count == 1
    assert log.named("journal.sync_failed")
