# SPDX-License-Identifier: Apache-2.0
"""A topic is deleted and created again, and the broker is killed before the next checkpoint."""

import copy
import errno
from typing import Any

import pytest

from cometmq.peers.long_forms import sampled
from cometmq.store.queues.deletions import FILE_BYTES, Deletion, decode
from cometmq.store.recovery.start import StartReason
from cometmq.testing.store.builders import Events, StoreRig, make_message, small_settings
from cometmq.testing.store.memory_disk import MemoryDisk

SETTINGS = small_settings(mapped_file_size_commit_log=1 << 16)
NOTES = "/store/deletions"


def opened(disk, *, settings=SETTINGS, **options):
    events = Events()
    return StoreRig(disk, settings, log=events, boot_id="boot", **options), events


def put(rig, *bodies, topic="T", queue_id=0):
    return [rig.put(make_message(topic, queue_id, body)).queue_offset for body in bodies]


def olds(count):
    return [b"old %d" % number for number in range(count)]


def check_start(events):
    assert events.of("log.damaged") == events.of("log.truncated") == []
    assert events.of("queues.rebuilt") == []


@sampled(8)
@pytest.mark.parametrize("is_saved", [True, False], ids=["saved", "unsaved"])
@pytest.mark.parametrize("old_count", [1, 2, 5, 30])
@pytest.mark.parametrize("new_count", [0, 1, 2, 5, 6])
def test_only_the_messages_of_the_new_topic_survive_a_kill(disk, is_saved, old_count, new_count):
    rig, _ = opened(disk)
    put(rig, *olds(old_count))
    put(rig, b"other", topic="U")
    if is_saved:
        rig.work(3)
    put(rig, b"unsaved")
    rig.store.delete_topic("T")
    new = [b"new %d" % number for number in range(new_count)]
    assert put(rig, *new) == list(range(new_count))
    disk.crash()
    for has_copies in (True, False):
        rig, events = opened(copy.deepcopy(disk), has_copies=has_copies)
        check_start(events)
        assert not rig.store.upkeep.recovered.has_cut_records
        assert rig.bodies() == new
        assert rig.bodies("U") == [b"other"]
        assert put(rig, b"next") == [new_count]
        assert rig.bodies() == [*new, b"next"]


def test_a_topic_that_is_not_created_again_stays_deleted(disk):
    rig, _ = opened(disk)
    put(rig, *olds(5))
    rig.work(3)
    rig.store.delete_topic("T")
    disk.crash()
    rig, events = opened(disk)
    check_start(events)
    assert rig.store.reader.topics() == set()
    assert not disk.exists("/store/consumequeue/T")
    assert rig.store.upkeep.recovered.start.reason is StartReason.PROGRESS
    assert put(rig, b"new") == [0]


def test_each_start_after_kills_in_a_row_finds_the_new_topic(disk):
    rig, _ = opened(disk)
    put(rig, *olds(5))
    rig.work(3)
    rig.store.delete_topic("T")
    expected = []
    for number in range(4):
        expected.append(b"new %d" % number)
        put(rig, expected[-1])
        disk.crash()
        rig, events = opened(disk)
        check_start(events)
        assert rig.bodies() == expected


@pytest.mark.parametrize("between", [0, 1, 3])
def test_a_topic_that_is_deleted_twice_holds_the_newest_messages(disk, between):
    rig, _ = opened(disk)
    put(rig, *olds(5))
    rig.work(3)
    for number in range(3):
        rig.store.delete_topic("T")
        put(rig, b"new %d" % number)
        rig.work(between)
    disk.crash()
    rig, events = opened(disk)
    check_start(events)
    assert rig.bodies() == [b"new 2"]


def test_a_topic_with_many_queues_and_files(disk):
    rig, _ = opened(disk)
    for queue_id in range(4):
        put(rig, *olds(60), queue_id=queue_id)
    rig.work(3)
    rig.store.delete_topic("T")
    put(rig, b"new", queue_id=2)
    disk.crash()
    rig, events = opened(disk)
    check_start(events)
    assert [rig.bodies("T", queue_id) for queue_id in range(4)] == [[], [], [b"new"], []]
    rig.work(5)
    assert disk.names("/store/consumequeue/T") == ["2"]


class Recorder:
    """Copies a disk before each of its operations, with the messages that are acknowledged."""

    def __init__(self, disk):
        self._disk = disk
        self.acknowledged: list[bytes] = []
        self.pending: list[bytes] = []
        self.states: list[Any] = []
        disk.fault = self._note

    def _note(self, operation, _path):
        if operation in {"write", "delete", "create", "resize", "sync"}:
            disk = MemoryDisk()
            disk.contents = {path: bytearray(data) for path, data in self._disk.contents.items()}
            disk.folders = set(self._disk.folders)
            self.states.append((disk, self.acknowledged, self.pending))
        return 0

    def run(self, step, expected):
        """Run a step after which the topic holds the expected messages."""
        self.pending = expected
        step()
        self.acknowledged = expected


def test_a_kill_before_any_operation_of_the_disk_loses_nothing(disk):
    rig, _ = opened(disk)
    put(rig, *olds(25))
    put(rig, b"other", topic="U")
    rig.work(3)
    recorder = Recorder(disk)
    recorder.acknowledged = recorder.pending = olds(25)
    for number in range(2):
        new = b"new %d" % number
        recorder.run(lambda: rig.store.delete_topic("T"), [])
        recorder.run(lambda new=new: put(rig, new), [new])
        recorder.run(lambda: rig.work(4), [new])
        recorder.run(lambda new=new: put(rig, b"more"), [new, b"more"])
    disk.fault = None
    assert len(recorder.states) > 20
    for state, acknowledged, pending in recorder.states:
        again, events = opened(state)
        assert events.of("log.damaged") == []
        assert again.bodies() in (acknowledged, pending)
        assert again.bodies("U") == [b"other"]
        count = len(again.bodies())
        assert put(again, b"next") == [count]
        state.crash()
        again, events = opened(state)
        assert events.of("log.damaged") == []
        assert again.bodies()[-1:] == [b"next"]
        assert len(again.bodies()) == count + 1


def test_a_synced_message_of_a_new_topic_survives_a_power_loss(disk):
    rig, _ = opened(disk)
    put(rig, *olds(5))
    rig.work(3)
    rig.store.delete_topic("T")
    put(rig, b"new")
    rig.flush(rig.clock.advance(20_000))
    disk.lose_power()
    rig, events = opened(disk)
    check_start(events)
    assert rig.bodies() == [b"new"]


def test_messages_after_a_log_that_lost_its_end_are_kept(disk):
    """The log ends before the deletion, so records of the new topic may come at lower offsets."""
    rig, _ = opened(disk)
    put(rig, *olds(5))
    rig.work(3)
    put(rig, b"lost")
    rig.store.delete_topic("T")
    log = disk.contents["/store/commitlog/" + "0" * 20]
    end = rig.store.commit_log.end
    log[end - 50 : end] = bytes(50)
    disk.crash()
    rig, _ = opened(disk)
    assert rig.store.commit_log.end < end
    assert put(rig, b"new") == [0]
    disk.crash()
    rig, events = opened(disk)
    check_start(events)
    assert rig.bodies() == [b"new"]


def test_a_truncation_that_cuts_off_a_deletion_brings_the_topic_back(disk):
    """No other copy has deleted it: this broker was the master, and alone knew of the deletion."""
    rig, _ = opened(disk)
    put(rig, *olds(5))
    border = rig.store.commit_log.end
    put(rig, b"cut off")
    rig.work(3)
    rig.store.delete_topic("T")
    rig.store.truncate(border)
    rig.store.publisher.confirm(None)
    assert rig.bodies() == olds(5)
    assert put(rig, b"new") == [5]
    disk.crash()
    rig, events = opened(disk)
    check_start(events)
    assert rig.bodies() == [*olds(5), b"new"]


def test_notes_of_a_folder_that_another_program_has_used_are_dropped(disk):
    """The mark in the log still deletes the topic."""
    rig, _ = opened(disk)
    put(rig, *olds(5))
    rig.work(3)
    rig.store.delete_topic("T")
    disk.crash()
    path = "/store/checkpoint"
    disk.contents[path][:24] = (1 << 60).to_bytes(8, "big") * 3  # RocketMQ has written it since
    rig, _ = opened(disk)
    assert rig.bodies() == []
    assert decode(bytes(disk.contents[NOTES])) == []


def test_a_checkpoint_makes_room_in_the_file(disk):
    rig, _ = opened(disk)
    for number in range(3):
        put(rig, b"old")
        rig.store.delete_topic("T")
        rig.work(5)
        (note,) = decode(bytes(disk.contents[NOTES]))
        assert note == Deletion("T", rig.store.commit_log.end), number


def test_the_file_grows_with_the_deletions_between_two_checkpoints(disk):
    topics = [f"{number:0120}" for number in range(FILE_BYTES // 120)]
    settings = small_settings(mapped_file_size_commit_log=1 << 20)
    rig, _ = opened(disk, settings=settings)
    for topic in topics:
        put(rig, b"old", topic=topic)
    rig.work(3)
    for topic in topics:
        rig.store.delete_topic(topic)
    assert len(disk.contents[NOTES]) == 2 * FILE_BYTES
    put(rig, b"new", topic=topics[-1])
    disk.crash()
    rig, events = opened(disk, settings=settings)
    check_start(events)
    assert rig.store.reader.topics() == {topics[-1]}


def test_a_full_disk_does_not_prevent_a_deletion(disk):
    rig, events = opened(disk)
    put(rig, *olds(5))
    rig.work(3)
    disk.fault = lambda operation, path: errno.ENOSPC if path == NOTES else 0
    rig.store.delete_topic("T")
    disk.fault = None
    (told,) = events.of("cleaning.failed")
    assert told["step"] == "note a deletion"
    assert rig.store.reader.topics() == set()


@pytest.mark.parametrize("at", [0, 4, 12, 14])
def test_a_damaged_note_ends_the_list(at):
    first, second = Deletion("A", 10).encode(), Deletion("B", 20).encode()
    data = bytearray(first + second + bytes(64))
    data[len(first) + at] ^= 0x41
    assert decode(bytes(data)) == [Deletion("A", 10)]
