# SPDX-License-Identifier: Apache-2.0
"""A topic is deleted and created again on a master; each copy of its log shows the same topic."""

from random import Random
from typing import Any
from zlib import crc32

import pytest

from cometmq.peers.long_forms import sampled, seeds
from cometmq.remoting.message.record import ScanStatus, scan_record
from cometmq.store.inspection.verification import StoreState
from cometmq.store.inspection.verify import verify_store
from cometmq.store.results import PutStatus
from cometmq.store.writing.marks import deletion_mark, is_deletion
from cometmq.testing.store.builders import (
    Events,
    StoreRig,
    make_message,
    records_of,
    small_settings,
)
from cometmq.testing.store.memory_disk import MemoryDisk

SETTINGS = small_settings(mapped_file_size_commit_log=1 << 16)
QUEUES = 3


def opened(disk, **options):
    events = Events()
    return StoreRig(disk, SETTINGS, log=events, boot_id="boot", has_copies=True, **options), events


def put(rig, topic, queue_id, body):
    rig.store.writer.put(make_message(topic, queue_id, body), lambda _: None)
    rig.store.writer.commit()


def bodies(store, topic="T"):
    """Return the messages of each queue of a topic."""
    queues = range(store.reader.queue_count(topic))
    found = {it: [record.body for record in records_of(store, topic, it)] for it in queues}
    return {queue_id: queue for queue_id, queue in found.items() if queue}


class Master:
    """A master whose topic T is deleted and created again, now and then."""

    def __init__(self, random=None):
        self.disk = MemoryDisk()
        self.rig, _ = opened(self.disk)
        self.random = random or Random(1)
        self.number = 0
        self.history: list[Any] = [(0, {})]
        """The end of the log after each step, and what the topic holds then."""

    def put(self, queue_id):
        self.number += 1
        body = b"%d" % self.number
        put(self.rig, "T", queue_id, body)
        held = {key: list(value) for key, value in self.history[-1][1].items()}
        held.setdefault(queue_id, []).append(body)
        self.history.append((self.end, held))

    def delete(self):
        self.rig.store.delete_topic("T")
        self.history.append((self.end, {}))

    def step(self):
        choice = self.random.random()
        if choice < 0.1:
            self.delete()
        elif choice < 0.2:
            put(self.rig, "U", 0, b"other")
        elif choice < 0.3:
            self.rig.work(self.random.randrange(1, 4))
        else:
            self.put(self.random.randrange(QUEUES))

    @property
    def end(self):
        return self.rig.store.commit_log.end

    def log(self, start, end):
        return self.rig.store.commit_log.read(start, end - start)

    def held_at(self, end):
        """Return what the topic holds if the log ends at this offset."""
        return [held for reached, held in self.history if reached <= end][-1]


def follower(disk=None):
    disk = disk or MemoryDisk()
    rig, events = opened(disk)
    rig.store.write_state.role_writable = False
    return rig, events, disk


def check_quiet(events):
    for event in ("log.damaged", "queues.rebuilt", "log.shortened"):
        assert events.of(event) == [], event


@seeds(20, long=60)
def test_a_follower_that_is_killed_at_any_moment_shows_the_topic_as_of_its_log(seed):
    random = Random(seed)
    master = Master(random)
    rig, events, disk = follower()
    for _ in range(80):
        master.step()
        if random.random() < 0.3:
            start = rig.store.commit_log.end
            stop = start + random.randrange(master.end - start + 1)
            rig.store.replica.append(start, master.log(start, stop))
            assert bodies(rig.store) == master.held_at(rig.store.commit_log.confirm_offset)
        if random.random() < 0.2:
            rig.work(random.randrange(4))
        if random.random() < 0.2:
            disk.crash()
            rig, events, _ = follower(disk)
            check_quiet(events)
            assert bodies(rig.store) == master.held_at(rig.store.commit_log.confirm_offset)
    end = rig.store.commit_log.end
    if random.random() < 0.5:  # promoted with the log that it has
        rig.store.truncate(rig.store.commit_log.confirm_offset)
        rig.store.publisher.confirm(None)
        rig.store.write_state.role_writable = True
        held = master.held_at(rig.store.commit_log.confirm_offset)
    else:
        rig.store.replica.append(end, master.log(end, master.end))
        held = master.held_at(master.end)
    assert bodies(rig.store) == held
    rig.store.close()
    assert verify_store("/store", disk=disk, settings=SETTINGS).state is StoreState.HEALTHY


@pytest.mark.parametrize("seed", range(20))
def test_queues_that_are_rebuilt_from_the_log_show_the_newest_topic(seed):
    master = Master(Random(seed))
    for _ in range(80):
        master.step()
    master.rig.store.close()
    for path in [path for path in master.disk.contents if "/consumequeue/" in path]:
        master.disk.remove(path)
    rig, _ = opened(master.disk)
    assert bodies(rig.store) == master.held_at(master.end)


@sampled(3)
@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("works", [0, 3])
@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_master_that_alone_deleted_a_topic_gets_it_back(is_made_again, works, is_killed):
    """The next master never saw the deletion, which was not acknowledged."""
    master = Master()
    rig = master.rig
    for number in range(40):
        put(rig, "T", number % QUEUES, b"%d" % number)
    rig.work(3)
    held, border = bodies(rig.store), rig.store.commit_log.end
    rig.store.writer.needs_replicas = True
    rig.store.publisher.confirm(border)
    results: list[Any] = []
    rig.store.delete_topic("T", results.append)
    assert bodies(rig.store) == {}
    if is_made_again:
        put(rig, "T", 0, b"new")
    rig.work(works)
    if is_killed:
        master.disk.crash()
        rig, _ = opened(master.disk)
        rig.store.publisher.confirm(border)
    rig.store.write_state.role_writable = False
    rig.store.truncate(border)
    rig.store.publisher.confirm(border)
    assert bodies(rig.store) == held
    assert PutStatus.PUT_OK not in [it.status for it in results]
    for _ in range(2):
        rig.work(3)
        master.disk.crash()
        rig, events = opened(master.disk)
        check_quiet(events)
        assert bodies(rig.store) == held


def test_a_copy_whose_host_crashed_before_the_mark_was_synced_keeps_the_topic():
    disk = MemoryDisk()
    rig, _ = opened(disk)
    put(rig, "T", 1, b"old")
    rig.work(5)
    held = bodies(rig.store)
    rig.store.writer.needs_replicas = True
    rig.store.publisher.confirm(rig.store.commit_log.end)
    rig.store.delete_topic("T")
    disk.durable["/store/deletions"] = bytes(disk.contents["/store/deletions"])
    disk.lose_power()
    rig, _ = opened(disk)
    assert bodies(rig.store) == held


def test_a_refused_mark_keeps_the_queues_of_a_group():
    rig, _ = opened(MemoryDisk())
    put(rig, "T", 0, b"old")
    rig.store.writer.needs_replicas = True
    rig.store.write_state.role_writable = False
    results: list[Any] = []
    assert rig.store.delete_topic("T", results.append) is None
    assert [it.status for it in results] == [PutStatus.SERVICE_NOT_AVAILABLE]
    assert bodies(rig.store) == {0: [b"old"]}


def test_the_deletion_of_an_unknown_topic_leaves_no_mark():
    rig, _ = opened(MemoryDisk())
    put(rig, "U", 0, b"other")
    end = rig.store.commit_log.end
    results: list[Any] = []
    rig.store.delete_topic("T", results.append)
    assert [it.status for it in results] == [PutStatus.PUT_OK]
    assert rig.store.commit_log.end == end
    rig.store.delete_topic("U")
    rig.store.delete_topic("U")  # repeated, because the first answer was an error
    assert rig.store.commit_log.end > end


def mark_of(topic):
    rig, _ = opened(MemoryDisk())
    put(rig, topic, 0, b"")
    start = rig.store.commit_log.end
    rig.store.delete_topic(topic)
    return bytearray(rig.store.commit_log.read(start, rig.store.commit_log.end - start))


def test_no_flipped_byte_makes_a_mark_delete_another_topic():
    data = mark_of("T1")
    assert is_deletion(scan_record(bytes(data), 0))
    for at in range(len(data)):
        for bit in range(8):
            data[at] ^= 1 << bit
            scan = scan_record(bytes(data), 0)
            data[at] ^= 1 << bit
            if scan.status is ScanStatus.RECORD and is_deletion(scan):
                assert scan.topic == "T1", (at, bit)


def test_a_put_cannot_store_a_mark():
    rig, _ = opened(MemoryDisk())
    mark = deletion_mark("T", 0)
    message = make_message("T", 0, b"")
    for name in ("queue_id", "sys_flag", "properties"):
        setattr(message, name, getattr(mark, name))
    assert rig.put(message).status is PutStatus.MESSAGE_ILLEGAL
    assert crc32(mark.body) == 0


def test_a_store_in_use_is_sound_while_its_topic_has_just_been_deleted():
    disk = MemoryDisk()
    rig, _ = opened(disk)
    for number in range(10):
        put(rig, "T", number % QUEUES, b"old")
    rig.work(4)
    disk.contents["/store/config/topics.json"] = bytearray(b'{"topicConfigTable": {"T": {}}}')
    rig.store.delete_topic("T")
    put(rig, "T", 0, b"new")
    (job,) = rig.store.jobs(rig.clock.advance(1))
    assert job.name == "remove"
    job.run()
    assert verify_store("/store", disk=disk, settings=SETTINGS).findings == []
    job.done(None)
    assert verify_store("/store", disk=disk, settings=SETTINGS).findings == []
    rig.work(4)
    assert verify_store("/store", disk=disk, settings=SETTINGS).findings == []
