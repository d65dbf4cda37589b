# SPDX-License-Identifier: Apache-2.0
"""The ledger compared with a model, across changes, kills at any write, power losses and lost
files.
"""

import errno
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cometmq.peers.long_forms import case_count
from cometmq.store.errors import DiskError
from cometmq.testing.store.memory_disk import MemoryDisk
from cometmq.txn_checker.ledger import Ledger
from cometmq.txn_checker.tables import CHUNK, NO_HALF, Half, State

FOLDER = "/txn/broker-a"


def open_ledger(disk: MemoryDisk) -> Ledger:
    return Ledger(disk, FOLDER, entries_per_file=50, log_file_bytes=4096)


def begun(disk: MemoryDisk, half: int = 0, op: int = 0) -> Ledger:
    ledger = open_ledger(disk)
    assert ledger.is_new
    ledger.begin(half, op)
    return ledger


def half(number: int, **fields: Any) -> Half:
    values = {"physical_offset": number * 100, "size": 99, "stored_s": 1_000, "group_hash": 7}
    return Half(**(values | fields))


def is_open(ledger: Ledger) -> list[int]:
    return [one.offset for chunk in ledger.halves.open_chunks() for one in chunk]


def ask(ledger: Ledger, offsets: set[int], now_s: int) -> None:
    ledger.note_asked(
        [one for chunk in ledger.halves.open_chunks() for one in chunk if one.offset in offsets],
        now_s,
    )


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


def test_a_half_message_is_open_until_its_op_message_is_read(disk: MemoryDisk) -> None:
    ledger = begun(disk, half=10, op=3)
    ledger.add_halves([half(number) for number in range(10, 15)])
    assert ledger.read_ops([[11], [10], []]) == 3
    assert is_open(ledger) == [12, 13, 14]
    assert (ledger.halves.next, ledger.ops.next, ledger.halves.open_count) == (15, 6, 3)
    assert (ledger.halves.low_water, ledger.ops.mark(12)) == (12, 6)
    entry = ledger.halves.entry(11)
    assert entry is not None
    assert entry.state == State.COMMITTED
    assert (entry.physical_offset, entry.size, entry.group_hash) == (1100, 99, 7)
    assert ledger.halves.entry(9) is None
    assert ledger.halves.entry(15) is None


def test_an_op_message_waits_for_its_half_message(disk: MemoryDisk) -> None:
    ledger = begun(disk)
    ledger.add_halves([half(0)])
    assert ledger.read_ops([[0], [1], [0]]) == 1
    assert ledger.ops.next == 1
    ledger.add_halves([half(1)])
    assert ledger.read_ops([[1], [0]]) == 2
    assert is_open(ledger) == []


def test_the_op_mark_waits_for_ops_above_the_low_water(disk: MemoryDisk) -> None:
    """Reading from both marks must yield the op messages of all ended half messages above them."""
    ledger = begun(disk)
    ledger.add_halves([half(number) for number in range(5)])
    ledger.read_ops([[0], [3], [1]])
    assert ledger.halves.low_water == 2
    assert ledger.ops.mark(2) == 1
    ledger.read_ops([[2]])
    assert ledger.halves.low_water == 4
    assert ledger.ops.mark(4) == 4


def test_one_op_message_may_end_several(disk: MemoryDisk) -> None:
    ledger = begun(disk)
    ledger.add_halves([half(number) for number in range(4)])
    assert ledger.read_ops([[0, 2, 3], [1, 1]]) == 2
    assert is_open(ledger) == []
    assert ledger.ops.mark(ledger.halves.low_water) == 2


def test_an_op_message_may_be_longer_than_a_record_of_the_log(disk: MemoryDisk) -> None:
    ledger = begun(disk)
    ledger.add_halves([half(number) for number in range(300)])
    assert ledger.read_ops([[1], list(range(10, 290)), [2]]) == 3
    expected = [0, *range(3, 10), *range(290, 300)]
    assert is_open(ledger) == expected
    assert is_open(open_ledger(disk)) == expected
    assert ledger.ops.next == 3


def test_questions_are_counted_and_survive(disk: MemoryDisk) -> None:
    ledger = begun(disk)
    ledger.add_halves([half(0, immunity_s=30), half(1, check_count=4), NO_HALF])
    ask(ledger, {0, 1}, 111)
    ask(ledger, {1}, 222)
    for known in (ledger, open_ledger(disk)):
        checks = [one.check for chunk in known.halves.open_chunks() for one in chunk]
        assert checks == [(111, 1, 30), (222, 6, 0xFFFF)]


def test_transactions_set_aside_are_closed(disk: MemoryDisk) -> None:
    ledger = begun(disk)
    ledger.add_halves([half(number) for number in range(3)])
    ledger.close([0, 2, 2, 99])
    assert is_open(ledger) == [1]
    entry = ledger.halves.entry(2)
    assert entry is not None
    assert entry.state == State.ROLLED_BACK


def test_deleted_half_messages_are_dropped(disk: MemoryDisk) -> None:
    ledger = begun(disk)
    ledger.add_halves([half(number) for number in range(120)])
    ledger.halves_gone(60)
    assert is_open(ledger) == list(range(60, 120))
    ledger.halves_gone(500)
    assert (is_open(ledger), ledger.halves.next, ledger.halves.open_count) == ([], 500, 0)
    ledger.add_halves([half(500)])
    ledger.ops_gone(70)
    assert (ledger.ops.next, ledger.ops.mark(500)) == (70, 70)
    known = open_ledger(disk)
    assert not known.is_new
    assert (is_open(known), known.ops.next) == ([500], 70)


def test_many_chunks(disk: MemoryDisk) -> None:
    ledger = Ledger(disk, FOLDER, entries_per_file=10_000)
    ledger.begin(0, 0)
    count = 3 * CHUNK + 100
    ledger.add_halves([half(number) for number in range(count)])
    ledger.read_ops([[number] for number in range(2 * CHUNK)])
    assert ledger.halves.open_count == count - 2 * CHUNK
    assert ledger.halves.low_water == 2 * CHUNK
    assert [len(chunk) for chunk in ledger.halves.open_chunks()] == [CHUNK, 100]
    assert [len(chunk) for chunk in ledger.halves.open_chunks(3 * CHUNK - 1)] == [1, 100]
    assert (
        Ledger(disk, FOLDER, entries_per_file=10_000).halves.open_count == ledger.halves.open_count
    )


def test_a_checkpoint_deletes_unneeded_files(disk: MemoryDisk) -> None:
    ledger = begun(disk)
    for start in range(0, 1000, 20):
        ledger.add_halves([half(number) for number in range(start, start + 20)])
        ledger.read_ops([[number] for number in range(start, start + 20)])
    assert len(disk.contents) > 40
    for _ in range(2):
        synced(ledger)
    assert len(disk.contents) <= 4
    known = open_ledger(disk)
    assert (known.halves.next, known.ops.next, known.halves.open_count) == (1000, 1000, 0)


def synced(ledger: Ledger) -> None:
    checkpoint = ledger.checkpoint()
    checkpoint.sync()
    ledger.note_synced(checkpoint)


def test_a_checkpoint_syncs_what_a_failed_one_left(disk: MemoryDisk) -> None:
    """The op messages of the failed checkpoint must survive a power loss: recovery needs them."""
    ledger = begun(disk)
    ledger.add_halves([half(number) for number in range(3)])
    ledger.read_ops([[2]])
    ledger.checkpoint()  # its sync fails
    ledger.close([0])
    synced(ledger)
    disk.lose_power()
    known = open_ledger(disk)
    assert (is_open(known), known.halves.low_water, known.ops.mark(1)) == ([1], 1, 0)


def test_a_lost_table_is_rebuilt_from_the_redo_log(disk: MemoryDisk) -> None:
    ledger = begun(disk)
    ledger.add_halves([half(number) for number in range(120)])
    ledger.read_ops([[3]])
    disk.remove_tree(f"{FOLDER}/statetable")
    assert is_open(open_ledger(disk)) == is_open(ledger)


@pytest.mark.parametrize("folder", ["statetable", "redolog"])
def test_a_ledger_with_a_missing_folder_starts_anew(disk: MemoryDisk, folder: str) -> None:
    ledger = begun(disk)
    ledger.add_halves([half(number) for number in range(120)])
    synced(ledger)
    disk.remove_tree(f"{FOLDER}/{folder}")
    known = open_ledger(disk)
    assert known.is_new
    assert not [path for path in disk.contents if path.startswith(FOLDER)]
    known.begin(5, 5)
    assert not open_ledger(disk).is_new


def test_a_damaged_table_is_detected(disk: MemoryDisk) -> None:
    ledger = begun(disk)
    ledger.add_halves([half(number) for number in range(120)])
    synced(ledger)
    path = next(path for path in disk.contents if "statetable" in path)
    disk.contents[path][20 * 24 + 20 : 20 * 24 + 24] = b"\0\0\0\x05"
    assert open_ledger(disk).is_new


def test_a_log_with_a_gap_is_detected(disk: MemoryDisk) -> None:
    """A power failure may destroy the end of one log file and leave the next file intact."""
    ledger = begun(disk)
    ledger.add_halves([half(number) for number in range(10)])
    end = len(bytes(disk.contents[f"{FOLDER}/redolog/{0:020d}"]).rstrip(b"\0"))
    ledger.read_ops([[3], [4]])
    ledger.checkpoint()
    log = disk.contents[f"{FOLDER}/redolog/{0:020d}"]
    log[end:] = bytes(len(log) - end)
    assert open_ledger(disk).is_new


@pytest.mark.parametrize("folder", ["statetable", "ops"])
def test_partly_written_ends_are_complete_after_recovery(disk: MemoryDisk, folder: str) -> None:
    ledger = begun(disk)
    ledger.add_halves([half(number) for number in range(3)])
    ledger.read_ops([[0]])
    disk.fault = lambda operation, path: errno.EIO if operation == "write" and folder in path else 0
    with pytest.raises(DiskError):
        ledger.read_ops([[1]])
    disk.fault = None
    known = open_ledger(disk)
    assert (is_open(known), known.ops.next) == ([2], 2)


def test_the_newest_half_message_is_known_when_it_is_ended(disk: MemoryDisk) -> None:
    ledger = begun(disk)
    assert ledger.halves.newest is None
    ledger.add_halves([half(0), half(1)])
    ledger.read_ops([[0], [1]])
    synced(ledger)
    for known in (ledger, open_ledger(disk)):
        newest = known.halves.newest
        assert newest is not None
        assert newest.physical_offset == 100
    ledger.halves_gone(9)
    assert ledger.halves.newest is None


def test_a_failed_write_changes_nothing(disk: MemoryDisk) -> None:
    ledger = begun(disk)
    ledger.add_halves([half(0)])
    disk.fault = lambda operation, path: (
        errno.ENOSPC if operation == "write" and "redolog" in path else 0
    )
    with pytest.raises(DiskError):
        ledger.add_halves([half(1)])
    disk.fault = None
    assert (ledger.halves.next, is_open(ledger)) == (1, [0])
    ledger.add_halves([half(1)])
    assert is_open(open_ledger(disk)) == [0, 1]


class LedgerMachine(RuleBasedStateMachine):
    """After any history, the ledger agrees with the queues or reports that it must be rebuilt."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryDisk()
        self.ledger = begun(self.disk)
        self.halves = 0  # half messages in the broker's queue
        self.ops: list[int] = []  # op messages in the broker's queue
        self.aside: set[int] = set()
        self.marks = (0, 0)

    def read_everything(self) -> None:
        """Read both queues from the ledger's offsets onwards, as the follower does."""
        ledger = self.ledger
        if ledger.is_new:
            ledger.begin(*self.marks)
        ledger.add_halves([half(number) for number in range(ledger.halves.next, self.halves)])
        ops = [[one] for one in self.ops[ledger.ops.next :]]
        assert ledger.read_ops(ops) == len(ops)

    @rule(count=st.integers(1, 40))
    def prepare(self, count: int) -> None:
        self.halves += count

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.halves:
            self.ops.append(data.draw(st.integers(0, self.halves - 1)))

    @rule()
    def read(self) -> None:
        self.read_everything()

    @precondition(lambda self: not self.ledger.is_new and self.ledger.halves.open_count)
    @rule(data=st.data())
    def set_aside(self, data: st.DataObject) -> None:
        """Set transactions aside; the broker writes op messages for them, too."""
        chosen = data.draw(st.sampled_from(is_open(self.ledger)))
        self.ops.append(chosen)
        self.ledger.close([chosen])

    @precondition(lambda self: not self.ledger.is_new and self.ledger.halves.open_count)
    @rule(data=st.data(), now_s=st.integers(1, 1000))
    def ask(self, data: st.DataObject, now_s: int) -> None:
        ask(self.ledger, {data.draw(st.sampled_from(is_open(self.ledger)))}, now_s)

    @precondition(lambda self: not self.ledger.is_new)
    @rule()
    def commit(self) -> None:
        low = self.ledger.halves.low_water
        self.marks = (low, self.ledger.ops.mark(low))

    @precondition(lambda self: not self.ledger.is_new)
    @rule(is_synced=st.booleans(), is_noted=st.booleans())
    def checkpoint(self, is_synced: bool, is_noted: bool) -> None:
        checkpoint = self.ledger.checkpoint()
        if is_synced:
            checkpoint.sync()
            if is_noted:
                self.ledger.note_synced(checkpoint)

    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        path, _, size = self.disk.last_write
        is_redo = "redolog" in path and path in self.disk.contents
        self.disk.crash(lost_bytes=data.draw(st.integers(0, size)) if is_redo else 0)
        self.ledger = open_ledger(self.disk)

    @rule()
    def lose_power(self) -> None:
        self.disk.lose_power()
        self.ledger = open_ledger(self.disk)

    @rule(folder=st.sampled_from(["statetable", "redolog"]))
    def lose_a_folder(self, folder: str) -> None:
        self.disk.remove_tree(f"{FOLDER}/{folder}")
        self.ledger = open_ledger(self.disk)

    @invariant()
    def positions_are_not_ahead_of_the_queues(self) -> None:
        assert self.ledger.halves.next <= self.halves
        assert self.ledger.ops.next <= len(self.ops)

    def teardown(self) -> None:
        """Check that reading the queues makes the ledger correct again."""
        self.read_everything()
        ledger = self.ledger
        assert is_open(ledger) == sorted(set(range(self.halves)) - set(self.ops))
        assert ledger.halves.open_count == len(is_open(ledger))
        low = ledger.halves.low_water
        mark = ledger.ops.mark(low)
        again = begun(MemoryDisk(), low, mark)
        again.add_halves([half(number) for number in range(low, self.halves)])
        again.read_ops([[one] for one in self.ops[mark:]])
        assert is_open(again) == is_open(ledger)


LedgerMachine.TestCase.settings = settings(
    max_examples=case_count(50, long=150), stateful_step_count=40, deadline=None
)
TestLedger = LedgerMachine.TestCase
