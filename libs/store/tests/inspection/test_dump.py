# SPDX-License-Identifier: Apache-2.0
"""Dumps report damaged records instead of leaving them out silently."""

from typing import Any

import pytest

from cometmq.store.inspection.dump import DamagedEntry, dump_log, dump_queue
from cometmq.testing.store.builders import StoreRig, make_message
from cometmq.testing.store.memory_disk import MemoryDisk

LOG = "/store/commitlog/" + "0" * 20
QUEUE = "/store/consumequeue/T/0/" + "0" * 20
SIZE_AT, BODY_AT = 0, 88


@pytest.fixture
def disk():
    disk = MemoryDisk()
    rig = StoreRig(disk)
    for number in range(10):
        rig.put(make_message("T", 0, b"body-%d" % number))
    rig.store.close()
    return disk


def damage(disk, number, at):
    """Change a byte of a record; return the log offset of the record and of the next one."""
    place, next_place = (dump_place(disk, number), dump_place(disk, number + 1))
    disk.contents[LOG][place + at] ^= 0x20
    return place, next_place


def dump_place(disk, number):
    records = list(dump_log("/store", disk=disk))
    last = records[-1]
    ends = [record.physical_offset for record in records]
    return [*ends, last.physical_offset + last.size][number]


def dumped_log(disk):
    found: list[Any] = []
    records = list(dump_log("/store", disk=disk, on_damage=found.append))
    return [record.body for record in records], [
        (it.physical_offset, it.next_offset) for it in found
    ]


@pytest.mark.parametrize("at", [SIZE_AT, BODY_AT])
@pytest.mark.parametrize("number", [0, 5, 9])
def test_the_dump_of_a_log_reports_a_damaged_record(disk, number, at):
    place = damage(disk, number, at)
    bodies, found = dumped_log(disk)
    assert bodies == [b"body-%d" % n for n in range(10) if n != number]
    assert found == [place]


def test_the_dump_of_a_queue_reports_a_damaged_record(disk):
    sixth = damage(disk, 6, SIZE_AT)[0]
    third = damage(disk, 3, BODY_AT)[0]
    found: list[Any] = []
    records = list(dump_queue("/store", "T", 0, disk=disk, on_damage=found.append))
    assert [record.queue_offset for record in records] == [0, 1, 2, 3, 4, 5, 7, 8, 9]
    assert found == [
        DamagedEntry(3, third, is_printable=True),
        DamagedEntry(6, sixth),
    ]


def test_a_store_in_use_has_no_damage_to_report():
    disk = MemoryDisk()
    rig = StoreRig(disk)
    for number in range(10):
        rig.put(make_message("T", 0, b"body-%d" % number))
    assert dumped_log(disk) == ([b"body-%d" % n for n in range(10)], [])
    rig.store.close()


def test_a_healthy_store_has_no_damage_to_report(disk):
    assert dumped_log(disk) == ([b"body-%d" % n for n in range(10)], [])
    found: list[Any] = []
    assert len(list(dump_queue("/store", "T", 0, disk=disk, on_damage=found.append))) == 10
    assert found == []


def bodies_of_topic(disk):
    gone: list[Any] = []
    kept = [record.body for record in dump_log("/store", topic="T", on_gone=gone.append, disk=disk)]
    return kept, [record.body for record in gone]


def recreated(*, extra):
    """Store messages in a topic, delete it, and store more in a new topic of the same name."""
    disk = MemoryDisk()
    rig = StoreRig(disk)
    for number in range(4):
        rig.put(make_message("T", number % 2, b"old-%d" % number))
    rig.put(make_message("Other", 0, b"other"))
    rig.store.delete_topic("T")
    for number in range(extra):
        rig.put(make_message("T", 0, b"new-%d" % number))
    return rig, disk


def test_the_dump_of_a_topic_leaves_out_a_deleted_topic_of_its_name():
    rig, disk = recreated(extra=1)
    rig.store.close()
    old = [b"old-%d" % number for number in range(4)]
    assert bodies_of_topic(disk) == ([b"new-0"], old)
    assert [record.body for record in dump_log("/store", topic="T", disk=disk)] == [*old, b"new-0"]


def test_the_dump_of_a_deleted_topic_still_has_its_records():
    rig, disk = recreated(extra=0)
    rig.store.close()
    assert bodies_of_topic(disk) == ([b"old-%d" % number for number in range(4)], [])


def test_records_whose_queue_entries_are_not_built_yet_stay_in_the_dump():
    """In a copy of a running broker's store, the queues may end before the log."""
    rig, disk = recreated(extra=1)
    rig.work()
    rig.put(make_message("T", 0, b"new-1"))
    rig.put(make_message("T", 1, b"new-2"))
    old = [b"old-%d" % number for number in range(4)]
    assert QUEUE in disk.contents
    assert bodies_of_topic(disk) == ([b"new-0", b"new-1", b"new-2"], old)
    rig.store.close()
    assert bodies_of_topic(disk) == ([b"new-0", b"new-1", b"new-2"], old)
