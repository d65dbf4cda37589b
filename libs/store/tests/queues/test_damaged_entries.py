# SPDX-License-Identifier: Apache-2.0
"""A queue entry that changed on the disk delivers no other message than its own."""

import struct

import pytest

from cometmq.remoting.message.record import decode_record
from cometmq.remoting.names import SCHEDULE_TOPIC
from cometmq.store.queues.queue_files import ENTRY
from cometmq.store.queues.record_check import has_topic, topic_field
from cometmq.store.reads import finish
from cometmq.store.results import GetStatus
from cometmq.store.testing.builders import Events, StoreRig, make_message, small_settings
from cometmq.store.testing.memory_disk import MemoryFile
from cometmq.store.upkeep.entry_check import BLOCK_BYTES

SETTINGS = small_settings(mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=2_000)
VICTIM = 5


@pytest.fixture
def events():
    return Events()


@pytest.fixture
def rig(disk, events):
    """Two topics with messages of the same size in turn, so offsets differ in single bits."""
    rig = StoreRig(disk, SETTINGS, log=events)
    for number in range(20):
        for topic in ("T", "U"):
            for queue_id in (0, 1):
                body = b"%s%d-%02d" % (topic.encode(), queue_id, number)
                rig.put(make_message(topic=topic, queue_id=queue_id, body=body.ljust(36, b".")))
    assert rig.entry("T", 0, 0).size == 128
    rig.store.close()
    return StoreRig(disk, SETTINGS, log=events)


def change(disk, data):
    file = disk.contents["/store/consumequeue/T/0/" + "0" * 20]
    file[VICTIM * ENTRY.size : (VICTIM + 1) * ENTRY.size] = data


def pull(rig, offset):
    return rig.store.reader.get_messages("T", 0, offset, 8)


def pull_by_tag(rig, offset):
    return rig.store.reader.get_messages("T", 0, offset, 8, accept=lambda code: True)


def search(rig, offset):
    return finish(rig.store.reader.find_messages("T", 0, offset, 8, lambda _: True))


def read(rig, way):
    offset, found = 0, []
    while offset < 20:
        result = way(rig, offset)
        assert result.status in {GetStatus.FOUND, GetStatus.MESSAGE_WAS_REMOVING}
        assert result.next_offset > offset
        found += [decode_record(record) for record in result.records]
        offset = result.next_offset
    return found


@pytest.mark.parametrize("way", [pull, pull_by_tag, search])
@pytest.mark.parametrize("at", range(12))
def test_any_flipped_bit_of_an_entry_leaves_its_message_out(rig, disk, events, at, way):
    entry = bytearray(ENTRY.pack(*rig.entry("T", 0, VICTIM)))
    for bit in range(8):
        entry[at] ^= 1 << bit
        change(disk, entry)
        entry[at] ^= 1 << bit
        found = read(rig, way)
        assert [record.queue_offset for record in found] == [at for at in range(20) if at != VICTIM]
        assert all(record.topic == "T" and record.queue_id == 0 for record in found)
    told = {(line["topic"], line["queue_id"]) for line in events.of("records.damaged")}
    assert told == {("T", 0)}


@pytest.mark.parametrize("way", [pull, pull_by_tag, search])
@pytest.mark.parametrize("other", [("T", 0, 6), ("T", 1, VICTIM), ("U", 0, VICTIM), ("U", 1, 9)])
def test_an_entry_of_another_message_delivers_nothing(rig, disk, events, other, way):
    change(disk, ENTRY.pack(*rig.entry(*other)))
    assert [record.queue_offset for record in read(rig, way)] == [
        at for at in range(20) if at != VICTIM
    ]
    assert len(events.of("records.damaged")) == 1


@pytest.mark.parametrize("way", [pull, pull_by_tag, search])
def test_entries_that_a_file_has_lost_are_left_out(rig, disk, events, way):
    file = disk.contents["/store/consumequeue/T/0/" + "0" * 20]
    del file[VICTIM * ENTRY.size + 7 :]
    found = [record.queue_offset for record in read(rig, way)]
    assert found == list(range(VICTIM))
    assert sum(line["count"] for line in events.of("records.damaged")) == 20 - VICTIM


def test_fillers_are_no_damage(rig, disk, events):
    change(disk, ENTRY.pack(0, 0x7FFFFFFF, 0))
    assert len(read(rig, pull)) == len(read(rig, search)) == 19
    rig.work(3)
    assert len(read(rig, pull)) == 19
    assert events.of("records.damaged") == []


def record(topic=b"T", *, v6=False, long=False):
    fixed = bytearray(112 if v6 else 88)
    struct.pack_into(">i", fixed, 4, -626843477 if long else -626843481)
    fixed[39] = 0x30 if v6 else 0
    fixed[-4:] = struct.pack(">i", 3)
    length = struct.pack(">h", len(topic)) if long else bytes([len(topic)])
    return bytes(fixed) + b"abc" + length + topic + b"\0\0"


@pytest.mark.parametrize("v6", [False, True])
@pytest.mark.parametrize("long", [False, True])
def test_a_topic_is_found_in_every_form_of_a_record(v6, long):
    view = memoryview(record(v6=v6, long=long))
    assert has_topic(view, topic_field("T"))
    assert not has_topic(view, topic_field("U"))
    assert not has_topic(view, topic_field("TT"))
    for end in range(len(view) - 4):
        assert not has_topic(view[:end], topic_field("T"))


def test_the_topic_of_a_negative_body_is_none():
    data = bytearray(record())
    data[84:88] = b"\xff" * 4
    assert not has_topic(memoryview(data), topic_field("T"))


def test_unknown_bytes_of_a_topic_fit_every_record():
    assert has_topic(memoryview(record(b"\xff")), topic_field("\ufffd"))


@pytest.mark.parametrize("way", [pull, search])
@pytest.mark.parametrize("at", [0, 1, VICTIM, 19])
@pytest.mark.parametrize("bit", [0, 20, 56, 57, 64, 70, 95])
def test_a_damaged_entry_is_written_again_from_the_log(rig, disk, events, bit, at, way):
    file = disk.contents["/store/consumequeue/T/0/" + "0" * 20]
    whole = bytes(file)
    file[at * ENTRY.size + bit // 8] ^= 0x80 >> bit % 8
    assert len(read(rig, way)) == 19
    assert rig.store.stats().left_out_count >= 1
    rig.work(3)
    assert bytes(file) == whole
    assert len(read(rig, way)) == 20
    assert events.of("queue.repaired") == [{"topic": "T", "queue_id": 0, "count": 1}]
    assert rig.store.stats().repaired_entry_count == 1


def test_adjacent_damaged_entries_are_all_written_again(rig, disk, events):
    file = disk.contents["/store/consumequeue/T/0/" + "0" * 20]
    whole = bytes(file)
    file[4 * ENTRY.size : 8 * ENTRY.size] = bytes(range(4 * ENTRY.size))
    assert len(read(rig, pull)) == 16
    rig.work(3)
    assert bytes(file) == whole
    assert len(read(rig, pull)) == 20


def test_intact_entries_of_damaged_records_stay_as_they_are(rig, disk, events):
    file = disk.contents["/store/consumequeue/T/0/" + "0" * 20]
    whole = bytes(file)
    disk.contents["/store/commitlog/" + "0" * 20][300] ^= 1
    assert len(read(rig, pull)) == 0  # all are in one block
    rig.work(3)
    assert bytes(file) == whole
    assert events.of("queue.repaired") == []


SCRUBBED = small_settings(
    mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=20_000,
    log_scrub_rate_max=64 << 20,
)  # fmt: skip


def tagged(disk, events):
    rig = StoreRig(disk, SCRUBBED, log=events)
    for number in range(800):
        rig.put(make_message(body=bytes(200), tags=f"t{number % 3}", queue_id=number % 2))
    rig.work(3)
    return rig


def of_tag(rig, tag):
    code, offset, found = rig.entry("T", 0, tag + 30).tag_code, 0, []
    while offset < 400:
        result = rig.store.reader.get_messages("T", 0, offset, 32, accept=lambda it: it == code)
        found += [decode_record(record).queue_offset for record in result.records]
        offset = result.next_offset
    return found


@pytest.mark.parametrize("bit", [96, 97, 128, 140, 159])
@pytest.mark.parametrize("at", [0, 7, 399])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_the_scrubber_finds_a_damaged_tag_code(disk, events, at, bit, is_restarted):
    rig = tagged(disk, events)
    if is_restarted:
        rig.store.close()
        rig = StoreRig(disk, SCRUBBED, log=events)
        rig.work(3)
    wanted = of_tag(rig, at % 3)
    file = disk.contents["/store/consumequeue/T/0/" + "0" * 20]
    whole = bytes(file)
    file[at * ENTRY.size + bit // 8] ^= 0x80 >> bit % 8
    rig.store.pulls.forget()
    rig.clock.advance(200 * 3_600_000)
    rig.scrub()
    rig.work(3)
    assert of_tag(rig, at % 3) == wanted
    if bit == 96:
        return  # the sign makes it the address of an extended entry, which every filter passes
    assert bytes(file) == whole
    assert events.of("queue.repaired") == [{"topic": "T", "queue_id": 0, "count": 1}]


def test_the_walk_goes_on_behind_damaged_records(disk, events):
    rig = tagged(disk, events)
    wanted = of_tag(rig, 0)
    log = disk.contents["/store/commitlog/" + "0" * 20]
    log[4] ^= 1  # the magic number of the first record
    file = disk.contents["/store/consumequeue/T/0/" + "0" * 20]
    whole = bytes(file)
    file[390 * ENTRY.size + 19] ^= 1
    rig.store.pulls.forget()
    rig.clock.advance(200 * 3_600_000)
    rig.scrub()
    rig.work(3)
    assert bytes(file) == whole
    assert of_tag(rig, 0) == [
        at for at in wanted if rig.entry("T", 0, at).physical_offset > 1 << 16
    ]


def test_the_scrubber_leaves_intact_entries_alone(disk, events):
    rig = tagged(disk, events)
    rig.store.delete_topic("T")
    rig.work(3)
    for number in range(400):  # entries of the same names as earlier records
        rig.put(make_message(body=bytes(300), tags="other", queue_id=number % 2))
    rig.put(make_message(body=bytes(1 << 17)))
    rig.work(3)
    rig.clock.advance(200 * 3_600_000)
    rig.scrub()
    assert rig.store.pulls.suspects == {}
    rig.work(3)
    assert events.of("queue.repaired") == []


def test_the_walk_reads_entries_in_blocks(disk, events, monkeypatch):
    rig = tagged(disk, events)
    sizes, read = [], MemoryFile.read

    def counted(file, offset, count):
        sizes.append(count)
        return read(file, offset, count)

    monkeypatch.setattr(MemoryFile, "read", counted)
    rig.clock.advance(200 * 3_600_000)
    rig.scrub()
    assert sizes.count(BLOCK_BYTES) == 4, "of two queues with 400 entries each"
    assert ENTRY.size not in sizes


def test_the_entry_of_a_timed_message_is_written_again_with_its_time(disk, events):
    rig = StoreRig(disk, SETTINGS, log=events)
    for number in range(20):
        due_ms = rig.clock() + 50 * number
        message = make_message(SCHEDULE_TOPIC, 0, properties={"TIMER_OUT_MS": str(due_ms)})
        message.tag_code = due_ms
        rig.put(message)
    whole = [rig.entry(SCHEDULE_TOPIC, 0, at) for at in range(20)]
    assert whole[VICTIM].tag_code < rig.clock() + 1_000, "not the end of its level"
    rig.store.close()
    rig = StoreRig(disk, SETTINGS, log=events)
    file = disk.contents[f"/store/consumequeue/{SCHEDULE_TOPIC}/0/" + "0" * 20]
    file[VICTIM * ENTRY.size + 2] ^= 8
    assert len(rig.store.reader.get_messages(SCHEDULE_TOPIC, 0, 0, 20).records) == 19
    rig.work(3)
    assert [rig.entry(SCHEDULE_TOPIC, 0, at) for at in range(20)] == whole
