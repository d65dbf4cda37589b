# SPDX-License-Identifier: Apache-2.0
"""Tables copied from a master: whole, change by change, and after failures."""

import re
from pathlib import Path

import msgspec
import pytest

from cometmq.broker.copies.streams import frames
from cometmq.broker.copies.tables import feed as table_feed
from cometmq.broker.copies.tables.feed import (
    Changes,
    Replicated,
    TableFeed,
    TablesLost,
    TablesPosition,
)
from cometmq.broker.delays.level import DelayFile, delay_file
from cometmq.broker.delays.positions import Positions
from cometmq.broker.filters.subscriptions import FilterSubscriptions, filter_file
from cometmq.broker.tables.journal import Journal
from cometmq.broker.tables.offsets import PIECE_COUNT_MAX, Offsets, offset_file
from cometmq.broker.tables.subscription_groups import Groups, group_file
from cometmq.broker.tables.topics import Topics, topic_file
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.runtime.worker import Worker
from cometmq.store.delay_levels import DelayLevels
from cometmq.testing.runtime.clock import FakeClock
from cometmq.testing.store.memory_disk import MemoryDisk


class Member:
    """The tables of one broker, with their journal and their feed."""

    def __init__(self, folder: Path, disk: MemoryDisk | None = None) -> None:
        clock = FakeClock()
        self.disk = disk or MemoryDisk()
        self.topics = Topics(topic_file(folder / "topics.json"), clock_ms=clock.now_ms)
        self.groups = Groups(group_file(folder / "groups.json"), clock_ms=clock.now_ms)
        self.offsets = Offsets(offset_file(str(folder / "offsets.json")))
        self.filters = FilterSubscriptions(
            filter_file(folder / "filters.json"), clock_ms=clock.now_ms
        )
        self.delay = Positions(
            delay_file(str(folder / "delay.json")), DelayLevels.parse("1s 5s 10s").numbers
        )
        tables: list[Replicated] = [
            self.topics, self.groups, self.offsets, self.filters, self.delay,
        ]  # fmt: skip
        self.worker = Worker("test")
        self.journal = Journal(
            self.disk, "/journal", worker=self.worker, keeps_position=True, file_bytes=1 << 20
        )
        for table in tables:
            self.journal.attach(table)
        self.journal.begin()
        self.feed = TableFeed(self.journal, {table.file.path.name: table for table in tables})

    def fill(self) -> None:
        """Change every table."""
        self.topics.create("A", queue_nums=4)
        self.groups.find("G", auto_create=True)
        self.offsets.commit("G", "A", 0, 7)
        self.filters.register(
            "G", [SubscriptionData(topic="A", sub_string="a > 1", expression_type="SQL92")]
        )
        self.delay.adopt(DelayFile({1: 5, 2: 8}, {1: {9: "recalled"}}))

    def content(self) -> dict[str, bytes]:
        """Return all tables in comparable pieces; loaded filters are dead until a heartbeat."""
        joined: dict[str, bytes] = {}
        for name, piece in self.feed.whole():
            joined[name] = joined.get(name, b"") + re.sub(rb'"dead(Time)?":\w+,', b"", piece)
        return joined

    def raw_whole(self) -> dict[str, list[msgspec.Raw]]:
        pieces: dict[str, list[msgspec.Raw]] = {}
        for name, piece in self.feed.whole():
            pieces.setdefault(name, []).append(msgspec.Raw(piece))
        return pieces


def pump(master: Member, slave: Member) -> list[set[str]]:
    """Apply the changes that the slave lacks; return the names of the tables of each."""
    master.journal.write()
    applied: list[set[str]] = []
    for number, encoded in list(master.feed.since(slave.feed.position.changes) or ()):
        changes = frames.decode_tables(frames.Kind.CHANGES, memoryview(encoded))
        assert changes.number == number
        slave.feed.apply(master.feed.position.epoch, changes)
        applied.append(set(changes.tables))
    return applied


def led(folder: Path) -> tuple[Member, Member]:
    """Return a master of epoch 3 with filled tables, and a slave that has adopted them."""
    master, slave = Member(folder / "m"), Member(folder / "s")
    master.fill()
    slave.offsets.commit("stale", "B", 0, 1)
    slave.offsets.commit("G", "A", 1, 1)
    slave.topics.create("B", queue_nums=1)
    slave.delay.adopt(DelayFile({3: 3}, {1: {7: "stale"}}))
    master.feed.begin(3)
    slave.feed.adopt(3, 0, master.raw_whole())
    return master, slave


def test_a_slave_adopts_all_tables_whole(tmp_path: Path) -> None:
    master, slave = led(tmp_path)
    assert slave.content() == master.content()
    assert slave.offsets.index.topics_of("stale") == set()
    assert slave.filters.get("A", "G") is not None
    assert slave.delay.offsets() == {1: 5, 2: 8}
    assert slave.delay.recalled.as_table() == {1: {9: "recalled"}}
    assert slave.feed.position == TablesPosition(3, 0) == master.feed.position


def test_adopted_tables_survive_a_kill(tmp_path: Path) -> None:
    master, slave = led(tmp_path)
    assert Member(tmp_path / "s", slave.disk).content() == master.content()


def test_changes_follow_in_order_and_survive_a_kill(tmp_path: Path) -> None:
    master, slave = led(tmp_path)
    counted: list[int] = []
    master.journal.turn.counted.connect(lambda: counted.append(master.feed.position.changes))
    master.feed.begin(3)
    master.topics.create("C", queue_nums=1)
    master.offsets.commit("G", "A", 0, 9)
    master.journal.write()
    master.offsets.drop_group("G")
    master.filters.unregister("G")
    master.delay.adopt(DelayFile({2: 9}, {2: {12: "recalled", 13: "too"}}))
    applied = pump(master, slave)
    assert slave.delay.recalled.as_table() == {2: {12: "recalled", 13: "too"}}
    assert counted == [1, 2]
    assert applied == [
        {"topics.json", "offsets.json"},
        {"offsets.json", "filters.json", "delay.json"},
    ]
    assert slave.feed.position == TablesPosition(3, 2)
    assert slave.content() == master.content()
    assert Member(tmp_path / "s", slave.disk).content() == master.content()


def test_changes_while_the_pieces_are_read_do_no_harm(tmp_path: Path) -> None:
    master, slave = Member(tmp_path / "m"), Member(tmp_path / "s")
    for number in range(PIECE_COUNT_MAX + 5):
        master.offsets.commit("G", "A", number, 1)
        master.offsets.commit(f"G{number % 7}", "A", number, 1)
    master.feed.begin(1)
    pieces: dict[str, list[msgspec.Raw]] = {}
    for count, (name, piece) in enumerate(master.feed.whole()):
        pieces.setdefault(name, []).append(msgspec.Raw(piece))
        master.offsets.drop_group(f"G{count}")
        master.offsets.commit("G", "A", count, 5)
        master.topics.create(f"T{count}", queue_nums=1)
        master.journal.write()
    slave.feed.adopt(1, 0, pieces)
    pump(master, slave)
    slave_content, master_content = slave.content(), master.content()
    assert slave_content["topics.json"] == master_content["topics.json"]
    assert slave.offsets.table == master.offsets.table


def test_only_a_masters_changes_are_counted(tmp_path: Path) -> None:
    master, slave = led(tmp_path)
    slave.topics.create("own", queue_nums=1)
    slave.journal.write()
    assert slave.feed.position == TablesPosition(3, 0)
    master.feed.stop()
    master.fill()
    master.journal.write()
    assert master.feed.position == TablesPosition(3, 0)


@pytest.mark.parametrize("number", [1, 3])
def test_a_gap_between_changes_is_refused(tmp_path: Path, number: int) -> None:
    master, slave = led(tmp_path)
    master.topics.create("C", queue_nums=1)
    pump(master, slave)
    with pytest.raises(TablesLost, match=f"change {number} of epoch 3 follows"):
        slave.feed.apply(3, Changes(number, {}))
    with pytest.raises(TablesLost, match="of epoch 4 follows"):
        slave.feed.apply(4, Changes(2, {}))


def test_old_changes_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_feed, "RECENT_BYTES_MAX", 400)
    master = Member(tmp_path / "m")
    master.feed.begin(1)
    for number in range(50):
        master.offsets.commit("G", "A", 0, number)
        master.journal.write()
    kept = [number for number, _ in master.feed.since(45) or ()]
    assert kept == [46, 47, 48, 49, 50]
    assert master.feed.since(20) is None
    assert list(master.feed.since(50) or ()) == []
    master.feed.begin(2)
    assert list(master.feed.since(0) or ()) == []


def test_tables_that_cannot_be_saved_are_not_acknowledged(tmp_path: Path) -> None:
    master, slave = led(tmp_path)
    slave.disk.fault = lambda operation, _path: 28 if operation == "write" else 0
    master.topics.create("C", queue_nums=1)
    with pytest.raises(TablesLost, match="journal cannot be written"):
        pump(master, slave)
    assert (slave.feed.position, slave.feed.received(3)) == (TablesPosition(3, 0), -1)
    with pytest.raises(TablesLost, match="journal cannot be written"):
        slave.feed.adopt(3, 1, master.raw_whole())
    slave.disk.fault = None
    slave.journal.retry()
    slave.feed.adopt(3, 1, master.raw_whole())
    assert Member(tmp_path / "s", slave.disk).content() == master.content()


@pytest.mark.parametrize(
    ("name", "data"), [("offsets.json", b'{"A@G":{"0":"x"}}'), ("topics.json", b"[1]")]
)
def test_changes_of_another_shape_are_refused(tmp_path: Path, name: str, data: bytes) -> None:
    _, slave = led(tmp_path)
    before = slave.content()
    with pytest.raises(TablesLost, match="a change cannot be applied"):
        slave.feed.apply(3, Changes(1, {name: msgspec.Raw(data)}))
    with pytest.raises(TablesLost, match="tables cannot be adopted"):
        slave.feed.adopt(3, 0, {name: [msgspec.Raw(data)]})
    assert slave.content() == before
    assert (slave.feed.position, slave.feed.received(3)) == (TablesPosition(3, 0), -1)


def test_tables_of_a_later_version_are_left_out(tmp_path: Path) -> None:
    _, slave = led(tmp_path)
    slave.feed.apply(3, Changes(1, {"new.json": msgspec.Raw(b"{}")}))
    assert slave.feed.position == TablesPosition(3, 1)
