# SPDX-License-Identifier: Apache-2.0
"""Every row of the table of starts, and the crashes that lead to it."""

from typing import Any

import pytest

from cometmq.peers.long_forms import sampled
from cometmq.store.errors import CorruptStore, DiskError
from cometmq.store.log.log_scanner import LogScanner
from cometmq.store.recovery import recovery
from cometmq.store.recovery.start import StartReason
from cometmq.store.results import GetStatus
from cometmq.store.settings import FlushDiskType
from cometmq.testing.store.builders import Events, StoreRig, make_message, small_settings
from cometmq.testing.store.memory_disk import MemoryDisk

from .stores import LOG, bodies, fill, found_by_key, sent, stopped_store


def test_an_empty_folder_starts_at_zero(disk):
    rig = StoreRig(disk)
    assert rig.store.upkeep.recovered.start == (0, StartReason.EMPTY_LOG)


def test_a_clean_stop_scans_nothing(disk):
    rig = StoreRig(disk)
    fill(rig, 50)
    rig.store.close()
    rig = StoreRig(disk)
    assert rig.store.upkeep.recovered.start == (rig.store.commit_log.end, StartReason.PROGRESS)
    assert rig.store.upkeep.recovered.record_count == 0
    assert bodies(rig) == sent(50)


def test_a_crash_scans_what_came_after_the_checkpoint(disk):
    rig = StoreRig(disk)
    fill(rig, 40)
    rig.work(3)
    checkpoint = rig.store.stats().checkpoint_offset
    fill(rig, 10, start=40)
    disk.crash()
    rig = StoreRig(disk)
    assert rig.store.upkeep.recovered.start == (checkpoint, StartReason.PROGRESS)
    assert rig.store.upkeep.recovered.record_count == 10
    assert bodies(rig) == sent(50)
    assert found_by_key(rig, "k5") == [b"body-5"]
    assert found_by_key(rig, "k45") == [b"body-45"]
    assert rig.put(make_message("T", 0, b"body-50")).queue_offset == 25


def test_a_crash_before_the_first_checkpoint_scans_everything(disk):
    rig = StoreRig(disk)
    fill(rig, 50)
    disk.crash()
    rig = StoreRig(disk)
    assert rig.store.upkeep.recovered.record_count == 50
    assert bodies(rig) == sent(50)


@pytest.mark.parametrize("stop", ["clean", "crash"])
def test_deleted_queues_are_built_again(disk, stop):
    stopped_store(disk, stop)
    disk.remove_tree("/store/consumequeue/T/1")
    rig = StoreRig(disk)
    assert rig.store.upkeep.recovered.start.reason is StartReason.QUEUES_LOST
    assert bodies(rig) == sent(50)


@pytest.mark.parametrize("stop", ["clean", "crash"])
def test_a_deleted_index_is_built_again(disk, stop):
    stopped_store(disk, stop)
    disk.remove_tree("/store/index")
    rig = StoreRig(disk)
    assert rig.store.upkeep.recovered.start.reason is StartReason.INDEX_LOST
    assert bodies(rig) == sent(50)
    assert found_by_key(rig, "k5") == [b"body-5"]
    rig.store.close()
    rig = StoreRig(disk)
    assert rig.store.upkeep.recovered.start.reason is StartReason.PROGRESS
    assert found_by_key(rig, "k5") == [b"body-5"]


@pytest.mark.parametrize("stop", ["clean", "crash"])
def test_a_log_alone_is_enough(disk, stop):
    """All other files are derived from the log, so a copy of the log alone is a complete store."""
    stopped_store(disk, stop, rounds=0)
    for path in list(disk.contents):
        if not path.startswith(LOG) and path != "/store/abort":
            disk.remove(path)
    disk.remove_tree("/store/consumequeue")
    rig = StoreRig(disk)
    assert bodies(rig) == sent(50)
    assert found_by_key(rig, "k7") == [b"body-7"]


@pytest.mark.parametrize("progress", ["missing", "damaged", "of an older checkpoint"])
def test_without_progress_a_clean_stop_starts_at_the_end_of_the_queues(disk, progress):
    """A Java broker leaves the store like this, because it writes no progress file."""
    rig = StoreRig(disk)
    fill(rig, 50)
    rig.store.close()
    if progress == "missing":
        disk.remove("/store/progress")
    elif progress == "damaged":
        disk.contents["/store/progress"][10] ^= 1
    else:  # another program has written the checkpoint since
        disk.contents["/store/checkpoint"][0:8] = (1 << 60).to_bytes(8, "big")
    rig = StoreRig(disk)
    assert rig.store.upkeep.recovered.start == (rig.store.commit_log.end, StartReason.QUEUE_END)
    assert bodies(rig) == sent(50)


def test_without_progress_a_crash_starts_at_the_last_checkpointed_file(disk):
    rig = StoreRig(disk)
    fill(rig, 100)
    rig.work(3)
    rig.clock.advance(10_000)
    fill(rig, 100, start=100)
    rig.work(3)
    disk.crash()
    disk.remove("/store/progress")
    rig = StoreRig(disk)
    start = rig.store.upkeep.recovered.start
    assert start.reason is StartReason.CHECKPOINT
    assert 0 < start.offset < rig.store.commit_log.end
    assert start.offset % 4096 == 0
    assert bodies(rig) == sent(200)
    assert found_by_key(rig, "k3") == [b"body-3"]
    assert found_by_key(rig, "k199") == [b"body-199"]


def test_a_short_last_file_is_padded_and_keeps_whole_records(disk):
    rig = StoreRig(disk)
    fill(rig, 10)
    rig.work(3)
    keep = rig.entry("T", 0, 3).physical_offset  # body-6
    disk.crash()
    del disk.contents[LOG + "0" * 20][keep + 10 :]
    rig = StoreRig(disk, has_copies=True)
    assert len(disk.contents[LOG + "0" * 20]) == 4096
    assert bodies(rig) == sent(6)
    assert rig.put(make_message("T", 0, b"body-6")).queue_offset == 3


def test_a_file_of_another_size_is_named(disk):
    rig = StoreRig(disk)
    fill(rig, 100)
    rig.store.close()
    with pytest.raises(CorruptStore, match="configured"):
        StoreRig(disk, small_settings(mapped_file_size_commit_log=8192))
    with pytest.raises(CorruptStore, match="configured"):
        StoreRig(disk, small_settings(mapped_file_size_commit_log=2048))


def test_one_file_of_another_size_is_named(disk):
    rig = StoreRig(disk)
    while rig.store.commit_log.end < 4096:
        rig.put(make_message())
    disk.crash()
    for name in disk.names("/store/commitlog")[1:]:
        disk.remove(LOG + name)
    with pytest.raises(CorruptStore, match="configured"):
        StoreRig(disk, small_settings(mapped_file_size_commit_log=8192))
    assert len(disk.contents[LOG + "0" * 20]) == 4096


def test_a_file_of_the_log_that_was_renamed_is_missed(disk):
    rig = StoreRig(disk)
    fill(rig, 30)
    rig.store.close()
    last = LOG + disk.names("/store/commitlog")[-1]
    disk.contents[f"{last}.bak"] = disk.contents.pop(last)
    with pytest.raises(CorruptStore, match="put the missing files back"):
        StoreRig(disk)


def test_a_spare_file_of_zeros_is_accepted(disk):
    rig = StoreRig(disk)
    fill(rig, 30)
    rig.work(3)
    disk.crash()
    assert int(disk.names("/store/commitlog")[-1]) > rig.store.commit_log.end
    assert bodies(StoreRig(disk)) == sent(30)


def test_what_was_acknowledged_after_a_sync_survives_a_power_loss(disk):
    settings = small_settings(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    rig = StoreRig(disk, settings)
    acknowledged: list[Any] = []
    for number in range(40):
        message = make_message("T", number % 2, b"body-%d" % number, keys=f"k{number}")
        rig.store.writer.put(message, acknowledged.append)
        rig.store.writer.commit()
        rig.flush()
    assert len(acknowledged) == 40
    disk.lose_power()  # queues and index were never synced: their files are zeros
    rig = StoreRig(disk, settings)
    assert bodies(rig) == sent(40)
    assert found_by_key(rig, "k33") == [b"body-33"]


def test_a_power_loss_between_checkpoints_keeps_what_was_synced(disk):
    rig = StoreRig(disk)
    fill(rig, 30)
    rig.work(3)
    fill(rig, 30, start=30)
    disk.lose_power()
    rig = StoreRig(disk)
    assert bodies(rig) == sent(30)
    assert found_by_key(rig, "k29") == [b"body-29"]
    fill(rig, 10, start=30)
    assert bodies(rig) == sent(40)


@sampled(8)
@pytest.mark.parametrize("at", range(1, 40))
def test_a_crash_at_any_disk_operation_of_a_checkpoint_loses_nothing(at):
    """A crash may interrupt the background jobs after any of their steps."""
    disk = MemoryDisk()
    rig = StoreRig(disk)
    fill(rig, 25)
    rig.work(2)
    fill(rig, 25, start=25)
    calls = 0

    def fault(operation, _path):
        nonlocal calls
        if operation in {"write", "sync", "create", "delete"}:
            calls += 1
        return 5 if calls >= at else 0

    disk.fault = fault
    rig.work(2)
    disk.fault = None
    disk.crash()
    rig = StoreRig(disk)
    assert bodies(rig) == sent(50)
    for number in range(50):
        assert found_by_key(rig, f"k{number}") == [b"body-%d" % number]


def test_opening_fails_cleanly_on_a_broken_disk(disk):
    rig = StoreRig(disk)
    fill(rig, 5)
    disk.crash()
    disk.fault = lambda operation, _path: 5 if operation == "read" else 0
    with pytest.raises(DiskError):
        StoreRig(disk)
    disk.fault = None
    assert bodies(StoreRig(disk)) == sent(5)


def test_a_queue_that_lost_entries_is_built_again_when_a_record_shows_it(disk):
    rig = StoreRig(disk)
    fill(rig, 60)
    rig.work(6)
    fill(rig, 1, start=60)
    disk.crash()
    for name in disk.names("/store/consumequeue/T/0")[1:]:
        disk.remove(f"/store/consumequeue/T/0/{name}")
    disk.remove("/store/progress")  # no other file records the number of entries
    disk.remove("/store/abort")
    rig = StoreRig(disk)
    assert rig.store.upkeep.recovered.start.reason is StartReason.QUEUE_END
    assert bodies(rig) == sent(61)


@sampled(5)
@pytest.mark.parametrize("stop", ["clean", "crash", "clean, by RocketMQ", "crash of RocketMQ"])
@pytest.mark.parametrize("lost", [(0,), (1,), (1, 2), (0, 2), (1, 3)])
def test_a_queue_that_lost_any_file_is_built_again(disk, stop, lost):
    rig = StoreRig(disk)
    fill(rig, 210)
    rig.work(6)
    if stop.startswith("clean"):
        rig.store.close()
    else:
        disk.crash()
    folder = "/store/consumequeue/T/0/"
    names = disk.names(folder)
    assert len(names) > 4
    for number in lost:
        disk.remove(folder + names[number])
    if "RocketMQ" in stop:
        disk.remove("/store/progress")
    log = Events()
    rig = StoreRig(disk, log=log)
    assert [facts["path"] for facts in log.of("queue.file_lost")] == [folder + names[lost[0]]]
    assert bodies(rig) == sent(210)
    assert found_by_key(rig, "k3") == [b"body-3"]
    fill(rig, 10, start=210)
    assert bodies(rig) == sent(220)
    rig.store.close()
    assert disk.names(folder) == names  # as RocketMQ expects them
    log = Events()
    assert bodies(StoreRig(disk, log=log)) == sent(220)
    assert not log.of("queue.file_lost")


@pytest.mark.parametrize("lost", [1, 2])
def test_a_lost_file_whose_records_have_expired_leaves_the_rest_readable(disk, lost):
    rig = StoreRig(disk)
    fill(rig, 210)
    rig.store.close()
    folder = "/store/consumequeue/T/0/"
    names = disk.names(folder)
    disk.remove(folder + names[lost])
    for name in disk.names("/store/commitlog")[:-2]:
        disk.remove(LOG + name)
    rig = StoreRig(disk)
    found = bodies(rig)
    assert found == sent(210)[-len(found) :]
    assert rig.store.reader.max_offset("T", 0) == 105
    rig.store.close()
    assert bodies(StoreRig(disk)) == found


def test_the_head_of_the_log_is_read_once_for_all_queues(disk, monkeypatch):
    rig = StoreRig(disk)
    fill(rig, 210)
    rig.store.close()
    folders = "/store/consumequeue/T/0/", "/store/consumequeue/T/1/"
    for folder in folders:
        disk.remove(folder + disk.names(folder)[0])
    ranges = []

    class Counted(LogScanner):
        def __init__(self, files, offset, **options):
            ranges.append((offset, options["end"]))
            super().__init__(files, offset, **options)

    monkeypatch.setattr(recovery, "LogScanner", Counted)
    log = Events()
    rig = StoreRig(disk, log=log)
    assert bodies(rig) == sent(210)
    assert len(log.of("queue.file_lost")) == 2
    assert len(ranges) == 1

    rig.store.close()
    disk.remove(folders[0] + disk.names(folders[0])[0])
    monkeypatch.setattr(recovery, "HEAD_BYTES_MAX", 1_000)
    StoreRig(disk)
    assert ranges[1:] == [(0, 1_000)]


def test_expired_files_of_a_queue_are_not_built_again(disk):
    rig = StoreRig(disk)
    fill(rig, 210)
    rig.store.close()
    folder = "/store/consumequeue/T/0/"
    disk.remove(LOG + disk.names("/store/commitlog")[0])
    first = StoreRig(disk).store.reader.min_offset("T", 0)
    disk.crash()
    names = disk.names(folder)
    count = first * 20 // len(disk.contents[folder + names[0]])
    assert count
    for name in names[:count]:
        disk.remove(folder + name)
    log = Events()
    rig = StoreRig(disk, log=log)
    assert not log.of("queue.file_lost")
    assert rig.store.reader.min_offset("T", 0) == first


def test_a_log_without_its_head_begins_where_it_begins(disk):
    rig = StoreRig(disk)
    fill(rig, 100)
    rig.store.close()
    disk.remove(LOG + disk.names("/store/commitlog")[0])
    disk.remove_tree("/store/consumequeue")
    disk.remove("/store/progress")
    rig = StoreRig(disk)
    first = rig.store.reader.min_offset("T", 0)
    assert first > 0
    assert rig.store.commit_log.min_offset == 4096
    found = bodies(rig)
    assert found == sent(100)[-len(found) :]
    result = rig.store.reader.get_messages("T", 0, 0, 32)
    assert (result.status, result.next_offset) == (GetStatus.OFFSET_TOO_SMALL, first)
    rig.store.close()
    assert bodies(StoreRig(disk)) == found
