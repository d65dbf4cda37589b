# SPDX-License-Identifier: Apache-2.0
"""Groups that read the same offsets share the bytes of the first read."""

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.store.queues import pulls
from cometmq.store.queues.pulls import RecentReads
from cometmq.store.queues.queue_files import ENTRY
from cometmq.store.queues.queue_reader import ReadLimits
from cometmq.store.results import GetStatus
from cometmq.testing.store.builders import StoreRig, make_message
from cometmq.testing.store.memory_disk import MemoryDisk


@pytest.fixture
def rig(disk):
    rig = StoreRig(disk)
    fill(rig, 40)
    rig.work(2)
    return rig


def fill(rig, count):
    for number in range(count):
        rig.put(make_message(topic="T", body=b"%d" % number))


def read(rig, offset=0, count_max=8):
    reader = rig.store.reader
    return rig.settled(lambda: reader.get_messages("T", 0, offset, count_max, joined=True))


def said(result):
    """Return an answer's content with its records joined."""
    return (
        b"".join(map(bytes, result.records)), result.status, result.next_offset,
        result.min_offset, result.max_offset, result.count, result.bytes, result.suggest_slave,
    )  # fmt: skip


@pytest.mark.parametrize("offset", [0, 5, 32, 36])
def test_the_third_reader_needs_no_disk(rig, disk, offset):
    first, second = read(rig, offset), read(rig, offset)
    disk.is_cold = True
    third = read(rig, offset)
    assert not third.is_cold
    assert said(first) == said(second) == said(third)
    assert len(third.records) == 1


def test_a_place_read_once_is_read_again(rig, disk):
    read(rig)
    disk.is_cold = True
    assert read(rig).is_cold


def test_other_places_and_counts_are_others(rig, disk):
    for _ in range(3):
        read(rig)
    disk.is_cold = True
    assert read(rig, 1).is_cold
    assert read(rig, 0, 7).is_cold


def test_records_come_one_by_one_for_who_wants_them_so(rig):
    for _ in range(3):
        read(rig)
    assert len(rig.store.reader.get_messages("T", 0, 0, 8).records) == 8


def test_a_place_with_room_is_read_again_when_the_queue_has_grown(rig):
    for _ in range(3):
        assert read(rig, 38).count == 2
    fill(rig, 1)
    assert read(rig, 38).count == 3


def test_a_full_place_stays_good_when_the_queue_has_grown(rig, disk):
    for _ in range(3):
        read(rig)
    fill(rig, 1)
    disk.is_cold = True
    found = read(rig)
    assert (found.count, found.max_offset) == (8, 41)


def test_what_retention_took_is_gone(rig):
    for _ in range(3):
        read(rig)
    rig.queue("T", 0).trim(4, 0)
    assert read(rig).status is GetStatus.OFFSET_TOO_SMALL


def test_what_is_no_longer_near_the_end_is_read_by_the_rules_for_that(rig):
    for _ in range(3):
        read(rig)
    rig.store.pulls._limits = ReadLimits(8, 1 << 20, 3, 1 << 20, memory_bytes=100)
    rig.store.pulls._limits_by_count.clear()
    assert read(rig).count == 3


def test_other_settings_hold_at_once(rig):
    for _ in range(3):
        assert read(rig).count == 8
    settings = msgspec.structs.replace(
        rig.store._parts.settings, max_transfer_count_on_message_in_memory=2
    )
    rig.store.apply(settings)
    assert read(rig).count == 2


def test_a_cut_log_is_read_again(rig):
    for _ in range(3):
        assert read(rig, 36).count == 4
    place = ENTRY.unpack(rig.queue("T", 0).plan(36, 1).read(may_block=True))[0]
    rig.store.truncate(place)
    for number in range(4):
        rig.put(make_message(topic="T", body=b"new %d" % number))
    assert b"new 3" in said(read(rig, 36))[0]


def test_damaged_places_are_not_kept(rig):
    place = ENTRY.unpack(rig.queue("T", 0).plan(1, 1).read(may_block=True))[0]
    rig.store.commit_log.files.file_at(place).write(place + 28, [bytes(8)])
    assert [len(read(rig).damaged) for _ in range(3)] == [8, 8, 8]  # their block is damaged


def test_the_memory_has_bounds(rig, monkeypatch):
    monkeypatch.setattr(pulls, "BYTES_MAX", 2_000)
    monkeypatch.setattr(pulls, "PLACES_MAX", 10)
    for offset in range(30):
        for _ in range(3):
            assert read(rig, offset).count == 8
    recent = rig.store.pulls._recent
    kept = [place for place in recent._places.values() if place is not None]
    assert recent._bytes == sum(len(place.body) for place in kept) <= 2_000
    assert 0 < len(recent._places) <= 10
    monkeypatch.setattr(pulls, "BODY_BYTES_MAX", 100)
    before = recent._bytes
    read(rig, 31)
    read(rig, 31)
    assert recent._bytes <= before


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(0, 45), st.sampled_from([1, 7, 8, 32, 64])),
        st.tuples(st.sampled_from(["fill", "trim", "near", "count", "delete"]), st.integers(1, 9)),
    ),
    min_size=10,
    max_size=40,
)


class CountingReads(RecentReads):
    def __init__(self, counts):
        super().__init__()
        self.counts = counts

    def find(self, *place):
        found = super().find(*place)
        self.counts["asked"] += 1
        self.counts["found"] += found is not None
        return found


def apply(rig, name, number):
    if name == "fill":
        fill(rig, number)
    elif name == "trim" and (queue := rig.store.reader.queue("T", 0)) is not None:
        queue.trim(min(queue.min_offset + number, queue.max_offset), 0)
    elif name == "near":
        rig.store.pulls._memory_bytes = number * 300
        rig.store.apply(rig.store._parts.settings)
    elif name == "count":
        settings = msgspec.structs.replace(
            rig.store._parts.settings, max_transfer_count_on_message_in_memory=4 * number
        )
        rig.store.apply(settings)
    elif name == "delete" and number == 1:
        rig.store.delete_topic("T")


def test_shared_reads_answer_as_reads_that_share_nothing():
    counts: Any = Counter()

    @given(OPERATIONS)
    def check(operations):
        rig = StoreRig(MemoryDisk())
        fill(rig, 40)
        rig.store.pulls._recent = CountingReads(counts)
        for operation in operations:
            if operation[0] != "read":
                apply(rig, *operation)
                continue
            _, offset, count_max = operation
            for _ in range(3):
                alone = rig.store.reader.get_messages("T", 0, offset, count_max)
                assert said(read(rig, offset, count_max)) == said(alone)

    check()

    assert counts["found"] > counts["asked"] // 10
