# SPDX-License-Identifier: Apache-2.0
"""The search for topics of waiting messages; tests/crash/test_lost_topics.py has the whole way."""

from typing import Final

import pytest

from cometmq.broker.tables import lost_creations
from cometmq.broker.tables.lost_creations import waiting_topics
from cometmq.remoting.names import HALF_TOPIC, SCHEDULE_TOPIC
from cometmq.store.log.damage import DamagedRange
from cometmq.testing.store.builders import StoreRig, make_message, small_settings
from cometmq.testing.store.memory_disk import MemoryDisk

SETTINGS: Final = small_settings(mapped_file_size_commit_log=1 << 20)
COUNT: Final = 8


@pytest.fixture
def rig() -> StoreRig:
    """A store with delayed messages in two levels and half messages, in turn."""
    rig = StoreRig(MemoryDisk(), SETTINGS)
    for number in range(COUNT):
        for topic, queue_id, name in (
            (SCHEDULE_TOPIC, number % 2, f"D{number}"),
            (HALF_TOPIC, 0, f"H{number}"),
        ):
            properties = {"REAL_TOPIC": name, "REAL_QID": str(number)}
            rig.put(make_message(topic, queue_id, properties=properties))
    return rig


def expected(*numbers: int) -> dict[str, int]:
    return {f"{kind}{number}": number + 1 for kind in "DH" for number in numbers}


def test_all_waiting_messages_behind_an_offset_are_found(rig: StoreRig) -> None:
    since = rig.entry(SCHEDULE_TOPIC, 1, 2).physical_offset
    assert waiting_topics(rig.store, 0) == expected(*range(COUNT))
    assert waiting_topics(rig.store, since) == expected(5, 6, 7)
    assert waiting_topics(rig.store, rig.store.commit_log.end) == {}
    assert waiting_topics(rig.store, None) == {}


def test_the_newest_messages_of_all_queues_are_read_first(rig: StoreRig) -> None:
    assert waiting_topics(rig.store, 0, count_max=4) == expected(6, 7)


def test_messages_before_the_deletion_of_their_topic_do_not_count(rig: StoreRig) -> None:
    rig.put(make_message("D6"))
    rig.store.delete_topic("D6")
    assert rig.store.reader.queue("D6", 0) is None
    left = expected(*range(COUNT))
    del left["D6"]
    assert waiting_topics(rig.store, 0) == left


def reads_of(rig: StoreRig, disk: MemoryDisk) -> int:
    """Return how often the search reads the log."""
    count = 0

    def counted(operation: str, path: str) -> int:
        nonlocal count
        count += operation == "read" and "/commitlog/" in path
        return 0

    disk.fault = counted
    waiting_topics(rig.store, 0)
    disk.fault = None
    return count


def test_messages_that_lie_together_are_read_together_but_not_what_lies_between() -> None:
    disk = MemoryDisk()
    rig = StoreRig(disk, SETTINGS)
    properties = {"REAL_TOPIC": "D", "REAL_QID": "0"}
    for _ in range(300):
        rig.put(make_message(SCHEDULE_TOPIC, 0, properties=properties))
    assert reads_of(rig, disk) == 1
    rig.put(make_message("Other", body=bytes(lost_creations.GAP_BYTES_MAX)))
    rig.put(make_message(SCHEDULE_TOPIC, 0, properties=properties))
    assert reads_of(rig, disk) == 2


def test_a_damaged_message_hides_no_other(rig: StoreRig) -> None:
    whole = waiting_topics(rig.store, 0)
    entry = rig.entry(HALF_TOPIC, 0, 3)
    rig.store.commit_log.set_damage(
        [DamagedRange(entry.physical_offset, entry.physical_offset + 1)]
    )
    assert whole.pop("H3")
    assert waiting_topics(rig.store, 0) == whole


def test_messages_in_several_files_are_found() -> None:
    rig = StoreRig(MemoryDisk(), small_settings(mapped_file_size_commit_log=4096))
    for number in range(100):
        properties = {"REAL_TOPIC": f"D{number}", "REAL_QID": "0"}
        rig.put(make_message(SCHEDULE_TOPIC, 0, properties=properties))
    assert len(rig.store.commit_log.files.files) > 3
    assert waiting_topics(rig.store, 0) == {f"D{number}": 1 for number in range(100)}
