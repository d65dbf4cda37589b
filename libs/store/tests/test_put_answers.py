# SPDX-License-Identifier: Apache-2.0
"""Puts are answered after the write, after the sync, or after replication."""

import errno
from typing import Any

import pytest

from cometmq.store.errors import DiskError
from cometmq.store.results import PutStatus
from cometmq.store.settings import FlushDiskType
from cometmq.testing.store.builders import StoreRig, make_message, small_settings


def test_sync_flush_answers_after_the_sync_and_groups_waiters(disk):
    rig = StoreRig(disk, small_settings(flush_disk_type=FlushDiskType.SYNC_FLUSH))
    results: list[Any] = []
    rig.store.writer.put(make_message(), results.append)
    rig.store.writer.put(make_message(wait=False), results.append)
    rig.store.writer.commit()
    assert [result.queue_offset for result in results] == [1]
    job: Any = rig.store.upkeep.flusher.job(rig.clock.now_ms)
    rig.store.writer.put(make_message(), results.append)
    rig.store.writer.commit()
    following: Any = rig.store.upkeep.flusher.job(
        rig.clock.now_ms
    )  # begins when the first has ended
    assert rig.store.upkeep.flusher.job(rig.clock.now_ms) is None  # nothing waits for a third sync
    job.run()
    rig.store.upkeep.flusher.done(job)
    assert [result.queue_offset for result in results] == [1, 0]
    following.run()
    rig.store.upkeep.flusher.done(following)
    assert [result.queue_offset for result in results] == [1, 0, 2]
    assert {result.status for result in results} == {PutStatus.PUT_OK}


def test_messages_become_visible_after_the_caller_knows_that_they_are_written(disk):
    rig = StoreRig(disk, small_settings(flush_disk_type=FlushDiskType.SYNC_FLUSH))
    log, seen = rig.store.commit_log, []

    def begin_sync(batch: Any) -> None:
        seen.append((batch.end, log.end, log.confirm_offset, rig.store.stats().waiting_put_count))
        raise ValueError("no sync")

    rig.store.writer.put(make_message(), lambda _: None)
    with pytest.raises(ValueError, match="no sync"):
        rig.store.writer.commit(begin_sync)
    assert seen == [(log.end, log.end, 0, 1)]
    assert log.confirm_offset == log.end > 0


def test_the_next_sync_is_planned_again_with_each_commit(disk):
    rig = StoreRig(disk, small_settings(flush_disk_type=FlushDiskType.SYNC_FLUSH))
    results: list[Any] = []
    jobs: list[Any] = []
    for _ in range(4):
        rig.store.writer.put(make_message(), results.append)
        rig.store.writer.commit()
        jobs.append(rig.store.upkeep.flusher.job(rig.clock.now_ms))
    assert [job.start for job in jobs] == [0] * 4
    assert jobs[-1].offset == rig.store.commit_log.end
    rig.store.writer.put(make_message(wait=False), results.append)
    rig.store.writer.commit()
    assert rig.store.upkeep.flusher.job(rig.clock.now_ms) is None
    # The second had begun when the third was planned, and the fourth replaced the third.
    for job, count in ((jobs[0], 2), (jobs[1], 3), (jobs[3], 5)):
        rig.store.upkeep.flusher.done(job)
        assert len(results) == count
    assert rig.store.stats().waiting_put_count == 0
    rig.flush(rig.clock.advance(20_000))
    assert (
        rig.store.upkeep.flusher.flushed_offset == rig.store.commit_log.end
    )  # no sync counts as running


def test_a_sync_after_a_failed_one_proves_nothing(disk):
    rig = StoreRig(disk, small_settings(flush_disk_type=FlushDiskType.SYNC_FLUSH))
    results: list[Any] = []
    jobs: list[Any] = []
    for _ in range(2):
        rig.store.writer.put(make_message(), results.append)
        rig.store.writer.commit()
        jobs.append(rig.store.upkeep.flusher.job(rig.clock.now_ms))
    rig.store.upkeep.flusher.done(jobs[0], DiskError("sync", "/log", errno.EIO))
    rig.store.upkeep.flusher.done(jobs[1])
    assert [result.status for result in results] == [PutStatus.SERVICE_NOT_AVAILABLE] * 2
    assert rig.store.upkeep.flusher.flushed_offset == 0


def test_a_put_waits_for_replicas_when_they_count(disk):
    rig = StoreRig(disk, small_settings(flush_disk_type=FlushDiskType.SYNC_FLUSH))
    rig.store.writer.needs_replicas = True
    results: list[Any] = []
    rig.store.writer.put(make_message(), results.append)
    rig.store.writer.put(make_message(wait=False), results.append)
    rig.store.writer.commit()
    assert [result.queue_offset for result in results] == [1]
    rig.flush()
    assert len(results) == 1
    rig.store.writer.note_replicated(rig.store.commit_log.end)
    assert [result.queue_offset for result in results] == [1, 0]
    assert {result.status for result in results} == {PutStatus.PUT_OK}


def test_replicas_that_stay_behind_are_answered_as_slave_timeout(disk):
    rig = StoreRig(disk, small_settings())
    rig.store.writer.needs_replicas = True
    results: list[Any] = []
    rig.store.writer.put(make_message(), results.append)
    rig.store.writer.commit()
    rig.store.upkeep.flusher.job(rig.clock.advance(5_000))
    assert [result.status for result in results] == [PutStatus.FLUSH_SLAVE_TIMEOUT]


@pytest.mark.parametrize("flush", list(FlushDiskType))
def test_without_a_slave_to_wait_for_a_put_is_not_delayed(disk, flush):
    rig = StoreRig(disk, small_settings(flush_disk_type=flush))
    rig.store.writer.needs_replicas = True
    rig.store.writer.may_replicate = lambda _end: False
    results: list[Any] = []
    rig.store.writer.put(make_message(), results.append)
    rig.store.writer.put(make_message(wait=False), results.append)
    rig.store.writer.commit()
    if flush is FlushDiskType.SYNC_FLUSH:
        assert [result.queue_offset for result in results] == [1]
        rig.flush()
    statuses = {result.queue_offset: result.status for result in results}
    assert statuses == {0: PutStatus.SLAVE_NOT_AVAILABLE, 1: PutStatus.PUT_OK}


def test_a_slow_disk_is_answered_as_flush_timeout(disk):
    rig = StoreRig(disk, small_settings(flush_disk_type=FlushDiskType.SYNC_FLUSH))
    results: list[Any] = []
    rig.store.writer.put(make_message(), results.append)
    rig.store.writer.commit()
    job: Any = rig.store.upkeep.flusher.job(rig.clock.now_ms)
    rig.store.upkeep.flusher.job(rig.clock.advance(5_000))
    assert [result.status for result in results] == [PutStatus.FLUSH_DISK_TIMEOUT]
    job.run()
    rig.store.upkeep.flusher.done(job)
    assert len(results) == 1


def test_async_flush_follows_the_timers(disk, rig):
    rig.put(make_message())
    rig.flush(rig.clock.advance(10_001))
    assert rig.store.stats().flush_count == 1
    rig.put(make_message())
    rig.flush(rig.clock.advance(600))
    assert rig.store.stats().flush_count == 1  # too few dirty pages
    for _ in range(200):
        rig.put(make_message())
    rig.flush(rig.clock.advance(600))
    assert rig.store.stats().flush_count == 2
    assert rig.store.stats().flushed_offset == rig.store.commit_log.end


def test_a_slave_takes_no_puts_until_its_role_changes(rig):
    rig.store.write_state.role_writable = False
    assert rig.put(make_message()).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert not rig.store.write_state.is_writable
    rig.store.write_state.role_writable = True
    assert rig.put(make_message()).status is PutStatus.PUT_OK


def test_a_closed_store_takes_no_puts(rig):
    rig.store.close()
    assert rig.put(make_message()).status is PutStatus.SERVICE_NOT_AVAILABLE
