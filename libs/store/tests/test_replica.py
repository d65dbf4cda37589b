# SPDX-License-Identifier: Apache-2.0
"""Replicating the raw bytes of a master's log yields the same store."""

import contextlib

import pytest

from cometmq.peers.long_forms import sampled
from cometmq.remoting.message.record import decode_record
from cometmq.store.errors import DiskError, StoreError
from cometmq.store.reads import finish
from cometmq.store.results import GetStatus
from cometmq.store.upkeep import checkpointer
from cometmq.store.writing.write_state import Refusal
from cometmq.testing.store.builders import StoreRig, make_message, records_of
from cometmq.testing.store.memory_disk import MemoryDisk


def master_log(count):
    disk = MemoryDisk()
    rig = StoreRig(disk)
    for number in range(count):
        rig.put(make_message("T", number % 2, b"%d" % number, keys=f"k{number}"))
    files = [disk.contents[f"/store/commitlog/{name}"] for name in disk.names("/store/commitlog")]
    return b"".join(files)[: rig.store.commit_log.end], rig


def bodies(store):
    found = [it.body for queue_id in range(2) for it in records_of(store, "T", queue_id)]
    return sorted(found, key=int)


@sampled(3)
@pytest.mark.parametrize("piece", [1, 7, 100, 1000, 4096, 5000, 1 << 20])
def test_pieces_of_any_size_make_the_same_store(piece):
    log, _ = master_log(120)
    disk = MemoryDisk()
    rig = StoreRig(disk)
    rig.store.write_state.role_writable = False
    for start in range(0, len(log), piece):
        rig.store.replica.append(start, log[start : start + piece])
    assert rig.store.commit_log.end == rig.store.commit_log.confirm_offset == len(log)
    assert bodies(rig.store) == [b"%d" % number for number in range(120)]
    assert len(finish(rig.store.reader.query("T", "k77", 9, 0, 1 << 62)).records) == 1
    rig.work(5)
    rig.store.close()
    again = StoreRig(disk)
    assert again.store.upkeep.recovered.was_clean
    assert bodies(again.store) == [b"%d" % number for number in range(120)]


def test_a_part_of_a_record_is_not_visible_and_a_restart_cuts_it():
    log, _ = master_log(10)
    disk = MemoryDisk()
    rig = StoreRig(disk)
    rig.store.replica.append(0, log[:-5])
    assert rig.store.commit_log.end == len(log) - 5
    assert rig.store.commit_log.confirm_offset < len(log) - 5
    assert len(bodies(rig.store)) == 9
    rig.work(3)
    disk.crash()
    rig = StoreRig(disk)
    assert rig.store.commit_log.end == rig.store.commit_log.confirm_offset
    rig.store.replica.append(rig.store.commit_log.end, log[rig.store.commit_log.end :])
    assert len(bodies(rig.store)) == 10


def test_readers_see_the_log_up_to_the_confirm_offset_only():
    log, master = master_log(10)
    queue = master.queue("T", 1)
    last = master.entry("T", 1, queue.max_offset - 1).physical_offset
    rig = StoreRig(MemoryDisk())
    rig.store.replica.append(0, log[:-5])
    assert rig.store.commit_log.confirm_offset == last < rig.store.commit_log.end
    assert rig.store.commit_log.view().end == last
    assert finish(rig.store.reader.read_record(last)) is None
    rig.store.replica.append(len(log) - 5, log[-5:])
    assert rig.store.commit_log.confirm_offset == rig.store.commit_log.view().end == len(log)
    found = finish(rig.store.reader.read_record(last))
    assert found
    assert found.physical_offset == last


def test_the_newest_record_is_the_last_one_of_any_queue():
    rig = StoreRig(MemoryDisk())
    assert finish(rig.store.reader.newest_record()) is None
    for number in range(6):
        rig.put(make_message(topic=f"T{number % 2}", queue_id=number % 3, body=b"%d" % number))
        newest = finish(rig.store.reader.newest_record())
        assert newest is not None
        assert newest.body == b"%d" % number
        assert newest.physical_offset + newest.size == rig.store.commit_log.end


def test_bytes_that_do_not_fit_are_refused():
    log, _ = master_log(10)
    rig = StoreRig(MemoryDisk())
    rig.store.replica.append(0, log[:500])
    with pytest.raises(StoreError, match="500"):
        rig.store.replica.append(400, log[400:600])
    assert rig.store.commit_log.end == 500


def test_a_former_master_appends_only_after_its_failed_write_is_overwritten():
    """The probe zeroes the range of the failed write, where the new master's records belong."""
    log, _ = master_log(60)
    disk = MemoryDisk()
    rig = StoreRig(disk)
    rig.store.replica.append(0, log[:500])
    rig.store.truncate(rig.store.commit_log.confirm_offset)
    end = rig.store.commit_log.end
    rig.store.publisher.confirm(None)
    disk.fault = lambda operation, path: 28 if operation == "write" and "commitlog" in path else 0
    rig.put(make_message("T", 0, b"refused"))
    assert rig.store.write_state.has(Refusal.LOG_WRITE_FAILED)
    disk.fault = None
    rig.store.write_state.role_writable = False
    with pytest.raises(DiskError):
        rig.store.replica.append(end, log[end:])
    rig.work(5)
    assert not rig.store.write_state.has(Refusal.LOG_WRITE_FAILED)
    rig.store.replica.append(end, log[end:])
    rig.work(5)
    assert bodies(rig.store) == [b"%d" % number for number in range(60)]


@pytest.mark.parametrize("failing", ["create", "write"])
def test_records_before_a_file_that_cannot_be_written_are_visible(failing):
    log, _ = master_log(60)
    disk = MemoryDisk()
    rig = StoreRig(disk)
    second = "/store/commitlog/00000000000000004096"
    disk.fault = lambda operation, path: 28 if (operation, path) == (failing, second) else 0
    with pytest.raises(DiskError):
        rig.store.replica.append(0, log)
    assert rig.store.commit_log.end == rig.store.commit_log.confirm_offset == 4096
    assert bodies(rig.store) == [b"%d" % number for number in range(len(bodies(rig.store)))]
    disk.fault = None
    rig.store.replica.append(4096, log[4096:])
    assert rig.store.commit_log.confirm_offset == len(log)
    assert bodies(rig.store) == [b"%d" % number for number in range(60)]


@pytest.mark.parametrize("piece", [100, 1000, 1 << 20])
def test_a_slave_may_begin_with_a_later_file(piece):
    log, master = master_log(120)
    rig = StoreRig(MemoryDisk())
    for start in range(4096, len(log), piece):
        rig.store.replica.append(start, log[start : start + piece])
    assert rig.store.commit_log.min_offset == 4096
    for queue_id in range(2):
        assert rig.store.reader.max_offset("T", queue_id) == master.store.reader.max_offset(
            "T", queue_id
        )
        minimum = rig.store.reader.min_offset("T", queue_id)
        assert minimum > 0
        assert rig.store.reader.get_messages("T", queue_id, minimum, 1).status is GetStatus.FOUND


def test_the_queues_of_a_topic_that_was_created_again_begin_again():
    disk = MemoryDisk()
    master = StoreRig(disk)
    for number in range(9):
        master.put(make_message("T", 0, b"old%d" % number))
    master.store.delete_topic("T")
    master.put(make_message("T", 0, b"new"))
    log = bytes(disk.contents["/store/commitlog/00000000000000000000"])
    rig = StoreRig(MemoryDisk())
    rig.store.replica.append(0, log[: master.store.commit_log.end])
    assert rig.store.reader.max_offset("T", 0) == master.store.reader.max_offset("T", 0) == 1
    result = rig.store.reader.get_messages("T", 0, 0, 1)
    assert decode_record(result.records[0]).body == b"new"


def test_listeners_hear_of_replicated_messages():
    log, _ = master_log(4)
    rig = StoreRig(MemoryDisk())
    heard = []
    rig.store.publisher.listeners.append(lambda *facts: heard.append(facts))
    rig.store.replica.append(0, log)
    ((queues, log_offset),) = heard
    assert {(queue.queue_id, queue.max_offset) for queue in queues} == {(0, 2), (1, 2)}
    assert log_offset is None


def test_truncation_takes_log_queues_and_index_back():
    disk = MemoryDisk()
    rig = StoreRig(disk)
    for number in range(100):
        rig.put(make_message("T", number % 2, b"%d" % number, keys=f"k{number}"))
    rig.work(3)
    border = rig.entry("T", 0, 30).physical_offset  # message 60
    rig.store.truncate(border)
    assert rig.store.commit_log.end == rig.store.commit_log.confirm_offset == border
    assert bodies(rig.store) == [b"%d" % number for number in range(60)]
    assert finish(rig.store.reader.query("T", "k60", 9, 0, 1 << 62)).records == []
    assert len(finish(rig.store.reader.query("T", "k59", 9, 0, 1 << 62)).records) == 1
    assert rig.put(make_message("T", 0, b"60", keys="k60")).queue_offset == 30
    disk.crash()
    rig = StoreRig(disk)
    assert bodies(rig.store) == [b"%d" % number for number in range(61)]
    assert len(finish(rig.store.reader.query("T", "k60", 9, 0, 1 << 62)).records) == 1


def test_records_that_could_not_be_read_are_dispatched_once():
    log, _ = master_log(60)
    disk = MemoryDisk()
    rig = StoreRig(disk)
    reads = 0

    def fault(operation, path):
        nonlocal reads
        reads += operation == "read" and "/commitlog/" in path
        return 5 if reads > 1 else 0

    disk.fault = fault
    with pytest.raises(DiskError):
        rig.store.replica.append(0, log)
    assert rig.store.commit_log.end == len(log)
    assert rig.store.commit_log.confirm_offset < len(log)
    disk.fault = None
    rig.store.replica.append(len(log), b"")
    assert rig.store.commit_log.confirm_offset == len(log)
    assert bodies(rig.store) == [b"%d" % number for number in range(60)]
    other_disk = MemoryDisk()
    other = StoreRig(other_disk)
    other.store.replica.append(0, log)
    for one in (rig, other):
        one.work(5)
        one.store.close()
    assert index_files(disk) == index_files(other_disk)


def index_files(disk):
    return [bytes(data) for path, data in disk.contents.items() if "/index/" in path]


@sampled(5)
@pytest.mark.parametrize("at", range(1, 60, 3))
def test_a_crash_within_a_truncation_leaves_a_prefix(at):
    disk = MemoryDisk()
    rig = StoreRig(disk)
    for number in range(60):
        rig.put(make_message("T", number % 2, b"%d" % number))
    border = rig.entry("T", 0, 20).physical_offset
    calls = 0

    def fault(operation, _path):
        nonlocal calls
        calls += operation in {"write", "sync", "resize", "delete"}
        return 5 if calls >= at else 0

    disk.fault = fault
    with contextlib.suppress(StoreError):
        rig.store.truncate(border)
    disk.fault = None
    disk.crash()
    store = StoreRig(disk).store
    found = bodies(store)
    assert found == [b"%d" % number for number in range(len(found))]
    assert 40 <= len(found) <= 60
    assert not store.upkeep.recovered.has_cut_records


def test_shared_reads_of_a_topic_that_was_created_again_are_new():
    disk = MemoryDisk()
    master = StoreRig(disk)
    for number in range(9):
        master.put(make_message("T", 0, b"old%d" % number))
    old_end = master.store.commit_log.end
    master.store.delete_topic("T")
    for number in range(9):
        master.put(make_message("T", 0, b"new%d" % number))
    log = bytes(disk.contents["/store/commitlog/00000000000000000000"])
    rig = StoreRig(MemoryDisk())
    bodies_read = []
    for start, end in ((0, old_end), (old_end, master.store.commit_log.end)):
        rig.store.replica.append(start, log[start:end])
        for _ in range(3):  # reads are shared from the second one on
            (records,) = rig.store.reader.get_messages("T", 0, 0, 1, joined=True).records
            bodies_read.append(decode_record(records).body)
    assert bodies_read == [b"old0"] * 3 + [b"new0"] * 3


def checkpoint_after(store, now_ms):
    for _ in range(5):  # other jobs may come first
        for job in store.jobs(now_ms):
            job.run()
            job.done(None)
    return store.stats().checkpoint_offset


def test_a_follower_that_catches_up_saves_its_entries_without_a_pause(monkeypatch):
    log, _ = master_log(120)
    rig = StoreRig(MemoryDisk())
    rig.store.write_state.role_writable = False
    now_ms = rig.clock.advance(10_000)
    rig.store.replica.append(0, log[:1000])
    saved = checkpoint_after(rig.store, now_ms)
    assert 0 < saved == rig.store.commit_log.confirm_offset
    rig.store.replica.append(1000, log[1000:5000])
    assert checkpoint_after(rig.store, now_ms) == saved
    monkeypatch.setattr(checkpointer, "UNSAVED_BYTES_MAX", 6000)
    rig.store.replica.append(5000, log[5000:-1000])
    assert checkpoint_after(rig.store, now_ms) == saved  # in sync: sends wait for this copy
    rig.store.upkeep.catch_up.note_distance(checkpointer.FAR_BEHIND_BYTES + 1)
    rig.store.replica.append(len(log) - 1000, log[-1000:])
    assert checkpoint_after(rig.store, now_ms) == len(log)


def test_a_follower_with_too_many_unsaved_records_is_crowded_until_a_checkpoint(monkeypatch):
    monkeypatch.setattr(checkpointer, "UNSAVED_COUNT_MAX", 20)
    log, _ = master_log(120)
    rig = StoreRig(MemoryDisk())
    rig.store.write_state.role_writable = False
    now_ms = rig.clock.advance(10_000)
    rig.store.replica.append(0, log[: len(log) // 20])
    checkpoint_after(rig.store, now_ms)
    rig.store.upkeep.catch_up.note_distance(checkpointer.FAR_BEHIND_BYTES + 1)
    rig.store.replica.append(len(log) // 20, log[len(log) // 20 : len(log) // 2])
    assert rig.store.upkeep.catch_up.is_crowded
    assert checkpoint_after(rig.store, now_ms) == rig.store.commit_log.confirm_offset
    assert not rig.store.upkeep.catch_up.is_crowded
