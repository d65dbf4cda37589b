# SPDX-License-Identifier: Apache-2.0
"""On a full or failing disk, no put hangs and no acknowledged message is lost."""

import errno
from typing import Any

import pytest

from cometmq.store.reads import finish
from cometmq.store.results import PutStatus
from cometmq.store.settings import FlushDiskType
from cometmq.testing.store.builders import StoreRig, make_message, small_settings


@pytest.fixture
def rig(disk):
    return StoreRig(disk)


def failing(number, operation, part):
    def fault(called, path):
        return number if called == operation and part in path else 0

    return fault


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("operation", ["write", "create"])
def test_a_failed_append_is_answered_invisible_and_mended(disk, rig, number, operation):
    body = bytes(300)
    rig.put(make_message(body=b"before"))
    disk.fault = failing(number, operation, "commitlog")
    results: list[Any] = []
    for _ in range(20):  # reaches the next file
        rig.store.writer.put(make_message(body=body), results.append)
    rig.store.writer.commit()
    assert {result.status for result in results} == {PutStatus.SERVICE_NOT_AVAILABLE}
    assert rig.store.reader.max_offset("T", 0) == 1
    assert rig.bodies() == [b"before"]
    assert not rig.store.write_state.is_writable
    assert rig.store.stats().refusals == ("log-write-failed",)
    assert rig.put(make_message()).status is PutStatus.SERVICE_NOT_AVAILABLE
    rig.work(3)
    assert not rig.store.write_state.is_writable
    disk.fault = None
    rig.work(3)
    assert rig.store.write_state.is_writable
    assert rig.put(make_message(body=b"after")).queue_offset == 1
    disk.crash()
    assert StoreRig(disk).bodies() == [b"before", b"after"]


def test_a_crash_while_the_disk_is_full_loses_nothing(disk, rig):
    for number in range(10):
        rig.put(make_message(body=b"%d" % number))
    disk.fault = failing(errno.ENOSPC, "write", "commitlog")
    rig.put(make_message(body=b"refused"))
    disk.fault = None
    disk.crash()
    assert StoreRig(disk).bodies() == [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("folder", ["consumequeue", "index/"])
@pytest.mark.parametrize("operation", ["write", "create"])
def test_no_room_for_queues_or_index_stops_the_puts_and_is_mended(disk, rig, folder, operation):
    disk.fault = failing(errno.ENOSPC, operation, folder)
    for number in range(10):
        rig.put(make_message(body=b"%d" % number, keys=f"k{number}"))
    stored = rig.store.reader.max_offset("T", 0)
    rig.work(3)
    assert rig.put(make_message(keys="late")).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert rig.store.stats().refusals == ("queue-write-failed",)
    assert rig.bodies() == [b"%d" % number for number in range(stored)]  # reads still work
    disk.fault = None
    rig.work(4)
    assert rig.store.write_state.is_writable
    assert rig.put(make_message(keys="again")).status is PutStatus.PUT_OK
    for key in [*(f"k{number}" for number in range(stored)), "again"]:
        assert len(finish(rig.store.reader.query("T", key, 9, 0, 1 << 62)).records) == 1
    rig.store.close()
    again = StoreRig(disk)
    assert again.store.upkeep.recovered.was_clean
    assert len(again.bodies()) == stored + 1
    assert len(finish(again.store.reader.query("T", "k0", 9, 0, 1 << 62)).records) == 1


@pytest.mark.parametrize("kind", list(FlushDiskType))
def test_a_failed_sync_is_for_good(disk, kind):
    """The kernel may have dropped the pages, so the content of the disk is unknown."""
    rig = StoreRig(disk, small_settings(flush_disk_type=kind))
    disk.fault = failing(errno.EIO, "sync", "commitlog")
    results: list[Any] = []
    rig.store.writer.put(make_message(), results.append)
    rig.store.writer.commit()
    is_sync = kind is FlushDiskType.SYNC_FLUSH
    rig.flush(rig.clock.advance(100 if is_sync else 20_000))
    expected = PutStatus.SERVICE_NOT_AVAILABLE if is_sync else PutStatus.PUT_OK
    assert [result.status for result in results] == [expected]
    disk.fault = None
    rig.work(5)
    assert rig.store.stats().refusals == ("sync-failed",)
    assert rig.put(make_message()).status is PutStatus.SERVICE_NOT_AVAILABLE
    rig.store.close()
    assert disk.exists("/store/abort")  # the next start recovers


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("kind", list(FlushDiskType))
def test_a_file_that_cannot_be_opened_is_synced_later(disk, kind, number):
    """Too many open files are no reason to give up the store: no page was lost."""
    rig = StoreRig(disk, small_settings(flush_disk_type=kind))
    disk.fault = failing(number, "sync", "commitlog")
    results: list[Any] = []
    rig.store.writer.put(make_message(), results.append)
    rig.store.writer.commit()
    is_sync = kind is FlushDiskType.SYNC_FLUSH
    rig.flush(rig.clock.advance(100 if is_sync else 20_000))
    assert bool(results) is not is_sync
    assert rig.store.stats().refusals == ()
    disk.fault = None
    assert rig.store.upkeep.flusher.job(rig.clock.now_ms) is None  # not at once
    rig.flush(rig.clock.advance(100))
    assert [result.status for result in results] == [PutStatus.PUT_OK]
    assert rig.store.write_state.is_writable
    rig.store.close()
    assert StoreRig(disk).store.upkeep.recovered.was_clean


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_checkpoint_that_cannot_open_a_file_is_repeated(disk, rig, number):
    rig.put(make_message())
    disk.fault = failing(number, "sync", "consumequeue")
    rig.work(3)
    assert "sync-failed" not in rig.store.stats().refusals
    disk.fault = None
    rig.work(3)
    assert rig.store.stats().refusals == ()


def test_a_failed_sync_of_a_checkpoint_is_for_good(disk, rig):
    rig.put(make_message())
    disk.fault = failing(errno.EIO, "sync", "consumequeue")
    rig.work(3)
    assert rig.store.stats().refusals == ("sync-failed",)


def test_messages_staged_while_writes_are_refused_are_answered(disk, rig):
    results: list[Any] = []
    rig.store.writer.put(make_message(), results.append)
    rig.store.write_state.role_writable = False
    rig.store.writer.commit()
    assert [result.status for result in results] == [PutStatus.SERVICE_NOT_AVAILABLE]
    assert rig.store.commit_log.end == 0


def test_a_disk_above_the_warning_level_refuses_until_it_is_below(disk):
    rig = StoreRig(disk, small_settings(disk_space_warning_level_ratio=90))
    disk.used_percent = 91
    rig.work(12)
    assert rig.store.stats().refusals == ("disk-full",)
    assert rig.put(make_message()).status is PutStatus.SERVICE_NOT_AVAILABLE
    disk.used_percent = 90
    rig.work(12)
    assert rig.put(make_message()).status is PutStatus.PUT_OK


def test_a_refusal_tells_how_full_the_disk_is_now(disk, rig):
    """Another program may fill the disk between two measurements."""
    rig.work(12)
    seen = []
    disk.used_percent = 100
    disk.fault = failing(errno.ENOSPC, "write", "commitlog")
    rig.store.writer.put(make_message(), lambda _: seen.append(rig.store.stats().disk_used_percent))
    rig.store.writer.commit()
    assert seen == [100]
    disk.used_percent = 97
    rig.work(2)
    assert rig.store.stats().disk_used_percent == 97
    disk.used_percent = 40
    disk.fault = None
    rig.work(2)
    assert rig.store.write_state.is_writable
    assert rig.store.stats().disk_used_percent == 40


def test_several_reasons_must_all_go(disk):
    rig = StoreRig(disk, small_settings(disk_space_warning_level_ratio=90))
    rig.store.write_state.role_writable = False
    disk.used_percent = 95
    rig.work(12)
    assert rig.store.stats().refusals == ("disk-full", "role")
    rig.store.write_state.role_writable = True
    assert not rig.store.write_state.is_writable
    disk.used_percent = 50
    rig.work(12)
    assert rig.store.write_state.is_writable


def test_a_store_that_cannot_save_at_the_end_says_so_by_its_abort_file(disk, rig):
    rig.put(make_message())
    disk.fault = failing(errno.ENOSPC, "write", "consumequeue")
    rig.store.close()
    assert disk.exists("/store/abort")
    disk.fault = None
    assert StoreRig(disk).bodies() == [b"Hello"]


def test_a_spare_file_that_cannot_be_made_is_tried_again(disk, rig):
    disk.fault = failing(errno.ENOSPC, "create", "00000000000000004096")
    for _ in range(20):
        rig.put(make_message(body=bytes(50)))
    rig.work(4)
    assert rig.store.stats().commit_log_file_count == 1
    assert rig.store.write_state.is_writable
    disk.fault = None
    rig.work(4)
    assert rig.store.stats().commit_log_file_count == 2


def test_a_checkpoint_from_before_the_failure_does_not_end_it(disk, rig):
    for number in range(60):
        rig.put(make_message(keys=f"k{number}"))
    rig.work(3)
    rig.put(make_message(keys="more"))
    (job,) = [job for job in rig.store.jobs(rig.clock.advance(2_000)) if job.name == "checkpoint"]
    disk.fault = failing(errno.ENOSPC, "create", "index/")
    while rig.put(make_message(keys="late")).status.is_stored:
        assert rig.store.reader.max_offset("T", 0) < 10_000

    job.run()
    job.done(None)

    assert rig.store.stats().refusals == ("queue-write-failed",)
    disk.fault = None
    rig.work(4)
    assert rig.store.write_state.is_writable


@pytest.mark.parametrize("folder", ["consumequeue", "index/", "store/"])
def test_a_store_opens_for_reading_on_a_full_disk(disk, rig, folder):
    for number in range(10):
        rig.put(make_message(body=b"%d" % number, keys=f"k{number}"))
    disk.crash()

    def full(operation, path):
        return errno.ENOSPC if operation in {"write", "create"} and folder in path else 0

    disk.contents.setdefault("/store/abort", bytearray())
    disk.fault = lambda operation, path: 0 if path.endswith("abort") else full(operation, path)
    rig = StoreRig(disk)
    assert rig.bodies() == [b"%d" % number for number in range(10)]
    assert len(finish(rig.store.reader.query("T", "k7", 9, 0, 1 << 62)).records) == 1
    rig.work(3)
    assert not rig.store.write_state.is_writable
    disk.fault = None
    rig.work(5)
    assert rig.put(make_message(body=b"10")).status is PutStatus.PUT_OK
    rig.store.close()
    rig = StoreRig(disk)
    assert len(rig.bodies()) == 11
    assert len(finish(rig.store.reader.query("T", "k7", 9, 0, 1 << 62)).records) == 1
