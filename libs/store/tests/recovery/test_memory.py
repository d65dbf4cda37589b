# SPDX-License-Identifier: Apache-2.0
"""The memory of a start does not grow with the log, whatever it has to rebuild."""

import pytest

from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.queue_files import ENTRY
from cometmq.store.recovery import replay
from cometmq.store.recovery.start import StartReason
from cometmq.testing.store.builders import StoreRig, make_message, small_settings

COUNT = 2_000
QUEUE_COUNT = 4
SETTINGS = small_settings(
    mapped_file_size_commit_log=64 << 10, mapped_file_size_consume_queue=100 * ENTRY.size,
    max_hash_slot_num=50, max_index_num=200,
)  # fmt: skip
SPILL_COUNT = 100
PUBLISH_COUNT = 40


@pytest.fixture
def peaks(monkeypatch):
    """Return the largest number of entries in memory, and of index files whose slots are."""
    monkeypatch.setattr(replay, "SPILL_BYTES", SPILL_COUNT * ENTRY.size)
    monkeypatch.setattr(replay, "SPILL_QUEUE_BYTES", 0)
    monkeypatch.setattr(replay, "PUBLISH_COUNT", PUBLISH_COUNT)
    monkeypatch.setattr(replay, "GROWING_COUNT_MAX", 2)
    found = {"entries": 0, "growing": 0}
    tails: dict[ConsumeQueue, int] = {}
    publish = ConsumeQueue.publish

    def measured(queue: ConsumeQueue) -> None:
        publish(queue)
        tails[queue] = queue.tail_bytes // ENTRY.size
        found["entries"] = max(found["entries"], sum(it.tail_bytes for it in tails) // ENTRY.size)

    monkeypatch.setattr(ConsumeQueue, "publish", measured)
    return found


def filled(disk):
    rig = StoreRig(disk, SETTINGS)
    for number in range(COUNT):
        rig.put(make_message(queue_id=number % QUEUE_COUNT, body=b"%d" % number, keys=f"k{number}"))
    rig.work(3)
    return rig


def lose(disk, what):
    paths = {
        "index": ["/store/index"],
        "queues": ["/store/consumequeue"],
        "both": ["/store/index", "/store/consumequeue"],
        "a first file": ["/store/consumequeue/T/1/" + "0" * 20],
        "a middle file": [f"/store/consumequeue/T/1/{200 * ENTRY.size:020d}"],
    }.get(what, ["/store/index", "/store/progress", "/store/checkpoint", "/store/checksums"])
    for path in paths:
        disk.remove_tree(path) if disk.is_folder(path) else disk.remove(path)


def contents(rig):
    reader = rig.store.reader
    queues = {
        queue_id: [
            rig.entry("T", queue_id, at)[:2] for at in range(reader.max_offset("T", queue_id))
        ]
        for queue_id in range(QUEUE_COUNT)
    }
    return queues, sum(file.header.next_number - 1 for file in rig.store.upkeep.index.files)


LOST = ["index", "queues", "both", "a first file", "a middle file", "all but the log and queues"]


@pytest.mark.parametrize("what", LOST)
def test_a_start_keeps_few_entries_in_memory(disk, peaks, what):
    rig = filled(disk)
    whole = contents(rig)
    rig.store.close()
    lose(disk, what)
    peaks["entries"] = 0
    rig = StoreRig(disk, SETTINGS)
    assert peaks["entries"] <= SPILL_COUNT + 2 * PUBLISH_COUNT
    index = rig.store.upkeep.index
    assert sum(file.is_growing for file in index.files) <= 3
    assert index.unwritten_bytes < COUNT // 2 * ENTRY.size
    if what != LOST[-1]:  # a clean stop of another program: its index ends where it does
        assert contents(rig) == whole


@pytest.mark.parametrize("is_saved", [True, False])
def test_entries_written_by_a_start_survive_a_power_loss(disk, peaks, is_saved):
    rig = filled(disk)
    whole = contents(rig)
    rig.store.close()
    lose(disk, "both")
    rig = StoreRig(disk, SETTINGS)
    if is_saved:
        rig.work(3)
    disk.lose_power()
    rig = StoreRig(disk, SETTINGS)
    reason = rig.store.upkeep.recovered.start.reason
    assert reason is (StartReason.PROGRESS if is_saved else StartReason.QUEUES_LOST)
    assert contents(rig) == whole


def test_a_deleted_topic_leaves_nothing_to_sync(disk, peaks):
    rig = filled(disk)
    rig.store.delete_topic("T")
    for number in range(SPILL_COUNT):
        rig.put(make_message(queue_id=0, body=b"%d" % number, topic="U"))
    rig.work(3)
    rig.store.close()
    lose(disk, "both")
    rig = StoreRig(disk, SETTINGS)
    rig.work(3)
    assert rig.store.reader.max_offset("U", 0) == SPILL_COUNT
    assert rig.store.stats().refusals == ()
    rig.store.close()
    assert "/store/abort" not in disk.contents
