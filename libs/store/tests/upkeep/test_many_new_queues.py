# SPDX-License-Identifier: Apache-2.0
"""A checkpoint, and so a stop, takes few syncs even if thousands of queues are new."""

import pytest

from cometmq.store.testing.builders import StoreRig, make_message, small_settings
from cometmq.store.testing.memory_disk import MemoryDisk

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
    assert all(again.store.max_offset(f"t{number}", 0) == 1 for number in range(TOPIC_COUNT))


def test_few_new_queues_are_synced_one_by_one(monkeypatch):
    disk = MemoryDisk()
    monkeypatch.setattr(disk, "sync_all", lambda _: pytest.fail("the whole file system"))
    rig = StoreRig(disk, small_settings(mapped_file_size_commit_log=1 << 20))
    for number in range(10):
        rig.put(make_message(f"t{number}"))
    rig.store.close()


def test_queues_are_synced_one_by_one_where_a_whole_sync_is_not_possible(monkeypatch):
    disk = MemoryDisk()
    monkeypatch.setattr(disk, "sync_all", lambda _: False)
    rig = StoreRig(disk, small_settings(mapped_file_size_commit_log=1 << 20))
    for number in range(100):
        rig.put(make_message(f"t{number}"))
    before = disk.sync_count
    rig.store.close()
    assert disk.sync_count - before > 100
