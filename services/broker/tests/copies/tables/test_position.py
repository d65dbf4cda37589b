# SPDX-License-Identifier: Apache-2.0
"""The tables' position in the journal is saved with each change, and becomes unknown if anything
other than a run in the group changes the tables.
"""

import copy
import errno
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.copies.streams import frames
from cometmq.broker.copies.tables.feed import TableFeed, TablesPosition
from cometmq.broker.tables.journal import Journaled
from cometmq.broker.tables.offsets import PIECE_COUNT_MAX
from cometmq.remoting.bodies.topic_config import TopicConfig
from cometmq.runtime.worker import Worker
from cometmq.store.journal import Kind, encode_changes, read_journal
from cometmq.store.redo_log import RedoLog
from cometmq.testing.broker.journals import FOLDER, MemoryFiles, Node
from cometmq.testing.store.memory_disk import MemoryDisk

LARGE_BYTES = 8 << 20
SMALL_BYTES = 4 << 10


class Member:
    """The tables of a broker in a group, with their journal and their feed."""

    def __init__(
        self, disk: MemoryDisk | None = None, files: MemoryFiles | None = None, **options: Any
    ) -> None:
        self.options = {"keeps_position": True} | options
        self.node = Node(disk or MemoryDisk(), files or MemoryFiles(), **self.options)
        self.journal, self.offsets = self.node.journal, self.node.offsets
        tables: dict[str, Any] = {table.file.path.name: table for table in self.node.tables}
        self.feed = TableFeed(self.journal, tables)

    def turn(self, offset: int) -> None:
        self.offsets.commit("g", "T", 0, offset)
        self.journal.write()

    def killed(self, **options: Any) -> "Member":
        return Member(self.node.disk, self.node.files, **(self.options | options))

    def pieces(self) -> dict[str, list[msgspec.Raw]]:
        found: dict[str, list[msgspec.Raw]] = {}
        for name, piece in self.feed.whole():
            found.setdefault(name, []).append(msgspec.Raw(piece))
        return found

    @property
    def committed(self) -> int | None:
        return self.offsets.committed("g", "T", 0)

    @property
    def data(self) -> bytearray:
        """The newest journal file."""
        return self.node.disk.contents[max(self.node.disk.contents)]


def master(changes: int, **options: Any) -> Member:
    """Return the master of epoch 3 after this many changes; each change commits its own number."""
    member = Member(**options)
    member.feed.begin(3)
    for number in range(1, changes + 1):
        member.turn(number)
    return member


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker("test-config")
    yield worker
    worker.close()


@given(changes=st.integers(0, 6), cut=st.floats(0, 1))
def test_a_torn_journal_has_both_the_change_and_its_position_or_neither(
    changes: int, cut: float
) -> None:
    member = master(changes)
    size = int(len(member.data.rstrip(b"\0")) * cut)
    member.data[size:] = bytes(len(member.data) - size)
    after = member.killed()
    epoch, number = after.feed.position
    assert (epoch, after.committed or 0) in {(3, number), (0, 0)}


def test_a_follower_knows_its_position_after_a_kill_and_needs_whole_tables() -> None:
    leader, follower = master(2), Member()
    follower.feed.adopt(3, 2, leader.pieces())
    leader.turn(9)
    encoded = memoryview(next(iter(leader.feed.since(2) or ()))[1])
    follower.feed.apply(3, frames.decode_tables(frames.Kind.CHANGES, encoded))
    assert follower.feed.received(3) == 3
    after = follower.killed()
    assert (after.feed.position, after.committed) == (TablesPosition(3, 3), 9)
    assert after.feed.received(3) == -1  # it may have added topics at its start


def test_equal_tables_are_adopted_with_their_position() -> None:
    follower = Member()
    follower.feed.adopt(3, 4, Member().pieces())
    follower.feed.adopt(3, 4, follower.pieces())
    assert follower.killed().feed.position == TablesPosition(3, 4)


def test_a_new_epoch_begins_before_its_first_change() -> None:
    member = master(2)
    member.feed.stop()
    member.feed.begin(5)
    assert member.killed().feed.position == TablesPosition(5, 0)


def test_changes_that_no_master_counts_leave_the_position() -> None:
    member = master(2)
    member.feed.stop()
    member.turn(7)
    after = member.killed()
    assert (after.feed.position, after.committed) == (TablesPosition(3, 2), 7)


def record_ends(member: Member) -> Sequence[int]:
    """Return where the records of the newest file end."""
    log = RedoLog(copy.deepcopy(member.node.disk), FOLDER, file_bytes=LARGE_BYTES)
    ends: list[int] = []
    for record in log.records():
        ends.append((ends[-1] if ends else 0) + 9 + len(record.payload))
    return ends


def test_a_kill_while_long_tables_are_adopted_leaves_the_old_position() -> None:
    follower = Member(file_bytes=LARGE_BYTES)
    follower.feed.adopt(3, 1, master(1).pieces())
    known = len(record_ends(follower))
    leader = master(2)
    for number in range(2 * PIECE_COUNT_MAX):
        leader.offsets.commit(f"group-{number}", "T", 0, number)
    leader.journal.write()
    leader.feed.begin(4)
    follower.feed.adopt(4, 0, leader.pieces())
    ends = record_ends(follower)
    assert len(ends) > known + 1, "the whole was written with one record"
    whole = bytes(follower.data)
    for end in ends[known - 1 :]:
        follower.data[:] = whole[:end].ljust(len(whole), b"\0")
        after = follower.killed()
        if end < ends[-1]:
            assert after.feed.position == TablesPosition(3, 1)
            assert after.committed in {1, 2}
        else:
            assert after.feed.position == TablesPosition(4, 0)
            assert after.offsets.table == leader.offsets.table


def test_a_full_disk_keeps_change_and_position_together() -> None:
    member = master(1)
    member.node.disk.fault = lambda operation, _: errno.ENOSPC if operation == "write" else 0
    member.turn(2)
    assert member.feed.position == TablesPosition(3, 1)
    before = copy.deepcopy(member.node.disk)
    before.fault = None
    after = Member(before)
    assert (after.feed.position, after.committed) == (TablesPosition(3, 1), 1)
    member.node.disk.fault = None
    member.journal.retry()
    after = member.killed()
    assert (after.feed.position, after.committed) == (TablesPosition(3, 2), 2)


def test_an_epoch_that_began_on_a_full_disk_is_counted_from_its_first_saved_change() -> None:
    member = master(1)
    member.feed.stop()
    member.node.disk.fault = lambda operation, _: errno.ENOSPC if operation == "write" else 0
    member.feed.begin(5)
    member.turn(2)
    member.node.disk.fault = None
    member.journal.retry()
    after = member.killed()
    assert member.feed.position == after.feed.position == TablesPosition(5, 1)
    assert after.committed == 2


def test_the_position_stays_when_full_files_go() -> None:
    member = master(300, file_bytes=SMALL_BYTES)
    for table in member.node.tables:
        member.node.save(table)
    assert len(member.node.disk.names(FOLDER)) == 1
    after = member.killed()
    assert (after.feed.position, after.committed) == (TablesPosition(3, 300), 300)


async def stopped(member: Member) -> None:
    for table in member.node.tables:
        member.node.save(table)
    await member.journal.close()


async def test_a_stop_leaves_one_file_that_survives_a_power_failure(worker: Worker) -> None:
    member = master(300, file_bytes=SMALL_BYTES, worker=worker)
    await stopped(member)
    member.node.disk.lose_power()
    assert len(member.node.disk.names(FOLDER)) == 1
    found = read_journal(member.node.disk, FOLDER)
    assert (found.position, found.entries) == ((3, 300), [])
    after = member.killed()
    assert (after.feed.position, after.committed) == (TablesPosition(3, 300), 300)
    assert after.node.log.named("journal.left_out") == []


async def test_a_stop_that_cannot_sync_leaves_no_position(worker: Worker) -> None:
    member = master(3, worker=worker)
    member.node.disk.fault = lambda operation, _: errno.EIO if operation == "sync" else 0
    await stopped(member)
    member.node.disk.fault = None
    assert member.node.disk.names(FOLDER) == []
    after = member.killed()
    assert (after.feed.position, after.committed) == (TablesPosition(0, 0), 3)


@pytest.mark.parametrize("is_closed", [False, True])
async def test_a_run_without_a_group_makes_the_position_unknown(
    worker: Worker, is_closed: bool
) -> None:
    member = master(3, worker=worker)
    await stopped(member)
    alone = member.killed(keeps_position=False)
    assert alone.feed.position == TablesPosition(0, 0)
    if is_closed:
        await stopped(alone)
    after = member.killed()
    assert (after.feed.position, after.committed) == (TablesPosition(0, 0), 3)


@pytest.mark.parametrize("is_closed", [False, True])
async def test_a_file_of_another_program_makes_the_position_unknown(
    worker: Worker, is_closed: bool
) -> None:
    member = master(3, worker=worker)
    for table in member.node.tables:
        member.node.save(table)
    if is_closed:
        await member.journal.close()
    path = Path("/config/consumerOffset.json")
    member.node.files.contents[path] = b'{"offsetTable":{"T@g":{0:1}}}'
    after = member.killed()
    assert (after.feed.position, after.committed) == (TablesPosition(0, 0), 1)
    assert after.killed().feed.position == TablesPosition(0, 0)


@pytest.mark.parametrize("kind", ["damaged", "missing", "malformed"])
def test_a_journal_that_lacks_entries_makes_the_position_unknown(kind: str) -> None:
    member = master(5)
    if kind == "damaged":
        member.data[record_ends(member)[3] + 12] ^= 1
    elif kind == "missing":
        member.node.disk.contents.clear()
    else:
        log = RedoLog(member.node.disk, FOLDER, file_bytes=member.node.journal.size_bytes)
        list(log.replay())
        number = member.journal.number + 1
        log.append(Kind.CHANGES, encode_changes(number, [("position", b'"x"')]))
    after = member.killed()
    assert after.feed.position == TablesPosition(0, 0)
    assert after.killed().feed.position == TablesPosition(0, 0)
    assert bool(after.node.log.named("journal.damaged")) == (kind != "missing")


def test_a_broker_without_a_group_writes_no_position() -> None:
    node = Node(MemoryDisk(), MemoryFiles())
    for offset in count():
        node.offsets.commit("g", "T", 0, offset)
        node.topics.put(TopicConfig(topic_name="T"))
        node.journal.write()
        if offset == 3:
            break
    table: Journaled = node.offsets
    node.save(table)
    node.journal.write()
    assert all(b"position" not in data for data in node.disk.contents.values())
