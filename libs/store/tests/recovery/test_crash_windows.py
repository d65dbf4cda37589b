# SPDX-License-Identifier: Apache-2.0
"""Crashes, clock steps and disk faults in windows of a few milliseconds."""

import errno
from typing import Any

import pytest

from cometmq.store.reads import finish
from cometmq.store.recovery.start import StartReason
from cometmq.store.results import PutStatus
from cometmq.store.settings import FlushDiskType
from cometmq.testing.store.builders import StoreRig, make_message, small_settings

# A deleted topic


def test_a_deletion_alone_is_worth_a_checkpoint(disk):
    """Without a checkpoint, the next start misses the queues and restores them from the log."""
    rig = StoreRig(disk)
    for number in range(20):
        rig.put(make_message(body=b"old-%d" % number))
    rig.work(3)
    rig.store.delete_topic("T")
    rig.work(5)
    disk.crash()
    again = StoreRig(disk)
    assert again.store.upkeep.recovered.record_count == 0
    assert again.store.reader.topics() == set()


# Two crashes in a row


def test_what_a_recovery_found_is_synced_before_a_checkpoint_vouches_for_it(disk):
    rig = StoreRig(disk)
    body = bytes(900)
    for _ in range(6):  # starts the second file of the log
        rig.put(make_message(body=body))
    disk.crash()
    rig = StoreRig(disk)
    rig.put(make_message(body=body))
    rig.work(5)  # writes a checkpoint
    disk.lose_power()
    assert len(StoreRig(disk).bodies()) == 7


@pytest.mark.parametrize("step_ms", [0, -20_000])
def test_a_hole_behind_the_checkpoint_never_refuses_a_start(disk, step_ms):
    """Records of the checkpoint's millisecond, or stored after the clock stepped back, may be
    missing.
    """
    rig = StoreRig(disk)
    rig.put(make_message(body=b"safe"))
    checkpointed_ms = rig.put(make_message(body=b"safe too")).store_timestamp
    rig.work(3)
    rig.clock.now_ms = checkpointed_ms + step_ms
    start = rig.store.commit_log.end
    rig.put(make_message(body=b"hole"))
    hole_end = rig.store.commit_log.end
    rig.put(make_message(body=b"behind the hole"))
    path = "/store/commitlog/" + "0" * 20
    disk.contents[path][start:hole_end] = bytes(hole_end - start)
    disk.crash()
    assert StoreRig(disk).bodies() == [b"safe", b"safe too"]


# Retention during a sync


def test_a_file_that_waits_for_its_sync_is_not_deleted(disk):
    rig = StoreRig(
        disk,
        small_settings(
            disk_space_clean_forcibly_ratio=80,
            disk_max_used_space_ratio=75,
            flush_disk_type=FlushDiskType.SYNC_FLUSH,
        ),
    )
    disk.used_percent = 86
    results: list[Any] = []
    for _ in range(6):
        rig.store.writer.put(make_message(body=bytes(900)), results.append)
    rig.store.writer.commit()
    flush = rig.store.upkeep.flusher.job(rig.clock.now_ms)
    assert flush is not None
    for _ in range(5):
        for job in rig.store.jobs(rig.clock.advance(20_000)):
            job.run()
            job.done(None)
    flush.run()
    rig.store.upkeep.flusher.done(flush)
    assert rig.store.write_state.is_writable
    assert {result.status for result in results} == {PutStatus.PUT_OK}
    rig.work(5, elapsed_ms=20_000)
    assert rig.store.commit_log.min_offset > 0  # the file is no longer needed


# Clocks set back


def test_a_clock_that_is_set_back_stops_neither_syncs_nor_checkpoints(disk):
    rig = StoreRig(disk)
    rig.put(make_message(body=b"before"))
    rig.work(20)
    rig.clock.advance(-3_600_000)
    rig.put(make_message(body=b"after"))
    rig.work(12)
    assert rig.store.upkeep.flusher.flushed_offset == rig.store.commit_log.end
    disk.crash()
    again = StoreRig(disk)
    assert again.store.upkeep.recovered.record_count == 0
    assert again.bodies() == [b"before", b"after"]


def test_a_put_that_waits_is_answered_although_the_clock_is_set_back(disk):
    rig = StoreRig(disk, small_settings(flush_disk_type=FlushDiskType.SYNC_FLUSH))
    results: list[Any] = []
    rig.store.writer.put(make_message(), results.append)
    rig.store.writer.commit()
    assert rig.store.upkeep.flusher.job(rig.clock.now_ms) is not None  # this sync never ends
    rig.store.upkeep.flusher.job(rig.clock.advance(-3_600_000))
    assert [result.status for result in results] == [PutStatus.FLUSH_DISK_TIMEOUT]


def test_delays_count_from_the_clock_as_it_is_after_it_was_set_back(disk):
    rig = StoreRig(disk)
    rig.put(make_message("SCHEDULE_TOPIC_XXXX", 2))
    now_ms = rig.clock.advance(-3_600_000)
    rig.put(make_message("SCHEDULE_TOPIC_XXXX", 2))
    entry = rig.entry("SCHEDULE_TOPIC_XXXX", 2, 1)
    assert entry.tag_code == now_ms + 10_000


def test_the_last_message_is_found_by_its_key_and_its_very_time_after_a_recovery(disk):
    rig = StoreRig(disk)
    rig.put(make_message(keys="first"))
    rig.work(3)  # writes the index file's header, once
    rig.clock.advance(999)
    time_ms = rig.put(make_message(keys="last")).store_timestamp
    rig.work(3)
    disk.crash()
    again = StoreRig(disk)
    assert len(finish(again.store.reader.query("T", "last", 9, time_ms, time_ms)).records) == 1


# Shutdown


def test_files_that_cannot_be_deleted_do_not_keep_the_end_from_syncing(disk):
    rig = StoreRig(disk, small_settings(flush_disk_type=FlushDiskType.SYNC_FLUSH))
    rig.store.writer.put(make_message("Gone"), lambda _: None)
    rig.store.writer.commit()
    rig.work(3)
    rig.store.delete_topic("Gone")
    results: list[Any] = []
    rig.store.writer.put(make_message(body=b"last"), results.append)
    rig.store.writer.commit()
    disk.fault = lambda operation, path: (
        errno.EIO if operation == "delete" and "consumequeue" in path else 0
    )
    rig.store.close()
    assert [result.status for result in results] == [PutStatus.PUT_OK]
    disk.fault = None
    disk.lose_power()
    assert StoreRig(disk).bodies() == [b"last"]


def test_nothing_counts_as_synced_after_a_sync_has_failed(disk):
    """The kernel reports a lost page only once; a later success proves nothing."""
    rig = StoreRig(disk)
    rig.store.writer.put(make_message(), lambda _: None)
    rig.store.writer.commit()
    running = rig.store.upkeep.flusher.job(rig.clock.advance(20_000))
    assert running is not None
    disk.fault = lambda operation, path: (
        errno.EIO if operation == "sync" and "commitlog" in path else 0
    )
    rig.work(5)  # in the meantime a checkpoint fails
    assert rig.store.stats().refusals == ("sync-failed",)
    disk.fault = None
    running.run()
    rig.store.upkeep.flusher.done(running)
    rig.work(20)
    assert rig.store.upkeep.flusher.flushed_offset == 0
    assert rig.store.upkeep.flusher.job(rig.clock.now_ms, is_forced=True) is None


def test_a_sync_can_be_had_before_it_is_due(disk):
    rig = StoreRig(disk)
    rig.put(make_message())
    rig.work(1)
    rig.put(make_message())
    assert rig.store.upkeep.flusher.job(rig.clock.now_ms) is None
    job = rig.store.upkeep.flusher.job(rig.clock.now_ms, is_forced=True)
    assert job is not None
    job.run()
    rig.store.upkeep.flusher.done(job)
    assert rig.store.upkeep.flusher.flushed_offset == rig.store.commit_log.end


@pytest.mark.parametrize("write_count", range(1, 5))
def test_keys_are_found_after_a_crash_between_the_slots_and_the_header_of_an_index_file(
    disk, write_count
):
    rig = StoreRig(disk)
    rig.put(make_message(keys="k0"))
    rig.store.close()
    rig = StoreRig(disk)
    for number in range(1, 20):  # more keys than slots
        rig.put(make_message(keys=f"k{number}"))
    written = []

    def fault(operation, path):
        if operation != "write" or "index/" not in path:
            return 0
        written.append(path)
        return errno.EIO if len(written) >= write_count else 0

    disk.fault = fault
    rig.store.close()
    disk.fault = None
    disk.crash()
    rig = StoreRig(disk)
    rig.put(make_message(keys="k20"))
    rig.store.close()
    rig = StoreRig(disk)
    for number in range(21):
        assert len(finish(rig.store.reader.query("T", f"k{number}", 9, 0, 1 << 62)).records) == 1


@pytest.mark.parametrize("step_ms", [1_000, -3_600_000])
def test_a_crash_between_progress_and_checkpoint_starts_at_the_progress(disk, step_ms):
    """Starting at the checkpoint relies on store times, which a backward clock step invalidates."""
    rig = StoreRig(disk)
    for number in range(3):
        rig.put(make_message(body=bytes(900), keys=f"k{number}"))
    rig.work(3)
    rig.clock.advance(step_ms)
    for number in range(3, 6):  # in the second file
        rig.put(make_message(body=bytes(900), keys=f"k{number}"))
    before = bytes(disk.contents["/store/checkpoint"])
    rig.work(5)
    disk.crash()
    disk.contents["/store/checkpoint"][:] = before
    again = StoreRig(disk)
    assert again.store.upkeep.recovered.start.reason is StartReason.PROGRESS
    assert again.store.upkeep.recovered.record_count == 0
    assert len(again.bodies()) == 6
    for number in range(6):
        assert len(finish(again.store.reader.query("T", f"k{number}", 9, 0, 1 << 62)).records) == 1
