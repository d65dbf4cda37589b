# SPDX-License-Identifier: Apache-2.0
"""Queues are trimmed; no reader of any copy of the log finds the deleted messages again."""

import copy
from random import Random
from typing import Any, NamedTuple

import pytest

from cometmq.peers.long_forms import seeds
from cometmq.remoting.message.record import ScanStatus, scan_record
from cometmq.store.inspection.dump import dump_log, dump_queue
from cometmq.store.inspection.inspect import inspect_store
from cometmq.store.inspection.verification import StoreState
from cometmq.store.inspection.verify import verify_store
from cometmq.store.queues.floors import Floor, Floors
from cometmq.store.reads import finish
from cometmq.store.recovery.start import StartReason
from cometmq.store.results import GetStatus, PutStatus
from cometmq.store.writing.marks import trim_mark, trimmed_by
from cometmq.testing.store.builders import (
    START_MS,
    Events,
    StoreRig,
    make_message,
    records_of,
    small_settings,
)
from cometmq.testing.store.memory_disk import MemoryDisk

SETTINGS = small_settings(mapped_file_size_commit_log=1 << 16)
SMALL_LOG = small_settings(mapped_file_size_commit_log=4096)
FOREVER_MS = 1 << 60
QUEUES = 3
FLOORS = "/store/floors"


def opened(disk, *, settings=SETTINGS, **options):
    events = Events()
    return StoreRig(disk, settings, log=events, boot_id="boot", **options), events


def put(rig, body, queue_id=0, topic="T"):
    message = make_message(topic, queue_id, body, keys=f"key{body.decode()}")
    return rig.put(message)


def put_many(rig, count, **options):
    return [put(rig, b"%d" % number, **options) for number in range(count)]


def trim(rig, queue_offset, queue_id=0, topic="T"):
    results: list[Any] = []
    rig.store.trim_queue(topic, queue_id, queue_offset, results.append)
    return results[0].status if results else None


def held(store, topic="T"):
    """Return the first offset of each queue of a topic, and its messages."""
    found = {}
    for queue_id in range(store.reader.queue_count(topic)):
        first = store.reader.min_offset(topic, queue_id)
        if store.reader.max_offset(topic, queue_id):
            found[queue_id] = first, [it.body for it in records_of(store, topic, queue_id)]
    return found


def by_key(store, body, topic="T"):
    result = finish(store.reader.query(topic, f"key{body.decode()}", 32, 0, FOREVER_MS))
    return [record.body for record in result.records]


class Gone(NamedTuple):
    """A deleted message, and where its record and the end of its mark are."""

    body: bytes
    place: int
    mark_end: int


class History:
    """What topic T holds at each end of a log."""

    def __init__(self):
        self.steps: list[Any] = [(0, {})]
        self.gone: list[Gone] = []
        self.places: dict[bytes, int] = {}

    def change(self, end, change):
        now = copy.deepcopy(self.steps[-1][1])
        change(now)
        self.steps.append((end, now))

    def at(self, end):
        return [now for reached, now in self.steps if reached <= end][-1]

    def cut(self, end):
        self.steps = [step for step in self.steps if step[0] <= end]
        self.gone = [it for it in self.gone if it.mark_end <= end]

    def check(self, store):
        end = store.commit_log.confirm_offset
        assert held(store) == self.at(end)
        for it in self.gone:
            if it.mark_end <= end:
                assert by_key(store, it.body) == [], it
                assert finish(store.reader.read_record(it.place)) is None, it
                assert finish(store.reader.record_bytes(it.place)) is None, it


class Broker:
    """A store that is written to, trimmed, killed and opened again."""

    def __init__(self, seed, settings=SETTINGS):
        self.random = Random(seed)
        self.settings = settings
        self.disk = MemoryDisk()
        self.rig, self.events = opened(self.disk, settings=settings)
        self.history = History()
        self.number = 0

    @property
    def store(self):
        return self.rig.store

    @property
    def end(self):
        return self.store.commit_log.end

    def put(self):
        queue_id = self.random.randrange(QUEUES)
        self.number += 1
        body = b"%d" % self.number
        result = put(self.rig, body, queue_id)
        self.history.places[body] = result.physical_offset
        self.history.change(self.end, lambda now: now.setdefault(queue_id, (0, []))[1].append(body))

    def trim(self):
        queue_id = self.random.randrange(QUEUES)
        first, bodies = self.history.steps[-1][1].get(queue_id, (0, []))
        count = self.random.choice([0, len(bodies), self.random.randrange(len(bodies) + 1)])
        assert trim(self.rig, first + count, queue_id) is PutStatus.PUT_OK
        lost, rest = bodies[:count], bodies[count:]
        places = self.history.places
        self.history.gone += [Gone(body, places[body], self.end) for body in lost]
        if count:
            self.history.change(
                self.end, lambda now: now.__setitem__(queue_id, (first + count, rest))
            )

    def delete(self):
        self.store.delete_topic("T")
        self.history.change(self.end, lambda now: now.clear())

    def restart(self):
        kind = self.random.choice(["stop", "kill", "power", "queues", "floors"])
        if kind in {"stop", "queues"}:
            self.store.close()
        elif kind == "power":
            self.disk.lose_power()
        else:
            self.disk.crash()
        if kind == "queues":
            for path in [path for path in self.disk.contents if "/consumequeue/" in path]:
                self.disk.remove(path)
        if kind == "floors" and FLOORS in self.disk.contents:
            self.disk.contents[FLOORS][self.random.randrange(8)] ^= 1
        self.rig, self.events = opened(self.disk, settings=self.settings)
        self.history.cut(self.end)
        for event in ("log.damaged", "queues.rebuilt", "log.shortened"):
            assert kind == "queues" or self.events.of(event) == [], event

    def step(self):
        choice = self.random.random()
        if choice < 0.02:
            self.delete()
        elif choice < 0.15:
            self.trim()
        elif choice < 0.25:
            self.rig.work(self.random.randrange(1, 5))
        elif choice < 0.3:
            self.restart()
        else:
            self.put()


@seeds(20, long=80)
def test_a_store_agrees_with_lists_whatever_happens_to_it(seed):
    broker = Broker(seed)
    for _ in range(120):
        broker.step()
        broker.history.check(broker.store)
    broker.store.close()
    found = verify_store("/store", disk=broker.disk, settings=SETTINGS)
    assert found.state is StoreState.HEALTHY, found.findings


@seeds(15, long=60)
def test_a_follower_shows_the_queues_as_of_its_log(seed):
    broker = Broker(seed)
    random, master_log, disk = broker.random, broker.store.commit_log, MemoryDisk()
    rig, _ = opened(disk, has_copies=True)
    rig.store.write_state.role_writable = False
    broker.restart = lambda: None  # type: ignore[method-assign]
    for _ in range(80):
        broker.step()
        if random.random() < 0.3:
            start = rig.store.commit_log.end
            stop = start + random.randrange(broker.end - start + 1)
            rig.store.replica.append(start, master_log.read(start, stop - start))
            broker.history.check(rig.store)
        if random.random() < 0.2:
            rig.work(random.randrange(4))
        if random.random() < 0.2:
            disk.crash()
            rig, _ = opened(disk, has_copies=True)
            rig.store.write_state.role_writable = False
            broker.history.check(rig.store)
    rig.store.truncate(rig.store.commit_log.confirm_offset)  # promoted with the log that it has
    rig.store.publisher.confirm(None)
    rig.store.write_state.role_writable = True
    broker.history.check(rig.store)
    rig.store.close()
    assert verify_store("/store", disk=disk, settings=SETTINGS).state is StoreState.HEALTHY


def test_a_trimmed_queue_is_like_one_whose_messages_have_expired():
    rig, _ = opened(MemoryDisk())
    put_many(rig, 10)
    assert trim(rig, 4) is PutStatus.PUT_OK
    reader = rig.store.reader
    assert (reader.min_offset("T", 0), reader.max_offset("T", 0)) == (4, 10)
    result = reader.get_messages("T", 0, 3, 32)
    assert (result.status, result.next_offset) == (GetStatus.OFFSET_TOO_SMALL, 4)
    assert finish(reader.offset_by_time("T", 0, 0)) == 4
    assert finish(reader.earliest_store_time("T", 0)) >= START_MS
    assert finish(reader.place("T", 0, 3)) == -1


def test_a_queue_without_messages_left_goes_on_at_its_end():
    rig, _ = opened(MemoryDisk())
    put_many(rig, 10)
    trim(rig, 10)
    reader = rig.store.reader
    assert (reader.min_offset("T", 0), reader.max_offset("T", 0)) == (10, 10)
    assert reader.get_messages("T", 0, 10, 32).status is GetStatus.OFFSET_OVERFLOW_ONE
    assert finish(reader.offset_by_time("T", 0, START_MS)) == 10
    assert put(rig, b"next").queue_offset == 10
    assert held(rig.store) == {0: (10, [b"next"])}


def test_a_read_that_is_cached_is_not_repeated_after_a_trim():
    rig, _ = opened(MemoryDisk())
    put_many(rig, 10)
    for _ in range(3):
        rig.store.reader.get_messages("T", 0, 2, 4, joined=True)
    trim(rig, 5)
    result = rig.store.reader.get_messages("T", 0, 2, 4, joined=True)
    assert result.status is GetStatus.OFFSET_TOO_SMALL


@pytest.mark.parametrize("queue_offset", [0, 2])
def test_a_trim_that_deletes_nothing_leaves_no_mark(queue_offset):
    rig, _ = opened(MemoryDisk())
    put_many(rig, 5)
    trim(rig, 3)
    end = rig.store.commit_log.end
    assert trim(rig, queue_offset) is PutStatus.PUT_OK
    assert trim(rig, 3, topic="Unknown") is PutStatus.PUT_OK
    assert rig.store.commit_log.end == end
    assert trim(rig, 3) is PutStatus.PUT_OK  # repeated, because the first answer was an error
    assert rig.store.commit_log.end > end


def test_a_mark_is_visible_with_the_messages_before_it():
    """A consumer must not skip messages because of a trim that the next master does not know."""
    rig, _ = opened(MemoryDisk(), has_copies=True)
    put_many(rig, 5)
    border = rig.store.commit_log.end
    rig.store.writer.needs_replicas = True
    rig.store.publisher.confirm(border)
    assert trim(rig, 3) is None
    assert rig.store.reader.min_offset("T", 0) == 0
    rig.store.publisher.confirm(rig.store.commit_log.end)
    assert rig.store.reader.min_offset("T", 0) == 3


@pytest.mark.parametrize("works", [0, 3])
@pytest.mark.parametrize("is_confirmed", [False, True])
def test_a_former_master_takes_back_a_trim_that_its_successor_does_not_have(works, is_confirmed):
    disk = MemoryDisk()
    rig, _ = opened(disk, has_copies=True)
    put_many(rig, 40)
    rig.work(3)
    border, before = rig.store.commit_log.end, held(rig.store)
    rig.store.writer.needs_replicas = True
    rig.store.publisher.confirm(border)
    trim(rig, 30)
    if is_confirmed:  # an election that lost acknowledged messages
        rig.store.publisher.confirm(rig.store.commit_log.end)
        assert rig.store.reader.min_offset("T", 0) == 30
    rig.work(works)
    rig.store.write_state.role_writable = False
    rig.store.truncate(border)
    rig.store.publisher.confirm(border)
    assert held(rig.store) == before
    for _ in range(2):
        rig.work(3)
        disk.crash()
        rig, _ = opened(disk, has_copies=True)
        assert held(rig.store) == before


def test_a_trim_is_refused_while_the_store_refuses_messages():
    rig, _ = opened(MemoryDisk())
    put_many(rig, 5)
    rig.store.write_state.role_writable = False
    assert trim(rig, 3) is PutStatus.SERVICE_NOT_AVAILABLE
    rig.store.write_state.role_writable = True
    put(rig, b"next")
    assert held(rig.store)[0] == (0, [b"0", b"1", b"2", b"3", b"4", b"next"])


def test_floors_are_forgotten_when_the_log_has_expired():
    rig, _ = opened(MemoryDisk(), settings=SMALL_LOG)
    put_many(rig, 10)
    trim(rig, 8)
    put_many(rig, 200)
    rig.work(3)
    assert len(rig.store._parts.queues.floors) == 1
    disk = rig.store._parts.disk
    rig.store.upkeep.cleaner.ask()
    rig.clock.advance(1_000 * 3_600_000)
    rig.work(20)
    put(rig, b"next")
    rig.work(5)
    assert rig.store.commit_log.min_offset > 0
    assert len(rig.store._parts.queues.floors) == 0
    assert len(disk.contents[FLOORS]) == 4
    first = rig.store.reader.min_offset("T", 0)
    disk.crash()
    rig, _ = opened(disk, settings=SMALL_LOG)
    assert rig.store.reader.min_offset("T", 0) == first > 8


def test_another_program_between_two_runs_reveals_nothing():
    """It neither knows `progress`, nor the mark behind it."""
    disk = MemoryDisk()
    rig, _ = opened(disk)
    put_many(rig, 10)
    rig.work(3)
    trim(rig, 6)
    put_many(rig, 3, topic="U")
    before = held(rig.store)
    checkpoint = copy.copy(disk.contents["/store/checkpoint"])
    disk.crash()
    for at in range(2):  # times that are later than those in `progress`
        checkpoint[8 * at : 8 * at + 8] = (START_MS + 10_000_000).to_bytes(8, "big")
    disk.contents["/store/checkpoint"] = checkpoint
    rig, _ = opened(disk)
    rig.store.close()
    disk.remove("/store/progress")
    del disk.contents["/store/checkpoint"]
    rig, _ = opened(disk)
    assert rig.store.upkeep.recovered.start.reason is StartReason.QUEUE_END
    assert held(rig.store) == before


def test_a_floor_whose_mark_another_program_has_cut_off_is_void():
    disk = MemoryDisk()
    rig, _ = opened(disk)
    put_many(rig, 10)
    border = rig.store.commit_log.end
    trim(rig, 6)
    rig.store.close()
    disk.contents["/store/commitlog/00000000000000000000"][border:] = bytes((1 << 16) - border)
    disk.remove("/store/progress")
    rig, _ = opened(disk)
    assert held(rig.store)[0][0] == 0


def test_the_tools_for_a_folder_show_no_deleted_message():
    disk = MemoryDisk()
    rig, _ = opened(disk)
    put_many(rig, 10)
    rig.work(3)
    trim(rig, 4)
    rig.work(3)
    trim(rig, 6)  # behind the last checkpoint
    expected = [b"6", b"7", b"8", b"9"]
    options: dict[str, Any] = {"disk": disk, "settings": SETTINGS}
    for _ in range(2):
        assert [it.body for it in dump_log("/store", **options)] == expected
        assert [it.body for it in dump_queue("/store", "T", 0, **options)] == expected
        (queue,) = inspect_store("/store", **options).queues
        assert queue.min_offset == 6
        assert verify_store("/store", **options).findings == []
        disk.crash()


def test_a_topic_that_is_created_again_is_not_trimmed_by_the_old_floor():
    disk = MemoryDisk()
    rig, _ = opened(disk)
    olds = put_many(rig, 10)
    trim(rig, 8)
    rig.store.delete_topic("T")
    put_many(rig, 5)
    trim(rig, 2)
    for _ in range(3):
        assert held(rig.store) == {0: (2, [b"2", b"3", b"4"])}
        for old in olds[:8]:  # not even those behind the newest floor
            assert finish(rig.store.reader.read_record(old.physical_offset)) is None
        rig.work(3)
        disk.crash()
        rig, _ = opened(disk)


def test_floors_keep_only_what_hides_more():
    floors = Floors()
    for floor in (Floor(5, 100), Floor(3, 200), Floor(3, 150), Floor(4, 300)):
        floors.add("T", 0, floor)
    assert floors.of("T", 0) == (Floor(5, 100), Floor(4, 300))
    assert floors.hides("T", 0, 4, 99)
    assert not floors.hides("T", 0, 4, 100)
    assert not floors.hides("T", 1, 4, 99)


def test_no_flipped_byte_makes_a_mark_delete_other_messages():
    rig, _ = opened(MemoryDisk())
    put_many(rig, 1, topic="T1")
    start = rig.store.commit_log.end
    trim(rig, 1, topic="T1")
    data = bytearray(rig.store.commit_log.read(start, rig.store.commit_log.end - start))
    assert trimmed_by(scan_record(bytes(data), 0)) == ("T1", 0, Floor(1, start))
    for at in range(len(data)):
        for bit in range(8):
            data[at] ^= 1 << bit
            scan = scan_record(bytes(data), 0)
            data[at] ^= 1 << bit
            if scan.status is ScanStatus.RECORD:
                found = trimmed_by(scan)
                assert found is None or found[:2] == ("T1", 0), (at, bit)
                assert found is None or found.floor.queue_offset == 1, (at, bit)


def test_a_put_cannot_store_a_mark():
    rig, _ = opened(MemoryDisk())
    mark = trim_mark("T", 0, 5, 0)
    message = make_message("T", 0, b"")
    for name in ("queue_id", "sys_flag", "properties"):
        setattr(message, name, getattr(mark, name))
    assert rig.put(message).status is PutStatus.MESSAGE_ILLEGAL
