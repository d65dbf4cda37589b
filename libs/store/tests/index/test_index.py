# SPDX-License-Identifier: Apache-2.0
import random

import pytest

from cometmq.peers.long_forms import sampled
from cometmq.store import lookups
from cometmq.store.index.index import BACKLOG_COUNT_MAX, NATIVE_PER_ROW, ROWS_MAX
from cometmq.store.index.index_format import KeyedRows
from cometmq.store.index.index_slots import PAGE_SLOTS, SlotTable
from cometmq.store.inspection.verify import verify_store
from cometmq.store.reads import Pause, finish
from cometmq.testing.store.builders import SteppingClock, StoreRig, make_message, small_settings

SETTINGS = small_settings(
    mapped_file_size_commit_log=1 << 16, max_hash_slot_num=5 * PAGE_SLOTS + 7, max_index_num=500
)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    monkeypatch.setattr(SlotTable.step, "__defaults__", (1,))


def find(rig, key, topic="T", begin_ms=0, end_ms=1 << 62, count=64):
    found = finish(rig.store.reader.query(topic, key, count, begin_ms, end_ms)).records
    return [record.body for record in found]


def noting(lookup, held):
    """Note which amounts of memory a search reports."""
    try:
        read = next(lookup)
        while True:
            if isinstance(read, Pause):
                held.append(read.held_bytes)
            read = lookup.send((yield read))
    except StopIteration as end:
        return end.value


def fill(rig, numbers):
    for number in numbers:
        rig.put(make_message(body=b"%d" % number, keys=f"k{number} even" if number % 2 == 0
                             else f"k{number}", unique_key=f"U{number}"))  # fmt: skip


def check(rig, count):
    for number in range(count):
        assert find(rig, f"k{number}") == [b"%d" % number], number
        assert find(rig, f"U{number}") == [b"%d" % number], number


@sampled(3)
@pytest.mark.parametrize("rounds", range(1, 12))
def test_a_crash_within_a_sweep_loses_no_key(disk, rounds):
    rig = StoreRig(disk, SETTINGS)
    for start in range(0, 60, 10):
        fill(rig, range(start, start + 10))
        rig.work(rounds // 3)
    rig.work(rounds)
    fill(rig, range(60, 65))
    disk.crash()
    rig = StoreRig(disk, SETTINGS)
    check(rig, 65)
    rig.store.close()
    assert verify_store("/store", disk=disk, settings=SETTINGS).findings == []


@sampled(6)
@pytest.mark.parametrize("at", range(1, 30))
def test_a_failing_step_of_a_sweep_loses_no_key(disk, at):
    rig = StoreRig(disk, SETTINGS)
    fill(rig, range(20))
    rig.work(3)
    fill(rig, range(20, 40))
    calls = 0

    def fault(operation, path):
        nonlocal calls
        calls += operation == "write" and "/index/" in path
        return 28 if calls == at else 0

    disk.fault = fault
    for start in range(40, 60, 5):
        fill(rig, range(start, start + 5))
        rig.work(3)
    disk.fault = None
    rig.work(3)
    stored = rig.store.reader.max_offset("T", 0)
    disk.crash()
    rig = StoreRig(disk, SETTINGS)
    found = [find(rig, f"k{number}") for number in range(60)]
    assert sum(map(len, found)) == stored
    rig.store.close()
    assert verify_store("/store", disk=disk, settings=SETTINGS).findings == []


def test_a_power_loss_within_a_sweep_loses_no_key_that_was_flushed(disk):
    rig = StoreRig(disk, SETTINGS)
    for start in range(0, 60, 10):
        fill(rig, range(start, start + 10))
        rig.work(1)
    rig.work(2)
    fill(rig, range(60, 70))
    disk.lose_power()
    rig = StoreRig(disk, SETTINGS)
    check(rig, rig.store.reader.max_offset("T", 0))
    assert rig.store.reader.max_offset("T", 0) >= 60


def test_the_header_follows_when_a_sweep_has_ended(disk):
    rig = StoreRig(disk, SETTINGS)
    fill(rig, range(30))
    rig.work(2)
    (name,) = disk.names("/store/index")

    def counted():
        return int.from_bytes(disk.contents[f"/store/index/{name}"][36:40], "big")

    assert counted() == 1  # the first checkpoint records the begin time of the file
    for _ in range(12):
        rig.put(make_message())  # without keys: only triggers checkpoints
        rig.work(1)
    assert counted() == 1 + 30 + 30 + 15


def test_a_few_keys_are_counted_by_the_header_at_once(disk, monkeypatch):
    monkeypatch.undo()
    rig = StoreRig(disk, SETTINGS)
    (fill(rig, [1]), rig.work(3))
    (fill(rig, range(2, 30)), rig.work(3))
    (name,) = disk.names("/store/index")
    assert disk.contents[f"/store/index/{name}"][36:40] == (1 + 29 + 29 + 14).to_bytes(4, "big")


def test_files_roll_over_and_the_newest_comes_first(disk):
    rig = StoreRig(disk, small_settings())
    fill(rig, range(150))
    rig.work(3)
    assert len(disk.names("/store/index")) == 6
    assert find(rig, "even", count=3) == [b"144", b"146", b"148"]
    assert find(rig, "k0") == [b"0"]
    assert find(rig, "U149") == [b"149"]
    assert find(rig, "k0", topic="Other") == []


def test_a_range_of_time_bounds_a_query(disk):
    clock = SteppingClock()
    rig = StoreRig(disk, small_settings(), clock)
    times = []
    for number in range(100):
        times.append(clock.advance(700))
        rig.put(make_message(body=b"%d" % number, keys="same"))
    found = find(rig, "same", begin_ms=times[20], end_ms=times[30])
    assert found == [b"%d" % number for number in range(20, 31)]
    assert find(rig, "same", begin_ms=times[20] + 1, end_ms=times[21] - 1) == []
    assert find(rig, "same", begin_ms=times[99] + 1) == []


def test_a_query_reports_its_memory_and_ends_when_no_answer_can_hold_more(disk, monkeypatch):
    rig = StoreRig(disk, small_settings())
    for _ in range(20):
        rig.put(make_message(body=b"x" * 500, keys="same"))
    size = finish(rig.store.reader.query("T", "same", 1, 0, 1 << 62)).records[0].size
    monkeypatch.setattr(lookups, "QUERY_BYTES_MAX", 5 * size)
    lookup, held = rig.store.reader.query("T", "same", 64, 0, 1 << 62), list[int]()
    found = finish(noting(lookup, held)).records
    assert held == [size * count for count in range(1, 6)]
    assert len(found) == 6  # one more, so the answer is refused as too large


def test_hash_collisions_are_not_returned(disk):
    rig = StoreRig(disk, small_settings())
    rig.put(make_message(body=b"Aa", keys="Aa"))
    rig.put(make_message(body=b"BB", keys="BB"))  # has the same hash as Aa
    assert find(rig, "Aa") == [b"Aa"]
    assert find(rig, "BB") == [b"BB"]


def test_a_message_with_the_same_key_twice_is_found_once(disk):
    rig = StoreRig(disk, small_settings())
    rig.put(make_message(body=b"x", keys="k k", unique_key="k"))
    assert find(rig, "k") == [b"x"]
    rig.work(3)
    assert find(rig, "k") == [b"x"]


def test_without_an_index_nothing_is_found_and_nothing_is_made(disk):
    rig = StoreRig(disk, small_settings(message_index_enable=False))
    fill(rig, range(10))
    rig.work(3)
    assert find(rig, "k3") == []
    assert disk.names("/store/index") == []


def test_rollbacks_are_not_indexed_but_half_messages_are(disk):
    rig = StoreRig(disk, small_settings())
    rig.put(make_message(body=b"half", keys="h", sys_flag=0x4))
    rig.put(make_message(body=b"gone", keys="r", sys_flag=0xC))
    assert find(rig, "h") == [b"half"]
    assert find(rig, "r") == []


def test_random_keys_survive_random_stops(disk):
    chance = random.Random(7)
    rig = StoreRig(disk, SETTINGS)
    count = 0
    for _ in range(60):
        step = chance.randrange(12)
        fill(rig, range(count, count + step))
        count += step
        rig.work(chance.randrange(3))
        if chance.random() < 0.2:
            disk.crash()
            rig = StoreRig(disk, SETTINGS)
        elif chance.random() < 0.1:
            rig.store.close()
            rig = StoreRig(disk, SETTINGS)
    check(rig, count)
    rig.store.close()
    assert verify_store("/store", disk=disk, settings=SETTINGS).findings == []


LONG = small_settings(
    mapped_file_size_commit_log=1 << 20, max_hash_slot_num=5 * PAGE_SLOTS, max_index_num=200_000
)


@pytest.fixture
def linked(monkeypatch):
    """Return the number of keys that each step has linked."""
    counts: list[int] = []
    link = KeyedRows.link

    def counted(rows, start, count, *args):
        counts.append(count)
        return link(rows, start, count, *args)

    monkeypatch.setattr(KeyedRows, "link", counted)
    return counts


def test_a_message_with_thousands_of_keys_is_indexed_in_steps(disk, linked):
    rig = StoreRig(disk, LONG)
    keys = [f"{number:x}" for number in range(6_700)]
    rig.put(make_message(body=b"long", keys=" ".join(keys)))
    rig.put(make_message(body=b"after", keys="1"))
    while rig.store.upkeep.index.is_behind:
        assert find(rig, "1a2b") == [b"long"]
        rig.store.upkeep.indexing.add_more()
    assert max(linked) <= ROWS_MAX
    assert sum(linked) >= len(keys)
    assert sorted(find(rig, "1")) == [b"after", b"long"]
    assert find(rig, "1a2b") == [b"long"]


def test_keys_that_come_faster_than_they_are_indexed_do_not_pile_up(disk, linked):
    rig = StoreRig(disk, LONG)
    keys = " ".join(f"{number:x}" for number in range(6_700))
    for number in range(1, 25):
        rig.put(make_message(body=b"%d" % number, keys=keys))
        assert number * 6_700 - sum(linked) <= BACKLOG_COUNT_MAX + 6_700
    assert max(linked) <= 6_700
    while rig.store.upkeep.index.is_behind:
        rig.store.upkeep.indexing.add_more()
    assert len(find(rig, "77")) == 24


def test_a_queue_of_keys_that_never_empties_releases_what_is_indexed(disk):
    rig = StoreRig(disk, LONG)
    for number in range(60):
        rig.put(make_message(keys=" ".join(f"{number}-{at}" for at in range(2_000))))
        rig.put(make_message(keys=" ".join(f"{number}+{at}" for at in range(100))))
    waiting = rig.store._parts.index._backlog
    assert sum(keys.count for keys in waiting) <= 60 * 100 + 2 * ROWS_MAX


class Hashed:
    """Keys as from a native message path."""

    def __init__(self, rows):
        keys = KeyedRows(rows)
        self.count, self.offset, self.timestamp = keys.count, keys.offset, keys.timestamp
        self.find, self.link, self.absorb = keys.find, keys.link, keys.absorb


def test_native_keys_are_indexed_in_steps_too(disk, linked):
    index = StoreRig(disk, LONG).store._parts.index
    index.remember([Hashed([("T", f"{number:x}", number, 1) for number in range(60_000)])])
    while not index.catch_up(ROWS_MAX):
        pass
    assert linked == [*[ROWS_MAX * NATIVE_PER_ROW] * 3, 60_000 - 3 * ROWS_MAX * NATIVE_PER_ROW]


def test_native_keys_that_come_fast_are_not_all_indexed_at_once(disk, linked, monkeypatch):
    """A batch added eight times as many as it brought: all that were queued, in 100 ms."""
    monkeypatch.setattr("cometmq.store.index.index.ROWS_MAX", 100)
    monkeypatch.setattr("cometmq.store.index.index.BACKLOG_COUNT_MAX", 4_000)
    index = StoreRig(disk, LONG).store._parts.index
    for start in range(0, 24_000, 3_000):
        linked.clear()
        index.remember([Hashed([("T", f"{key:x}", key, 1) for key in range(start, start + 3_000)])])
        assert sum(linked) <= 3_000
    assert index._backlog_count <= 4_000 + 3_000
