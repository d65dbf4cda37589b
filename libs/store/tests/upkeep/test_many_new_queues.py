# SPDX-License-Identifier: Apache-2.0
"""A checkpoint, and so a stop, takes few syncs even if thousands of queues are new."""

import pytest

from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.unsaved_queues import NEW_QUEUES_MAX
from cometmq.store.upkeep.checkpointer import STOP_QUEUES_MAX
from cometmq.testing.store.builders import StoreRig, make_message, small_settings
from cometmq.testing.store.memory_disk import MemoryDisk

TOPIC_COUNT = 500


@pytest.mark.parametrize("has_crashed", [False, True])
def test_a_stop_after_many_new_topics_takes_few_syncs(has_crashed):
    disk = MemoryDisk()
    settings = small_settings(mapped_file_size_commit_log=1 << 20)
    rig = StoreRig(disk, settings)
    for number in range(TOPIC_COUNT):
        rig.put(make_message(f"t{number}"))
    before = disk.sync_count
    rig.store.close()
    assert disk.sync_count - before < 20
    if has_crashed:
        disk.crash()
    again = StoreRig(disk, settings)
    assert all(again.store.reader.max_offset(f"t{number}", 0) == 1 for number in range(TOPIC_COUNT))


def test_few_new_queues_are_synced_one_by_one(monkeypatch):
    disk = MemoryDisk()
    monkeypatch.setattr(disk, "sync_all", lambda _: pytest.fail("the whole file system"))
    rig = StoreRig(disk, small_settings(mapped_file_size_commit_log=1 << 20))
    for number in range(10):
        rig.put(make_message(f"t{number}"))
    before = disk.sync_count
    rig.store.close()
    assert disk.sync_count - before >= 10


def test_queues_are_synced_one_by_one_where_a_whole_sync_is_not_possible(monkeypatch):
    disk = MemoryDisk()
    monkeypatch.setattr(disk, "sync_all", lambda _: False)
    rig = StoreRig(disk, small_settings(mapped_file_size_commit_log=1 << 20))
    for number in range(100):
        rig.put(make_message(f"t{number}"))
    before = disk.sync_count
    rig.store.close()
    assert disk.sync_count - before > 100


class CountingDisk(MemoryDisk):
    """Counts the files that are created and deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.change_count = 0
        self.fault = self._count

    def _count(self, operation: str, _path: str) -> int:
        self.change_count += operation in {"create", "delete", "make folder"}
        return 0

    def changes(self, work) -> int:
        """Return how many files a piece of work creates and deletes."""
        before = self.change_count
        work()
        return self.change_count - before


def wide_settings():
    return small_settings(mapped_file_size_commit_log=1 << 20)


def put_topics(rig, numbers):
    for number in numbers:
        rig.put(make_message(f"t{number}", body=b"%d" % number))


def held(rig, count):
    return [
        number
        for number in range(count)
        if rig.store.reader.get_messages(f"t{number}", 0, 0, 1).records
        and rig.store.reader.max_offset(f"t{number}", 0) == 1
    ]


@pytest.mark.parametrize("count", [STOP_QUEUES_MAX - 1, 2 * STOP_QUEUES_MAX])
def test_a_stop_creates_a_bounded_number_of_files(count):
    disk = CountingDisk()
    rig = StoreRig(disk, wide_settings())
    put_topics(rig, range(count))
    is_short = count > STOP_QUEUES_MAX
    bound = 30 if is_short else 3 * STOP_QUEUES_MAX  # two folders and a file for each
    assert disk.changes(rig.store.close) < bound
    assert disk.exists("/store/abort") == is_short
    disk.lose_power()  # the log is on the disk
    again = StoreRig(disk, wide_settings(), boot_id="other")
    assert held(again, count) == list(range(count))


def test_jobs_create_a_bounded_number_of_files_and_reach_a_checkpoint():
    count, disk = 3 * NEW_QUEUES_MAX + 1, CountingDisk()
    rig = StoreRig(disk, wide_settings())
    put_topics(rig, range(count))
    for _ in range(8):
        for job in rig.store.jobs(rig.clock.advance(2_000)):
            assert disk.changes(job.run) <= 3 * (NEW_QUEUES_MAX + 10)
            job.done(None)
    assert rig.store.stats().checkpoint_offset == rig.store.commit_log.end
    disk.crash()
    assert held(StoreRig(disk, wide_settings()), count) == list(range(count))


def test_planning_a_job_copies_only_what_the_job_writes(monkeypatch):
    """The event loop plans: with 40,000 new queues, each of 80 jobs held it for 120 ms."""
    count, copied, unwritten = 5 * NEW_QUEUES_MAX, list[ConsumeQueue](), ConsumeQueue.unwritten

    def noted(queue):
        copied.append(queue)
        return unwritten(queue)

    rig = StoreRig(CountingDisk(), wide_settings())
    put_topics(rig, range(count))
    monkeypatch.setattr(ConsumeQueue, "unwritten", noted)
    for _ in range(count // NEW_QUEUES_MAX):
        before = len(copied)
        for job in rig.store.jobs(rig.clock.advance(2_000)):
            assert len(copied) - before <= NEW_QUEUES_MAX
            job.run()
            job.done(None)
    assert len(set(copied)) == len(copied) == count
    assert rig.store.stats().checkpoint_offset == rig.store.commit_log.end


def test_a_stop_after_thousands_of_deletions_deletes_few_files():
    count, disk = STOP_QUEUES_MAX + 1, CountingDisk()
    rig = StoreRig(disk, wide_settings())
    put_topics(rig, range(count + 1))
    rig.work(10)
    for number in range(count):
        rig.store.delete_topic(f"t{number}")
    assert disk.changes(rig.store.close) < 30
    again = StoreRig(disk, wide_settings())
    assert again.store.reader.topics() == {f"t{count}"}
    assert held(again, count + 1) == [count]
