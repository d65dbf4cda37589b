# SPDX-License-Identifier: Apache-2.0
"""A read that tests records returns and skips the same messages as a read by tag."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.remoting.message.record import decode_record
from cometmq.remoting.types import Buffer
from cometmq.store.message_store import MessageStore
from cometmq.store.os_disk import OsDisk
from cometmq.store.queues.matching_reader import BLOCK_COUNT_MAX, BlockSize, read_matching
from cometmq.store.queues.queue_files import ENTRY
from cometmq.store.queues.queue_reader import SCAN_COUNT_MIN, ReadLimits, read_queue
from cometmq.store.reads import PAUSE, Exhausted, Read, finish
from cometmq.store.results import GetStatus
from cometmq.testing.store.builders import StoreRig, make_message, small_settings
from cometmq.testing.store.memory_disk import MemoryDisk

ODD = make_message(tags="odd").tag_code


@pytest.fixture
def rig(disk):
    return StoreRig(disk)


def is_odd(record):
    return decode_record(record).tags == "odd"


def fill(rig, count, *, topics=("T",), size=0):
    for number in range(count):
        for topic in topics:
            tags = "even" if number % 2 == 0 else "odd"
            rig.put(make_message(topic=topic, tags=tags, body=b"%d" % number + bytes(size)))


def reads_of(lookup):
    """Run a lookup; return its reads and its result."""
    reads: list[Read] = []
    try:
        read = next(lookup)
        while True:
            reads.append(read)
            read = lookup.send(read.load())
    except StopIteration as end:
        return reads, end.value


@given(
    st.integers(0, 40),
    st.integers(-1, 45),
    st.integers(1, 40),
    st.sampled_from([0, 300]),
    st.sampled_from([("T",), ("T", "U")]),
)
def test_it_reads_what_a_read_by_tag_does(count, offset, count_max, size, topics):
    rig = StoreRig(MemoryDisk())
    fill(rig, count, topics=topics, size=size)
    by_tag = rig.store.reader.get_messages("T", 0, offset, count_max, accept=lambda tag: tag == ODD)

    matching = finish(rig.store.reader.find_messages("T", 0, offset, count_max, is_odd))

    assert list(map(bytes, matching.records)) == list(map(bytes, by_tag.records))
    for field in ("status", "next_offset", "min_offset", "max_offset", "count", "bytes"):
        assert getattr(matching, field) == getattr(by_tag, field), field


def test_a_read_that_finds_nothing_looks_at_so_many_and_says_where_to_go_on(rig):
    fill(rig, SCAN_COUNT_MIN + 10)
    tested: list[Buffer] = []

    def refuse(record: Buffer) -> bool:
        tested.append(record)
        return False

    result = finish(rig.store.reader.find_messages("T", 0, 5, 32, refuse))

    assert (result.status, result.next_offset) == (
        GetStatus.NO_MATCHED_MESSAGE,
        5 + SCAN_COUNT_MIN,
    )
    assert len(tested) == SCAN_COUNT_MIN


def test_one_read_gets_a_few_neighbours(rig):
    fill(rig, 80)
    rig.work(2)
    reads, result = reads_of(rig.store.reader.find_messages("T", 0, 0, 32, is_odd))
    assert result.count == 32
    assert 64 / BLOCK_COUNT_MAX < len(reads) < 64


def test_a_result_keeps_the_records_and_not_the_blocks_with_them(rig):
    fill(rig, 80, size=1_000)
    result = finish(rig.store.reader.find_messages("T", 0, 0, 32, is_odd))
    views = [memoryview(record) for record in result.records]
    kept = {id(view.obj): memoryview(view.obj).nbytes for view in views}
    assert result.count == 32
    assert sum(kept.values()) == result.bytes


@pytest.mark.parametrize("behind", range(0, 1500, 100))
def test_the_limits_change_where_memory_begins(rig, behind):
    """As in a read by tag, fewer messages are returned from disk than from memory."""
    fill(rig, 12)
    queue, log = rig.queue("T", 0), rig.store.commit_log.view()
    limits = ReadLimits(8, 1 << 20, 3, 400, behind)
    by_tag = read_queue(queue, 0, log, lambda tag: tag == ODD, limits)
    matching = finish(read_matching(queue, 0, log, is_odd, limits))
    for field in ("status", "next_offset", "count", "bytes", "suggest_slave"):
        assert getattr(matching, field) == getattr(by_tag, field), field


def test_what_is_not_in_memory_is_asked_for(disk, rig):
    fill(rig, 4)
    rig.work(2)
    disk.is_cold = True
    reads, result = reads_of(rig.store.reader.find_messages("T", 0, 0, 32, is_odd))
    assert [read.cached() for read in reads] == [None] * len(reads)
    assert result.count == 2


def test_a_queue_that_is_not_there(rig):
    result = finish(rig.store.reader.find_messages("T", 0, 7, 32, is_odd))
    assert (result.status, result.next_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)


def test_a_damaged_record_is_left_out_and_reported(disk, rig):
    fill(rig, 4)
    place = ENTRY.unpack(rig.queue("T", 0).plan(1, 1).read(may_block=True))[0]
    rig.store.commit_log.files.file_at(place).write(place + 4, [b"\xff\xff\xff\xff"])
    rig.store.commit_log.files.file_at(place).write(place + 28, [bytes(8)])

    first = finish(rig.store.reader.find_messages("T", 0, 0, 32, is_odd))
    assert (first.damaged, first.next_offset, first.awaits_repair) == ([], 1, False)

    result = rig.settled(lambda: finish(rig.store.reader.find_messages("T", 0, 1, 32, is_odd)))

    assert [decode_record(record).body for record in result.records] == [b"3"]
    assert (result.damaged, result.next_offset) == ([1], 4)


def test_the_extended_queue_files_of_a_java_broker_survive(tmp_path):
    """Entries that hold addresses instead of tag codes match every tag."""
    folder = tmp_path / "consumequeue_ext" / "T" / "0"
    folder.mkdir(parents=True)
    (folder / "00000000000000000000").write_bytes(b"\x00\x1c" + bytes(100))
    settings = small_settings(store_path_root_dir=str(tmp_path))

    store = MessageStore.open(settings, disk=OsDisk(), clock_ms=lambda: 1_000)
    store.writer.put(make_message(tags="a"), lambda _: None)
    store.writer.commit()
    address = -(2**63)
    queue: Any = store.reader.queue("T", 0)
    tail = queue._tail
    tail[12:20] = address.to_bytes(8, signed=True)

    assert store.reader.get_messages("T", 0, 0, 32, accept=lambda _: False).count == 1
    assert finish(store.reader.find_messages("T", 0, 0, 32, lambda _: True)).count == 1
    store.close()
    file = folder / "00000000000000000000"
    assert file.read_bytes() == b"\x00\x1c" + bytes(100)


def test_a_test_that_pauses_is_called_again_with_the_same_record(rig):
    fill(rig, 40)
    asked: list[bytes] = []

    def test(record: Buffer) -> bool | None:
        asked.append(bytes(record))
        return None if len(asked) % 3 else is_odd(record)

    reads, result = reads_of(rig.store.reader.find_messages("T", 0, 0, 32, test))
    expected = finish(rig.store.reader.find_messages("T", 0, 0, 32, is_odd))
    assert [bytes(record) for record in result.records] == [
        bytes(record) for record in expected.records
    ]
    assert (result.status, result.next_offset) == (expected.status, expected.next_offset)
    assert asked == [record for record in asked[::3] for _ in range(3)]
    assert sum(read is PAUSE for read in reads) == 2 * 40


def test_an_exhausted_search_ends_after_at_least_one_record(rig):
    fill(rig, 40)
    tested: list[Buffer] = []
    lookup = rig.store.reader.find_messages("T", 0, 0, 32, tested.append, block=BlockSize(1))
    block = next(lookup)
    while not block.size > 20:  # entries
        block = lookup.send(block.load())
    assert lookup.throw(Exhausted()) == block  # nothing was tested yet
    assert lookup.send(block.load()) is PAUSE  # `append` returns None
    assert lookup.throw(Exhausted()) is PAUSE
    assert len(tested) == 1

    lookup = rig.store.reader.find_messages("T", 0, 0, 32, lambda _: False, block=BlockSize(1))
    lookup.send(next(lookup).load())
    with pytest.raises(StopIteration) as end:
        lookup.throw(Exhausted())
    result = end.value.value
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 1)
