# SPDX-License-Identifier: Apache-2.0
"""Journaled tables compared with a model: kills at any moment, writes torn at any byte, foreign
files.
"""

import copy
import errno
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.filters.subscriptions import FilterFile, FilterSubscriptions
from cometmq.broker.tables.journal import Journal
from cometmq.remoting.bodies.dialect import decode_json, encode_json
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig, TopicConfig
from cometmq.store.errors import DiskError
from cometmq.store.journal import Kind, encode_changes, encode_marks, read_journal
from cometmq.store.json_config import JsonTable, content_digest
from cometmq.testing.broker.journals import (
    FILE_BYTES,
    FOLDER,
    SMALL_BYTES,
    InlineWorker,
    MemoryFiles,
    Node,
    read_whole,
)
from cometmq.testing.runtime.clock import FakeClock
from cometmq.testing.store.memory_disk import MemoryDisk

NAMES: Final = ("a", "b", "c")


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


def test_a_change_that_cannot_be_encoded_stops_the_journal_and_no_answer() -> None:
    node = Node(MemoryDisk(), MemoryFiles())
    node.offsets.commit("\ud800", "T", 0, 1)
    node.journal.write()
    assert node.journal.fault
    assert node.log.named("journal.write_failed")


@pytest.mark.parametrize(
    "payload",
    [
        (Kind.MARKS, encode_marks(2, {}).replace(b'"version":1', b'"version":9')),
        (Kind.MARKS, encode_marks(2, {"consumerOffset.json": {"": 9}})),
        (Kind.CHANGES, encode_changes(9, [("consumerOffset.json", b"{}")])),
        (Kind.CHANGES, encode_changes(3, [("consumerOffset.json", b"[")])),
        (Kind.CHANGES, b"short"),
        (7, encode_changes(3, [])),
    ],
    ids=["version", "mark", "number", "json", "short", "kind"],
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
    after.offsets.commit("g", "T", 1, 3)
    after.journal.write()
    after = after.killed()
    assert [after.offsets.committed("g", "T", queue) for queue in (0, 1)] == [2, 3]
    for table in after.tables:
        after.save(table)
    again = after.killed()
    assert again.state() == after.state()
    assert again.log.named("journal.damaged") == []


def test_a_change_of_another_shape_is_left_out() -> None:
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
    after.offsets.commit("g", "T", 0, 2)
    after.journal.write()
    assert after.killed().offsets.committed("g", "T", 0) == 2


@pytest.mark.parametrize("share", [0.0, 0.4, 0.7, 1.0])
def test_a_journal_that_is_cut_short_is_damaged(share: float) -> None:
    """Files are created with their full size, so no kill leaves a shorter one."""
    node = Node(MemoryDisk(), MemoryFiles())
    for number in range(1, 9):
        node.offsets.commit("g", "T", 0, number)
        node.journal.write()
    (path,) = node.disk.contents
    written = len(node.disk.contents[path].rstrip(b"\0"))
    node.disk.resize(path, round(written * share))
    after = node.killed()
    assert len(after.log.named("journal.damaged")) == 1
    assert node.disk.contents[path][FILE_BYTES - 1 :] == b"\0"
    after.offsets.commit("g", "T", 0, 50)
    after.journal.write()
    again = after.killed()
    assert again.offsets.committed("g", "T", 0) == 50
    assert again.log.named("journal.damaged") == []


@pytest.mark.parametrize("content", [None, b"", b"{" * 500])
def test_a_journal_without_records_is_damaged_after_a_kill(content: bytes | None) -> None:
    node = Node(MemoryDisk(), MemoryFiles())
    node.offsets.commit("g", "T", 0, 1)
    node.journal.write()
    (path,) = node.disk.contents
    del node.disk.contents[path]
    if content is not None:
        node.disk.contents[path] = bytearray(content.ljust(FILE_BYTES, b"\0"))
    after = node.killed(was_killed=True)
    assert [facts["error"] for facts in after.log.named("journal.damaged")] == [
        "the store was in use, but there is no record of its journal"
    ]
    after.offsets.commit("g", "T", 0, 2)
    after.journal.write()
    again = after.killed(was_killed=True)
    assert again.offsets.committed("g", "T", 0) == 2
    assert again.log.named("journal.damaged") == []


def test_a_broker_may_begin_without_a_journal() -> None:
    node = Node(MemoryDisk(), MemoryFiles())
    assert node.log.named("journal.damaged") == []


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
