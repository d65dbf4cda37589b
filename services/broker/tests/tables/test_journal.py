# SPDX-License-Identifier: Apache-2.0
"""Journaled tables compared with a model: kills at any moment, writes torn at any byte, foreign
files.
"""

import copy
import errno
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.filters.subscriptions import FilterFile, FilterSubscriptions
from cometmq.broker.tables.journal import Journal
from cometmq.broker.tables.journal_files import FILES_MAX
from cometmq.broker.tables.offsets import PIECE_COUNT_MAX
from cometmq.broker.testing.journals import FILE_BYTES, FOLDER, InlineWorker, MemoryFiles, Node
from cometmq.broker.testing.logs import RecordingLog
from cometmq.remoting.bodies.dialect import decode_json, encode_json
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig, TopicConfig
from cometmq.runtime.clock import FakeClock
from cometmq.runtime.worker import Worker
from cometmq.store.errors import DiskError
from cometmq.store.journal import Kind, collect, encode_changes, encode_marks, read_journal
from cometmq.store.json_config import JsonTable, content_digest
from cometmq.store.redo_log import RedoLog
from cometmq.store.testing.memory_disk import MemoryDisk

NAMES: Final = ("a", "b", "c")
SMALL_BYTES: Final = 4 << 10


def change(node: Node, kind: int, name: str, number: int) -> None:
    offsets, topics, groups = node.offsets, node.topics, node.groups
    changes: tuple[Callable[[], object], ...] = (
        lambda: offsets.commit(name, "T", number % 4, number),
        lambda: offsets.commit("g", name, number % 4, number),
        lambda: offsets.clone("g", f"g{number % 3}", name),
        lambda: offsets.drop_group(name),
        lambda: topics.put(TopicConfig(topic_name=name, perm=number % 8)),
        lambda: topics.remove(name),
        lambda: topics.set_ordered([name]),
        topics.touch,
        lambda: groups.put(SubscriptionGroupConfig(group_name=name, retry_max_times=number)),
        lambda: groups.remove(name),
    )
    changes[kind]()


CHANGES = st.tuples(
    st.just("change"), st.integers(0, 9), st.sampled_from(NAMES), st.integers(0, 1000)
)
TURN = st.tuples(st.just("turn"))
SAVE = st.tuples(st.just("save"), st.integers(0, 2))
STEPS = st.lists(CHANGES | TURN | SAVE, max_size=40)


@given(steps=STEPS, cut=st.floats(0, 1))
def test_a_journal_torn_at_any_byte_gives_the_state_of_its_last_whole_entry(
    steps: list[tuple[Any, ...]], cut: float
) -> None:
    node = Node(MemoryDisk(), MemoryFiles())
    states = {node.journal.number: node.state()}
    for step in steps:
        if step[0] == "change":
            change(node, *step[1:])
            continue
        node.journal.write()
        states[node.journal.number] = node.state()
        if step[0] == "save":
            node.save(node.tables[step[1]])
    (path,) = node.disk.contents
    data = node.disk.contents[path]
    size = int(len(data.rstrip(b"\0")) * cut)
    data[size:] = bytes(len(data) - size)

    found = read_whole(node.disk)
    saved = {
        name: state
        for name, state in loaded(node.files).items()
        if name not in found.marks
        or found.base(name, content_digest(node.files.contents[Path("/config", name)])) is None
    }
    expected = (states[found.number] if found.entries or found.marks else {}) | saved
    after = node.killed()
    assert {name: after.state()[name] for name in expected} == expected
    assert after.log.named("journal.damaged") == []


def read_whole(disk: MemoryDisk) -> Any:
    log = RedoLog(disk, FOLDER, file_bytes=FILE_BYTES)
    return collect(log, log.records())


def loaded(files: MemoryFiles) -> dict[str, object]:
    """Return the state of tables loaded from the files alone, without a journal."""
    fresh = Node(MemoryDisk(), copy.deepcopy(files)).state()
    return {name: state for name, state in fresh.items() if Path("/config", name) in files.contents}


@given(
    steps=st.lists(
        CHANGES | TURN | st.tuples(st.just("save"), st.integers(0, 2), st.integers(0, 3))
        | st.tuples(st.just("kill")),
        max_size=60,
    )
)  # fmt: skip
def test_no_kill_loses_what_a_turn_has_written(steps: list[tuple[Any, ...]]) -> None:
    node = Node(MemoryDisk(), MemoryFiles(), file_bytes=SMALL_BYTES)
    for step in steps:
        if step[0] == "change":
            change(node, *step[1:])
            continue
        node.journal.write()
        before = node.state()
        if step[0] == "save":
            node.save(node.tables[step[1]], steps=step[2])
        if step[0] == "kill" or step[-1] in {0, 1, 2}:
            node = node.killed(file_bytes=SMALL_BYTES)
            assert node.state() == before
            assert node.log.named("journal.left_out") == []


def test_a_kill_before_the_end_of_the_turn_loses_only_that_turn() -> None:
    node = Node(MemoryDisk(), MemoryFiles())
    node.offsets.commit("g", "T", 0, 7)
    node.journal.write()
    node.offsets.commit("g", "T", 0, 8)
    assert node.killed().offsets.committed("g", "T", 0) == 7


def test_a_turn_is_one_write_with_the_last_value_of_each_offset() -> None:
    node = Node(MemoryDisk(), MemoryFiles())
    scheduled: list[int] = []
    node.journal.turn.noted.connect(lambda: scheduled.append(1))
    for offset in range(100):
        node.offsets.commit("g", "T", 0, offset)
    node.topics.put(TopicConfig(topic_name="T"))
    written = node.journal.files.byte_count
    node.journal.write()
    node.journal.write()
    assert scheduled == [1]
    assert node.journal.number == 1
    assert node.journal.files.byte_count - written < 400
    (entry,) = read_whole(node.disk).entries
    assert msgspec.json.decode(entry.changes["consumerOffset.json"]) == {"T@g": {"0": 99}}


def test_a_file_that_another_program_wrote_is_taken_as_it_is() -> None:
    node = Node(MemoryDisk(), MemoryFiles())
    node.offsets.commit("g", "T", 0, 7)
    node.groups.put(SubscriptionGroupConfig(group_name="g"))
    node.journal.write()
    node.save(node.offsets)
    node.offsets.commit("g", "T", 0, 8)
    node.journal.write()
    node.files.contents[Path("/config/consumerOffset.json")] = b'{"offsetTable":{"T@g":{0:3}}}'

    after = node.killed()
    assert after.offsets.committed("g", "T", 0) == 3
    assert after.groups.get("g") is not None
    assert [facts["table"] for facts in after.log.named("journal.left_out")] == [
        "consumerOffset.json"
    ]
    after.offsets.commit("g", "T", 1, 4)
    after.journal.write()
    assert after.killed().offsets.queues("g", "T") == {0: 3, 1: 4}


def test_the_journal_of_another_store_changes_nothing() -> None:
    other = Node(MemoryDisk(), MemoryFiles())
    other.offsets.commit("g", "T", 0, 7)
    other.journal.write()
    other.save(other.offsets)
    other.offsets.commit("g", "T", 0, 8)
    other.journal.write()
    node = Node(MemoryDisk(), MemoryFiles())
    node.offsets.commit("g", "T", 0, 1)
    node.save(node.offsets)
    mixed = Node(other.disk, node.files)
    assert mixed.offsets.committed("g", "T", 0) == 1
    assert mixed.log.named("journal.left_out")


def test_a_removed_file_stays_removed() -> None:
    node = Node(MemoryDisk(), MemoryFiles())
    node.offsets.commit("g", "T", 0, 7)
    node.journal.write()
    node.save(node.offsets)
    node.journal.write()  # write the mark that the first file exists
    node.files.contents.clear()
    assert node.killed().offsets.committed("g", "T", 0) is None


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


def test_a_change_that_cannot_be_encoded_stops_the_journal_and_no_answer() -> None:
    node = Node(MemoryDisk(), MemoryFiles())
    node.offsets.commit("\ud800", "T", 0, 1)
    node.journal.write()
    assert node.journal.fault
    assert node.log.named("journal.write_failed")


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


@pytest.mark.parametrize(
    "payload",
    [
        (Kind.MARKS, encode_marks(2, {}).replace(b'"version":1', b'"version":9')),
        (Kind.CHANGES, encode_changes(9, [("consumerOffset.json", b"{}")])),
        (Kind.CHANGES, encode_changes(3, [("consumerOffset.json", b"[")])),
        (Kind.CHANGES, b"short"),
        (7, encode_changes(3, [])),
    ],
    ids=["version", "number", "json", "short", "kind"],
)
def test_what_is_not_understood_ends_the_journal_and_is_told(payload: tuple[int, bytes]) -> None:
    node = Node(MemoryDisk(), MemoryFiles())
    for offset in (1, 2):
        node.offsets.commit("g", "T", 0, offset)
        node.journal.write()
    kind, data = payload
    node.journal.files.append(kind, data, node.journal.number)  # type: ignore[arg-type]
    after = node.killed()
    assert after.log.named("journal.damaged")
    assert after.offsets.committed("g", "T", 0) == 2
    for table in after.tables:
        after.save(table)
    again = after.killed()
    assert again.state() == after.state()
    assert again.log.named("journal.damaged") == []


def test_a_change_of_another_shape_ends_the_changes_of_its_table() -> None:
    node = Node(MemoryDisk(), MemoryFiles())
    node.offsets.commit("g", "T", 0, 1)
    node.journal.write()
    node.journal._write_entry([("consumerOffset.json", b"[1]")])
    node.groups.put(SubscriptionGroupConfig(group_name="g"))
    node.journal.write()
    after = node.killed()
    assert [facts["entry"] for facts in after.log.named("journal.damaged")] == [2]
    assert after.offsets.committed("g", "T", 0) == 1
    assert after.groups.get("g") is not None


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


@pytest.mark.parametrize("damage", [b"", b"{", bytes(40)])
@pytest.mark.parametrize("is_saved", [False, True])
def test_a_damaged_file_brings_the_journal_along(damage: bytes, *, is_saved: bool) -> None:
    node = Node(MemoryDisk(), MemoryFiles())
    for number in range(3):
        node.topics.create(f"T{number}", queue_nums=number + 1)
        node.offsets.commit("g", "T", 0, number)
        node.journal.write()
        if is_saved or number == 0:
            for table in node.tables:
                node.save(table)
    state = node.state()
    for table in node.tables:
        if table.file.path in node.files.contents:
            node.files.contents[table.file.path] = damage
    after = node.killed()
    assert after.state() == state
    assert len(after.log.named("table.damaged")) == 3
    assert after.killed().state() == state


def test_entries_are_applied_to_a_backup_of_another_program() -> None:
    """RocketMQ's backup is one save older than the file, so the journal does not know it."""
    node = Node(MemoryDisk(), MemoryFiles())
    node.offsets.commit("g", "T", 0, 1)
    node.journal.write()
    node.save(node.offsets)
    node.offsets.commit("g", "T", 1, 2)
    node.journal.write()
    path = Path("/config/consumerOffset.json")
    node.files.contents[Path(f"{path}.bak")] = b'{"offsetTable":{"T@g":{0:0,7:7}}}'
    node.files.contents[path] = b"{"
    after = node.killed()
    assert after.offsets.queues("g", "T") == {0: 1, 1: 2, 7: 7}
    assert after.killed().offsets.queues("g", "T") == {0: 1, 1: 2, 7: 7}


def test_the_journal_knows_an_end_of_the_log_before_which_no_change_is_missing() -> None:
    disk, files = MemoryDisk(), MemoryFiles()
    ends: list[Any] = [None]
    node = Node(disk, files, log_end=lambda: ends[0])
    assert node.journal.known_log_end is None
    ends[0] = 100
    for number in range(5):
        node.topics.create(f"T{number}", queue_nums=1)
        ends[0] += 10
        node.journal.write()
        assert node.killed().journal.known_log_end == ends[0]
    disk.fault = lambda operation, _path: 28 if operation == "write" else 0
    node.topics.create("T5", queue_nums=1)
    known = ends[0]
    ends[0] += 10
    node.journal.write()
    disk.fault = None
    assert node.killed().journal.known_log_end == known


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


def test_filters_are_journaled_with_their_lifetime() -> None:
    clock, disk, files = FakeClock(), MemoryDisk(), MemoryFiles()

    def started() -> FilterSubscriptions:
        file = JsonTable("/config/consumerFilter.json", decode=partial(decode_json, FilterFile),
                         encode=encode_json, files=files)  # fmt: skip
        table = FilterSubscriptions(file, clock_ms=clock.now_ms, keep_dead_ms=10)
        worker: Any = InlineWorker()
        journal = Journal(disk, FOLDER, worker=worker, file_bytes=FILE_BYTES)
        journal.attach(table)
        journal.begin()
        journals.append(journal)
        return table

    journals: list[Journal] = []
    filters = started()
    for group in "gh":
        data = SubscriptionData(topic="T", sub_string="a > 1", expression_type="SQL92")
        filters.register(group, [data])
    journals[-1].write()
    filters.unregister("h")
    journals[-1].write()
    after = started()
    assert after.count == 2
    one, other = after.get("T", "g"), after.get("T", "h")
    assert one is not None
    assert other is not None
    assert (one.expression, other.is_dead) == ("a > 1", True)
    clock.advance(100_000)
    after.clean()
    journals[-1].write()
    assert started().count == 0


def test_a_journal_is_read_without_changing_it() -> None:
    node = Node(MemoryDisk(), MemoryFiles(), file_bytes=16 << 20)
    node.offsets.commit("g", "T", 0, 1)
    node.journal.write()
    node.disk.fault = lambda operation, _: errno.EROFS if operation not in {"read", "stat"} else 0
    found = read_journal(node.disk, FOLDER)
    assert (found.number, len(found.entries), found.cut, found.fault) == (1, 1, None, "")
    with pytest.raises(DiskError):
        node.disk.create("/x", 1, temporary="/y")
