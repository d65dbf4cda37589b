# SPDX-License-Identifier: Apache-2.0
"""Index files that change on the disk are found by comparing them with the log, and rebuilt."""

import random
from typing import Any

import msgspec
import pytest

from cometmq.peers.long_forms import sampled, seeds
from cometmq.store.index.index_format import HEADER, IndexShape
from cometmq.store.inspection.verification import StoreState
from cometmq.store.inspection.verify import verify_store
from cometmq.store.reads import finish
from cometmq.store.upkeep import index_check, index_rebuild
from cometmq.testing.store.builders import Events, StoreRig, make_message, small_settings

SETTINGS = small_settings(
    mapped_file_size_commit_log=1 << 18,
    max_hash_slot_num=3_000,
    max_index_num=500,
    log_scrub_rate_max=64 << 20,
)
SHAPE = IndexShape(SETTINGS.max_hash_slot_num, SETTINGS.max_index_num)
COUNT = 480
ROUND_MS = 200 * 3_600_000


@pytest.fixture
def events():
    return Events()


def fill(rig, numbers):
    for number in numbers:
        keys = f"k{number} even" if number % 2 == 0 else f"k{number}"
        rig.clock.advance(700)
        rig.put(make_message(body=b"%300d" % number, keys=keys, unique_key=f"U{number}"))


def filled(disk, events, count=COUNT, settings=SETTINGS, **options):
    """Return a store with two full index files of 499 entries, and one that grows."""
    rig = StoreRig(disk, settings, log=events, **options)
    fill(rig, range(count))
    rig.work(3)
    return rig


def reopened(disk, events, rig, settings=SETTINGS):
    rig.store.close()
    rig = StoreRig(disk, settings, rig.clock, log=events)
    rig.work(3)
    return rig


def find(rig, key):
    found = finish(rig.store.reader.query("T", key, 64, 0, 1 << 62)).records
    return [record.body for record in found]


def lacking(rig, numbers=range(COUNT)):
    """Return the messages that one of their keys does not find."""
    return [
        number
        for number in numbers
        if not find(rig, f"k{number}") == find(rig, f"U{number}") == [b"%300d" % number]
    ]


def repair(rig):
    """Run the scrubber and checkpoints until damaged files are rebuilt."""
    for _ in range(4):
        rig.work(2)
        rig.scrub(6, elapsed_ms=500)


def walk(rig):
    """Run one round of the scrubber."""
    rig.clock.advance(ROUND_MS)
    rig.scrub()
    repair(rig)


def paths(disk):
    return [f"/store/index/{name}" for name in disk.names("/store/index")]


def contents(disk, at):
    return disk.contents[paths(disk)[at]]


def entry_at(number):
    return SHAPE.entry_position(number)


def slot_used(data, at):
    """Return the position of a slot that is not empty, in the middle of the file."""
    slots = memoryview(bytes(data[HEADER.size : SHAPE.entry_position(0)]))
    used = [at for at in range(0, len(slots), 4) if any(slots[at : at + 4])]
    return HEADER.size + used[len(used) // 3 * at]


DAMAGE = {
    "hash": lambda data: [(entry_at(77) + 2, 1)],
    "offset": lambda data: [(entry_at(77) + 9, 1)],
    "high offset": lambda data: [(entry_at(77) + 5, 1)],
    "negative offset": lambda data: [(entry_at(77) + 4, 1)],
    "seconds": lambda data: [(entry_at(77) + 14, 1)],
    "negative seconds": lambda data: [(entry_at(77) + 12, 1)],
    "previous": lambda data: [(entry_at(77) + 18, 1)],
    "first entry": lambda data: [(entry_at(1), 20)],
    "last entry": lambda data: [(entry_at(100), 20)],
    "slot": lambda data: [(slot_used(data, 1), 4)],
    "slots": lambda data: [(HEADER.size + 4_056, 4_096)],
    "all slots": lambda data: [(HEADER.size, 12_000)],
    "entries": lambda data: [(entry_at(5), 1_700)],
    "all entries": lambda data: [(entry_at(1), 10_000)],
    "header": lambda data: [(0, 32)],
    "begin time": lambda data: [(3, 1)],
    "end time": lambda data: [(11, 1)],
    "begin offset": lambda data: [(18, 1)],
    "end offset": lambda data: [(26, 1)],
    "all": lambda data: [(0, len(data))],
}


def meaning(data):
    """Return the bytes without entry 0 and the number of used slots, which nothing reads."""
    return bytes(data[:32] + data[36 : entry_at(0)] + data[entry_at(1) :])


def damage(data, kind, way):
    end = len(bytes(data).rstrip(b"\0"))
    for start, count in DAMAGE[kind](data):
        stop = min(start + count, end)
        old = bytes(data[start:stop])
        data[start:stop] = bytes(byte ^ 0x80 if way == "flipped" else 0 for byte in old)


@sampled(30)
@pytest.mark.parametrize("stop", ["running", "stopped", "killed"])
@pytest.mark.parametrize("way", ["zeros", "flipped"])
@pytest.mark.parametrize("at", [0, 1, -1], ids=["full", "second", "growing"])
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_walk_rebuilds_what_has_changed_on_the_disk(disk, events, kind, at, way, stop):
    rig = filled(disk, events)
    if stop == "running":
        rig = reopened(disk, events, rig)
    elif stop == "stopped":
        rig.store.close()
    else:
        disk.crash()
    if (kind, at, stop) == ("slot", -1, "killed"):
        return  # no slot is on the disk yet
    path = paths(disk)[at]
    whole = bytes(disk.contents[path])
    damage(disk.contents[path], kind, way)
    if disk.contents[path] == whole:
        assert way == "zeros", "they were zeros before"
        return
    if stop != "running":
        rig = StoreRig(disk, SETTINGS, rig.clock, log=events)
        rig.work(3)
    walk(rig)
    assert lacking(rig) == []
    assert len(find(rig, "even")) == 64
    damaged_count = len(events.of("index.damaged"))
    assert damaged_count == len(events.of("index.repaired")) == 1 or stop != "running"
    fill(rig, range(COUNT, COUNT + 50))
    rig = reopened(disk, events, rig)
    walk(rig)
    assert lacking(rig, range(COUNT + 50)) == []
    assert len(events.of("index.damaged")) == damaged_count
    if stop == "running":
        assert meaning(disk.contents[path]) == meaning(whole)
    rig.store.close()
    assert verify_store("/store", disk=disk, settings=SETTINGS).state is StoreState.HEALTHY


def alarms(events):
    return [line for line in events.lines if line[0].startswith("index.")]


def live(rig):
    """Return the numbers of the messages that are still in the log."""
    low, high = rig.store.reader.min_offset("T", 0), rig.store.reader.max_offset("T", 0)
    return range(low, high)


class History:
    """What may happen to a store, by chance."""

    def __init__(self, disk, events, seed):
        self.chance = random.Random(seed)
        self.disk, self.events = disk, events
        self.settings = SETTINGS
        self.rig = StoreRig(disk, SETTINGS, log=events)
        self.count = 0

    def put(self):
        for _ in range(self.chance.randrange(60)):
            number, kind = self.count, self.chance.randrange(10)
            keys = [f"k{number}", *(f"c{self.chance.randrange(9)}" for _ in range(kind % 4))]
            self.rig.clock.advance(self.chance.choice([0, 300, 5_000, -2_000]))
            flag = {8: 0x4, 9: 0xC}.get(kind, 0)
            body = bytes(self.chance.randrange(900))
            self.rig.put(make_message(body=body, keys=" ".join(keys), sys_flag=flag))
            self.count += 1

    def work(self):
        self.rig.work(self.chance.randrange(4))

    def walk(self):
        walk(self.rig)

    def open(self):
        self.rig = StoreRig(self.disk, self.settings, self.rig.clock, log=self.events)

    def restart(self):
        self.rig.store.close()
        self.open()

    def kill(self):
        self.disk.crash()
        self.open()

    def turn_index(self):
        self.rig.store.close()
        is_on = self.settings.message_index_enable
        self.settings = msgspec.structs.replace(self.settings, message_index_enable=not is_on)
        self.open()

    def lose_power(self):
        self.rig.work(2)
        self.put()
        self.disk.lose_power()
        self.open()

    def delete(self):
        self.rig.store.delete_topic("T")

    def expire(self):
        self.rig.store.upkeep.cleaner.ask()
        self.rig.clock.advance(self.chance.choice([3_600_000, 80 * 3_600_000]))
        self.rig.work(3)


HISTORY = [
    *[History.put] * 10, *[History.work] * 6, *[History.walk] * 4, History.restart, History.kill,
    History.lose_power, History.delete, History.expire, History.turn_index,
]  # fmt: skip


@seeds(10, long=60)
def test_a_walk_finds_nothing_in_an_intact_index(disk, events, seed, monkeypatch):
    monkeypatch.setattr(index_check, "PART_COUNT", 7 + 9 * seed)
    history = History(disk, events, seed)
    for _ in range(60):
        history.chance.choice(HISTORY)(history)
        assert alarms(events) == []
    history.walk()
    assert alarms(events) == []


@sampled(3)
@pytest.mark.parametrize("kind", ["entries", "hash", "previous", "negative seconds"])
@pytest.mark.parametrize("at", [0, -1], ids=["full", "growing"])
def test_a_reader_that_finds_damage_has_the_file_rebuilt_at_once(disk, events, kind, at):
    rig = reopened(disk, events, filled(disk, events))
    walk(rig)
    damage(contents(disk, at), kind, "flipped")
    lacking(rig)
    repair(rig)
    assert lacking(rig) == []
    assert len(events.of("index.damaged")) == 1
    assert rig.store.stats().repaired_index_count == len(events.of("index.repaired")) == 1


@sampled(2)
@pytest.mark.parametrize("at", [0, 1, -1], ids=["full", "second", "growing"])
def test_a_rebuild_takes_as_many_steps_as_it_needs(disk, events, monkeypatch, at):
    monkeypatch.setattr(index_rebuild, "PART_BYTES", 5_000)
    monkeypatch.setattr(index_rebuild, "STEP_MS", 0)
    rig = reopened(disk, events, filled(disk, events))
    damage(contents(disk, at), "entries", "zeros")
    rig.clock.advance(ROUND_MS)
    rig.scrub(3)
    assert lacking(rig) != []
    for number in range(60):
        fill(rig, [COUNT + number])
        rig.work(1)
        rig.scrub(1, elapsed_ms=500)
    assert lacking(rig, range(COUNT + 60)) == []


def refuse(operation, path):
    """Refuse the files of a rebuild, and the file that takes new keys meanwhile."""
    is_new = "/.index-" in path or (operation == "create" and "/index/" in path)
    return 28 * (operation in {"write", "create"} and is_new)


@pytest.mark.parametrize("at", [0, -1], ids=["full", "growing"])
def test_a_disk_that_refuses_the_repair_is_reported(disk, events, at):
    rig = reopened(disk, events, filled(disk, events))
    path = paths(disk)[at]
    damage(disk.contents[path], "entries", "zeros")
    disk.fault = refuse
    walk(rig)
    assert [it["path"] for it in events.of("index.unrepaired")] == [path]
    assert events.of("index.repaired") == []
    disk.fault = None
    walk(rig)
    assert lacking(rig) == []


def test_entries_of_damaged_records_stay_as_they_are(disk, events):
    """Another member of a broker group may have the right bytes of the log."""
    rig = reopened(disk, events, filled(disk, events))
    whole = bytes(contents(disk, 0))
    entry = rig.entry("T", 0, 20)
    log = disk.contents["/store/commitlog/" + "0" * 20]
    at = log.index(b"U20", entry.physical_offset)
    log[at] ^= 1
    log[log.index(b"U25", entry.physical_offset) - 40] ^= 1
    log[rig.entry("T", 0, 30).physical_offset + 5] ^= 1  # no record begins there
    walk(rig)
    assert len(events.of("log.damaged")) == 1
    assert bytes(contents(disk, 0)) == whole
    assert alarms(events) == []
    contents(disk, 0)[entry_at(200)] ^= 1
    walk(rig)
    assert len(events.of("index.repaired")) == 1
    assert meaning(contents(disk, 0)) == meaning(whole)


@sampled(4)
@pytest.mark.parametrize("kind", [kind for kind in DAMAGE if kind not in {"all", "all entries"}])
def test_a_file_whose_first_records_have_expired_is_repaired(disk, events, kind):
    settings = msgspec.structs.replace(SETTINGS, mapped_file_size_commit_log=93_000)
    rig = reopened(disk, events, filled(disk, events, 430, settings), settings)
    rig.clock.advance(80 * 3_600_000)
    fill(rig, range(430, 730))
    rig.work(3)
    rig.store.upkeep.cleaner.ask()
    rig.work(5)
    data = contents(disk, 0)
    expired_count = sum(
        SHAPE.entry(disk.open(paths(disk)[0]), at)[1] < 93_000 for at in range(1, 500)
    )
    assert 20 < expired_count < 70
    damage(data, kind, "flipped")
    walk(rig)
    rig = reopened(disk, events, rig, settings)
    assert lacking(rig, live(rig)) == []


def test_a_file_that_cannot_be_repaired_is_not_compared_again_at_once(disk, events):
    rig = reopened(disk, events, filled(disk, events))
    walk(rig)
    damage(contents(disk, 0), "entries", "zeros")
    disk.fault = refuse
    for _ in range(3):
        assert lacking(rig) != []
        repair(rig)
    disk.fault = None
    assert len(events.of("index.unrepaired")) == 1
    assert lacking(rig) != []
    walk(rig)
    assert lacking(rig) == []


@sampled(3)
@pytest.mark.parametrize("source", [5, 140, 145, 150, 152, 158, 300])  # some overlap their place
@pytest.mark.parametrize("at", [0, -1], ids=["full", "growing"])
def test_entries_that_belong_elsewhere_are_replaced(disk, events, source, at):
    rig = reopened(disk, events, filled(disk, events))
    path = paths(disk)[at]
    data = disk.contents[path]
    whole = bytes(data)
    end = 160 if at == 0 else COUNT * 5 // 2 - 2 * (SETTINGS.max_index_num - 1) + 1
    data[entry_at(end - 9) : entry_at(end)] = data[entry_at(source) : entry_at(source + 9)]
    if data == whole:
        return  # these entries are the last ones
    assert lacking(rig)
    walk(rig)
    assert lacking(rig) == []
    rig.store.close()
    assert meaning(disk.contents[path]) == meaning(whole)


def test_a_rebuild_ends_nothing_after_a_truncation(disk, events):
    """The keys that it has read may belong to other records by now."""
    rig = filled(disk, events)
    index = rig.store.upkeep.scrubber.walks.index
    suspect = rig.store.upkeep.index.files[1]
    suspect.fault = "a test"
    step = index.urgent_step()
    assert step is not None
    rig.store.truncate(rig.entry("T", 0, 250).physical_offset)
    fill(rig, range(250, COUNT))
    rig.work(3)
    before = [bytes(disk.contents[path]) for path in paths(disk)]
    for _ in range(5):
        step.run()
        step.done(None)
    assert [bytes(disk.contents[path]) for path in paths(disk)] == before
    repair(rig)
    walk(rig)
    assert lacking(rig) == []


def test_keys_that_do_not_fit_get_another_file(disk, events):
    """Indexing was turned off for a while: the log has more keys than the file."""
    rig = filled(disk, events, 100)
    rig.store.close()
    off = msgspec.structs.replace(SETTINGS, message_index_enable=False)
    rig = StoreRig(disk, off, rig.clock, log=events)
    fill(rig, range(100, 300))
    rig.store.close()
    rig = StoreRig(disk, SETTINGS, rig.clock, log=events)
    rig.clock.advance(60_000)
    fill(rig, range(300, COUNT))
    rig.work(3)
    walk(rig)
    assert alarms(events) == []
    damage(contents(disk, 0), "hash", "flipped")
    walk(rig)
    assert lacking(rig) == []
    rig.store.close()
    assert verify_store("/store", disk=disk, settings=SETTINGS).state is StoreState.HEALTHY


def put_as_rocketmq_5(rig, number):
    """Put a message whose tag is indexed after its keys; every seventh has only a tag."""
    tag = ("a", "b", None)[number % 3] if number % 7 else "c"
    keys: dict[str, Any] = {"keys": f"k{number}", "unique_key": f"U{number}"} if number % 7 else {}
    message = make_message(body=b"%300d" % number, tags=tag, **keys)
    rig.clock.advance(700)
    indexed = (*message.keys, *([f"T#{tag}"] if tag else ()))
    rig.put(msgspec.structs.replace(message, keys=indexed))


def filled_as_rocketmq_5(disk, events):
    rig = StoreRig(disk, SETTINGS, log=events)
    for begin in range(0, 400, 100):  # both brokers have written in turn
        for number in range(begin, begin + 60):
            put_as_rocketmq_5(rig, number)
        fill(rig, range(begin + 60, begin + 100))
    rig.work(3)
    return reopened(disk, events, rig)


WITH_KEYS = [number for number in range(400) if number % 100 >= 60 or number % 7]


def test_tags_that_rocketmq_5_has_indexed_are_intact(disk, events):
    rig = filled_as_rocketmq_5(disk, events)
    before = [bytes(disk.contents[path]) for path in paths(disk)]
    walk(rig)
    walk(rig)
    assert [bytes(disk.contents[path]) for path in paths(disk)] == before
    assert alarms(events) == []
    rig.store.close()
    report = verify_store("/store", disk=disk, settings=SETTINGS)
    assert report.state is StoreState.HEALTHY
    assert list(report.findings) == []


@sampled(3)
@pytest.mark.parametrize("kind", ["hash", "offset", "first entry", "entries", "slots"])
def test_damage_among_indexed_tags_is_repaired(disk, events, kind):
    rig = filled_as_rocketmq_5(disk, events)
    damage(contents(disk, 0), kind, "flipped")
    walk(rig)
    assert lacking(rig, WITH_KEYS) == []
    events.lines.clear()
    walk(rig)
    assert alarms(events) == []
