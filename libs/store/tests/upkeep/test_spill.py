# SPDX-License-Identifier: Apache-2.0
"""Entries of a busy store leave memory between two checkpoints."""

import errno

import pytest

from cometmq.store.index import index as index_module
from cometmq.store.inspection.verify import verify_store
from cometmq.store.reads import finish
from cometmq.store.recovery.start import StartReason
from cometmq.store.upkeep import checkpointer
from cometmq.testing.store.builders import StoreRig, make_message, small_settings
from cometmq.testing.store.memory_disk import MemoryDisk

SETTINGS = small_settings(max_index_num=1000)
BETWEEN_CHECKPOINTS_MS = 1


@pytest.fixture(autouse=True)
def small_spills(monkeypatch):
    monkeypatch.setattr(checkpointer, "SPILL_BYTES", 1000)
    monkeypatch.setattr(checkpointer, "SPILL_QUEUE_BYTES", 0)


@pytest.fixture
def rig(disk):
    """A store that has just written a checkpoint."""
    rig = StoreRig(disk, SETTINGS)
    rig.put(make_message())
    checkpoint(rig)
    return rig


def checkpoint(rig):
    while rig.store.stats().checkpoint_offset < rig.store.commit_log.end:
        rig.work(1)


def put(rig, numbers, topic="T"):
    for number in numbers:
        rig.put(make_message(topic, body=b"%d" % number, keys=f"k{number}"))


def running_spill(rig):
    """Plan the spill that is due, and let its worker finish."""
    (job,) = rig.store.jobs(rig.clock.advance(BETWEEN_CHECKPOINTS_MS))
    assert job.name == "spill"
    job.run()
    return job


def found_by(rig, key):
    records = finish(rig.store.reader.query("T", key, 10, 0, 1 << 62)).records
    return [record.body for record in records]


def found(rig, number):
    return found_by(rig, f"k{number}")


def test_entries_leave_memory_before_the_next_checkpoint(disk, rig):
    offset = rig.store.stats().checkpoint_offset
    put(rig, range(40))
    assert rig.queue("T", 0).tail_bytes == 40 * 20
    running_spill(rig).done(None)
    assert rig.queue("T", 0).tail_bytes == 0
    assert rig.store.stats().checkpoint_offset == offset
    assert found(rig, 7) == [b"7"]
    jobs = rig.store.jobs(rig.clock.advance(BETWEEN_CHECKPOINTS_MS))
    assert "spill" not in {job.name for job in jobs}


@pytest.mark.parametrize("loss", ["crash", "lose_power"])
@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_nothing_is_lost_after_a_spill(disk, rig, loss, has_checkpoint):
    put(rig, range(40))
    running_spill(rig).done(None)
    put(rig, range(40, 50))
    rig.flush(rig.clock.advance(10_000))
    if has_checkpoint:
        rig.work(2)
        put(rig, range(50, 52))
        rig.work(3)
        assert rig.store.stats().checkpoint_offset == rig.store.commit_log.end
    getattr(disk, loss)()
    rig = StoreRig(disk, SETTINGS)
    if has_checkpoint:  # it has synced what the spill wrote
        assert rig.store.upkeep.recovered.start.reason is StartReason.PROGRESS
    count = 52 if has_checkpoint else 50
    assert rig.store.reader.max_offset("T", 0) == count + 1
    assert [found(rig, number) for number in range(count)] == [[b"%d" % n] for n in range(count)]
    positions = [rig.entry("T", 0, offset).physical_offset for offset in range(count + 1)]
    assert positions == sorted(set(positions))
    rig.store.close()
    assert verify_store("/store", disk=disk, settings=SETTINGS).findings == []


def test_a_checkpoint_syncs_the_folders_in_which_a_spill_has_made_files(disk, rig):
    put(rig, range(40))
    running_spill(rig).done(None)
    synced = []
    disk.fault = lambda operation, path: synced.append(path) or 0 if operation == "sync" else 0
    rig.work(2)
    assert "/store/consumequeue/T/0" in synced


def test_a_topic_may_be_deleted_while_its_entries_are_written(disk, rig):
    put(rig, range(40), topic="Other")
    job = running_spill(rig)
    rig.store.delete_topic("Other")
    job.done(None)
    put(rig, range(5))
    rig.work(5)
    assert rig.store.write_state.is_writable
    assert rig.store.stats().checkpoint_offset == rig.store.commit_log.end


def test_a_topic_may_be_deleted_after_its_entries_were_written(disk, rig):
    put(rig, range(40), topic="Other")
    running_spill(rig).done(None)
    rig.store.delete_topic("Other")
    put(rig, range(5))
    rig.work(5)
    assert rig.store.write_state.is_writable
    assert rig.store.stats().checkpoint_offset == rig.store.commit_log.end


def test_a_failing_spill_stops_puts_until_a_checkpoint_succeeds(disk, rig):
    put(rig, range(40))
    disk.fault = lambda operation, path: (
        errno.ENOSPC if operation in {"write", "create"} and "consumequeue" in path else 0
    )
    rig.work(1, elapsed_ms=BETWEEN_CHECKPOINTS_MS)
    assert not rig.store.write_state.is_writable
    assert rig.queue("T", 0).tail_bytes == 40 * 20
    disk.fault = None
    rig.work(8)
    assert rig.store.write_state.is_writable
    put(rig, range(40, 45))
    assert rig.store.reader.max_offset("T", 0) == 46
    assert [found(rig, number) for number in range(45)] == [[b"%d" % n] for n in range(45)]


LARGE_INDEX = small_settings(mapped_file_size_commit_log=1 << 20, max_index_num=200_000)


def keyed(number):
    """Return a message with thousands of keys, whose index entries are larger than itself."""
    keys = " ".join(f"{number:x}-{at:x}" for at in range(3_500))
    return make_message(body=b"%d" % number, keys=keys)


def put_keyed(rig, number):
    rig.put(keyed(number))
    while rig.store.upkeep.index.is_behind:
        rig.store.upkeep.indexing.add_more()


def check_keys(rig, count):
    for number in range(count):
        for at in (0, 1_700, 3_499):
            assert found_by(rig, f"{number:x}-{at:x}") == [b"%d" % number]


def test_entries_of_many_keys_are_spilled_before_those_of_many_messages(monkeypatch):
    monkeypatch.setattr(checkpointer, "SPILL_BYTES", 1 << 30)
    monkeypatch.setattr(checkpointer, "SPILL_INDEX_BYTES", 200_000)
    rig = StoreRig(MemoryDisk(), LARGE_INDEX)
    put_keyed(rig, 0)
    checkpoint(rig)
    index = rig.store.upkeep.index
    for number in range(1, 5):
        put_keyed(rig, number)
    assert index.unwritten_bytes > 200_000
    running_spill(rig).done(None)
    assert not index.unwritten_bytes


@pytest.mark.parametrize("loss", ["", "crash", "lose_power"])
@pytest.mark.parametrize("jobs_end", [False, True])
def test_a_job_that_runs_for_long_lets_no_index_entries_pile_up(monkeypatch, loss, jobs_end):
    monkeypatch.setattr(index_module, "UNWRITTEN_BYTES_MAX", 200_000)
    disk = MemoryDisk()
    settings = small_settings(mapped_file_size_commit_log=1 << 20, max_index_num=10_000)
    rig = StoreRig(disk, settings)
    rig.put(keyed(0))
    (job,) = rig.store.jobs(rig.clock.advance(10_000))
    index = rig.store.upkeep.index
    for number in range(1, 7):  # they fill two files, and half a third one
        put_keyed(rig, number)
        assert index.unwritten_bytes <= 200_000
    job.run()
    if jobs_end or not loss:
        job.done(None)
        rig.work(6 * jobs_end)
    check_keys(rig, 7)
    if loss:
        rig.flush(rig.clock.advance(10_000))
        getattr(disk, loss)()
    else:
        rig.store.close()
    rig = StoreRig(disk, settings)
    check_keys(rig, 7)
    rig.store.close()
    assert verify_store("/store", disk=disk, settings=settings).findings == []


def test_a_disk_that_refuses_entries_at_the_bound_stops_puts(monkeypatch):
    monkeypatch.setattr(index_module, "UNWRITTEN_BYTES_MAX", 200_000)
    disk = MemoryDisk()
    rig = StoreRig(disk, LARGE_INDEX)
    rig.put(keyed(0))
    rig.work(3)
    disk.fault = lambda operation, path: (
        errno.EIO if operation == "write" and "index" in path else 0
    )
    for number in range(1, 6):
        rig.put(keyed(number))
    assert not rig.store.write_state.is_writable
    disk.fault = None
    rig.work(8)
    assert rig.store.write_state.is_writable
    rig.put(keyed(9))
    assert found_by(rig, "9-1") == [b"9"]
