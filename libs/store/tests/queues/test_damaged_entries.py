# SPDX-License-Identifier: Apache-2.0
"""A queue entry that changed on the disk delivers its message, which the log has, and no other."""

import errno
import os
import struct
from functools import partial

import msgspec
import pytest

from cometmq.peers.long_forms import sampled
from cometmq.remoting.message.record import decode_record
from cometmq.remoting.names import SCHEDULE_TOPIC
from cometmq.store.os_disk import OsDisk
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.queue_files import ENTRY
from cometmq.store.queues.record_check import has_topic, topic_field
from cometmq.store.queues.suspect_entries import SPAN_COUNT_MAX, SUSPECTS_MAX, SuspectEntries
from cometmq.store.reads import finish
from cometmq.store.results import BoundaryType, GetStatus
from cometmq.store.upkeep.entry_repair import ATTEMPTS_MAX, STALL_MS
from cometmq.store.upkeep.walks import BLOCK_BYTES
from cometmq.testing.store.builders import (
    Events,
    StoreRig,
    make_message,
    records_of,
    small_settings,
)
from cometmq.testing.store.memory_disk import MemoryFile

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


def loaded(rig, offset, result):
    return rig.store.reader.settled("T", 0, offset, result.load()) if result.is_cold else result


def pull(rig, offset):
    return loaded(rig, offset, rig.store.reader.get_messages("T", 0, offset, 8))


def pull_by_tag(rig, offset):
    accept = {0}.__contains__
    return loaded(rig, offset, rig.store.reader.get_messages("T", 0, offset, 8, accept=accept))


def search(rig, offset):
    return finish(rig.store.reader.find_messages("T", 0, offset, 8, lambda _: True))


def read(rig, way):
    offset, found = 0, []
    while offset < 20:
        result = rig.settled(partial(way, rig, offset))
        assert result.status in {GetStatus.FOUND, GetStatus.MESSAGE_WAS_REMOVING}
        assert result.next_offset > offset
        found += [decode_record(record) for record in result.records]
        offset = result.next_offset
    return found


def entries_of(disk):
    return disk.contents["/store/consumequeue/T/0/" + "0" * 20]


def offsets(records):
    found = list(records)
    assert all((record.topic, record.queue_id) == ("T", 0) for record in found)
    return [record.queue_offset for record in found]


@sampled(6)
@pytest.mark.parametrize("way", [pull, pull_by_tag, search])
@pytest.mark.parametrize("at", range(12))
def test_any_flipped_bit_of_an_entry_is_repaired_before_its_message(rig, disk, events, at, way):
    entry = bytearray(ENTRY.pack(*rig.entry("T", 0, VICTIM)))
    whole = bytes(entries_of(disk))
    for bit in range(8):
        entry[at] ^= 1 << bit
        change(disk, entry)
        entry[at] ^= 1 << bit
        first = way(rig, 0)
        assert offsets(map(decode_record, first.records)) == list(range(VICTIM))
        assert (first.status, first.next_offset) == (GetStatus.FOUND, VICTIM)
        assert way(rig, VICTIM).awaits_repair
        assert offsets(read(rig, way)) == list(range(20))
    assert bytes(entries_of(disk)) == whole
    assert events.of("queue.repaired") == [{"topic": "T", "queue_id": 0, "count": 1}] * 8
    assert rig.store.stats().repaired_entry_count == 8
    assert events.of("records.damaged") == []
    assert rig.store.stats().left_out_count == 0


@sampled(3)
@pytest.mark.parametrize("way", [pull, pull_by_tag, search])
@pytest.mark.parametrize("other", [("T", 0, 6), ("T", 1, VICTIM), ("U", 0, VICTIM), ("U", 1, 9)])
def test_an_entry_of_another_message_delivers_its_own(rig, disk, events, other, way):
    change(disk, ENTRY.pack(*rig.entry(*other)))
    assert offsets(read(rig, way)) == list(range(20))
    assert events.of("records.damaged") == []


@pytest.mark.parametrize("way", [pull, pull_by_tag, search])
@pytest.mark.parametrize("kept_bytes", [0, VICTIM * ENTRY.size + 7, 19 * ENTRY.size])
def test_entries_that_a_file_has_lost_are_written_again(tmp_path, events, way, kept_bytes):
    settings = msgspec.structs.replace(SETTINGS, store_path_root_dir=str(tmp_path))
    rig = StoreRig(OsDisk(), settings, log=events)
    for number in range(20):
        rig.put(make_message(topic="T", body=b"%d" % number))
    rig.store.close()
    rig = StoreRig(OsDisk(), settings, log=events)
    path = tmp_path / "consumequeue/T/0" / ("0" * 20)
    whole = path.read_bytes()[: 20 * ENTRY.size]
    os.truncate(path, kept_bytes)
    assert offsets(read(rig, way)) == list(range(20))
    assert path.read_bytes()[: 20 * ENTRY.size] == whole
    rig.store.close()


@pytest.mark.parametrize("way", [pull, pull_by_tag, search])
def test_a_message_that_the_log_has_lost_is_left_out_once_that_is_known(rig, disk, events, way):
    place = rig.entry("T", 0, VICTIM).physical_offset
    disk.contents["/store/commitlog/" + "0" * 20][place + 20 : place + 28] = b"\xff" * 8
    rig.store.commit_log.verified.end = 0  # as if the block had no checksum yet
    rig.store.commit_log.forget_view()
    change(disk, bytes(ENTRY.size))
    assert offsets(map(decode_record, way(rig, 0).records)) == list(range(VICTIM))
    assert way(rig, VICTIM).awaits_repair
    assert events.of("records.damaged") == []
    for _ in range(2):
        assert offsets(read(rig, way)) == [at for at in range(20) if at != VICTIM]
        rig.store.pulls.forget()
    (told,) = events.of("records.damaged")
    assert (told["topic"], told["queue_id"], told["count"]) == ("T", 0, 1)
    assert rig.store.stats().left_out_count == 1
    assert events.of("queue.repaired") == []


@pytest.mark.parametrize("way", [pull, pull_by_tag, search])
def test_entries_that_are_damaged_again_are_repaired_again(rig, disk, way):
    for _ in range(3):
        change(disk, bytes(ENTRY.size))
        rig.store.pulls.forget()
        assert offsets(read(rig, way)) == list(range(20))


@pytest.mark.parametrize("way", [pull, pull_by_tag, search])
def test_readers_go_on_if_the_repair_fails(rig, disk, events, way):
    def fault(operation, path):
        return errno.EIO if operation == "write" and "consumequeue" in path else 0

    change(disk, bytes(ENTRY.size))
    disk.fault = fault
    assert offsets(read(rig, way)) == [at for at in range(20) if at != VICTIM]
    assert len(events.of("queue.unrepaired")) == ATTEMPTS_MAX
    assert len(events.of("records.damaged")) == 1


@pytest.mark.parametrize("way", [pull, pull_by_tag, search])
def test_readers_go_on_while_the_repair_hangs(rig, disk, events, way):
    woken: list[ConsumeQueue] = []
    rig.store.pulls.suspects.listeners.append(woken.append)
    change(disk, bytes(ENTRY.size))
    assert way(rig, VICTIM).awaits_repair
    hanging = rig.store.repair.job()
    rig.clock.advance(STALL_MS - 1)
    assert rig.store.repair.job() is None
    assert way(rig, VICTIM).awaits_repair
    assert woken == []
    rig.clock.advance(1)
    assert rig.store.repair.job() is None
    assert rig.queue("T", 0) in woken
    assert offsets(read(rig, way)) == [at for at in range(20) if at != VICTIM]
    assert len(events.of("queue.unrepaired")) == 1
    hanging.run()
    hanging.done(None)
    assert offsets(read(rig, way)) == list(range(20))


@sampled(6)
@pytest.mark.parametrize("start", range(1, ENTRY.size))
@pytest.mark.parametrize("way", [pull, pull_by_tag, search])
def test_a_page_that_begins_within_an_entry_hides_no_message(disk, events, way, start):
    rig = StoreRig(disk, SETTINGS, log=events)
    for number in range(20):
        rig.put(make_message(topic="T", body=b"%d" % number, tags=f"t{number % 2}"))
    codes = {rig.entry("T", 0, number).tag_code for number in range(2)}
    rig.store.close()
    rig = StoreRig(disk, SETTINGS, log=events)
    accept = {codes.pop()}.__contains__
    if way is pull_by_tag:

        def way(rig, offset):
            return loaded(rig, offset, rig.store.reader.get_messages("T", 0, offset, 8, accept))

    wanted = offsets(read(rig, way))
    whole = bytes(entries_of(disk))
    begin = VICTIM * ENTRY.size + start
    entries_of(disk)[begin : begin + 99] = bytes(99)
    for _ in range(2):
        assert offsets(read(rig, way)) == wanted
        assert bytes(entries_of(disk)) == whole
    entries_of(disk)[begin + 5 : begin + 104] = bytes(99)
    rig.store.pulls.forget()
    assert offsets(read(rig, way)) == wanted


def test_a_queue_that_is_deleted_meanwhile_wakes_its_readers(rig, disk):
    woken: list[ConsumeQueue] = []
    rig.store.pulls.suspects.listeners.append(woken.append)
    queue = rig.queue("T", 0)
    change(disk, bytes(ENTRY.size))
    assert pull(rig, VICTIM).awaits_repair
    rig.store.delete_topic("T")
    assert rig.store.repair.job() is None
    assert woken == [queue]


def test_the_memory_of_suspects_and_lost_entries_has_bounds(rig):
    suspects, queues = SuspectEntries(), [rig.queue("T", 0), rig.queue("T", 1)]
    for queue in queues:
        assert suspects.first_awaited(queue, range(100, 100 + 3 * SUSPECTS_MAX)) == 100
    assert len(suspects) == SUSPECTS_MAX + 1
    taken = []
    while (found := suspects.take()) is not None:
        queue, offsets = found
        assert offsets == sorted(offsets)
        assert offsets[-1] - offsets[0] < SPAN_COUNT_MAX
        suspects.settle(queue, offsets)
        taken += [(queue, it) for it in offsets]
    assert len(set(taken)) == len(taken) == SUSPECTS_MAX + 1
    assert taken[SPAN_COUNT_MAX][0] is queues[1], "queues take turns"
    assert len(suspects) == 0
    assert suspects.first_awaited(*([queues[0], [taken[-1][1]]])) is None
    assert suspects.first_awaited(queues[0], [taken[0][1]]) is not None


def filled(disk, events, before, count):
    """Return a store with other messages before each message of queue 0."""
    rig = StoreRig(disk, SETTINGS, log=events)
    for number in range(count):
        for other in range(before):
            rig.put(make_message(topic="U", queue_id=other % 2, body=bytes(900)))
        rig.put(make_message(topic="T", body=b"%d" % number))
    rig.store.close()
    return StoreRig(disk, SETTINGS, log=events)


@sampled(4)
@pytest.mark.parametrize("way", [pull, search])
@pytest.mark.parametrize("run", [range(1), range(3, 17), range(15, 20), range(20)])
def test_the_search_covers_files_and_damage_between_the_neighbours(disk, events, run, way):
    rig = filled(disk, events, 150, 20)
    assert len(rig.store.commit_log.files.files) > 2
    places = [rig.entry("T", 0, at) for at in range(20)]
    for at in (4, 12):  # blocks between two messages
        place = (places[at].physical_offset + places[at + 1].physical_offset) // 2
        start = place - place % (1 << 20)
        disk.contents[f"/store/commitlog/{start:020d}"][place - start] ^= 1
    entries_of(disk)[run.start * ENTRY.size : run.stop * ENTRY.size] = bytes(len(run) * ENTRY.size)
    found = offsets(read(rig, way))
    gone = [at for at in range(20) if at not in found]
    blocks = {
        (places[at].physical_offset + places[at + 1].physical_offset) // 2 >> 16 for at in (4, 12)
    }
    assert all(places[at].physical_offset >> 16 in blocks for at in gone)
    assert len(gone) <= 2


def test_a_record_of_an_earlier_topic_is_no_repair(disk, events):
    rig = StoreRig(disk, SETTINGS, log=events)
    for number in range(20):
        rig.put(make_message(topic="T", body=b"old %d" % number))
    rig.store.delete_topic("T")
    rig.work(3)
    for number in range(20):
        rig.put(make_message(topic="T", body=b"new %d" % number))
    rig.store.close()
    rig = StoreRig(disk, SETTINGS, log=events)
    entries_of(disk)[: 10 * ENTRY.size] = bytes(10 * ENTRY.size)
    assert [record.body for record in read(rig, pull)] == [b"new %d" % it for it in range(20)]


def test_searches_by_time_skip_nothing_behind_damaged_entries(disk, events):
    rig = StoreRig(disk, SETTINGS, log=events)
    for number in range(60):
        rig.clock.advance(1_000)
        rig.put(make_message(topic="T", body=b"%d" % number))
    times = [finish(rig.store.reader.store_time("T", 0, at)) for at in range(60)]
    rig.store.close()
    rig = StoreRig(disk, SETTINGS, log=events)
    entries_of(disk)[20 * ENTRY.size : 45 * ENTRY.size] = bytes(25 * ENTRY.size)
    entries_of(disk)[50 * ENTRY.size : 51 * ENTRY.size] = ENTRY.pack(*rig.entry("T", 0, 3))
    for at, stored_ms in enumerate(times):
        for boundary in (None, BoundaryType.LOWER):
            found = finish(rig.store.reader.offset_by_time("T", 0, stored_ms, boundary))
            assert found <= at
            assert found >= min(at, 19) - 1 or at >= 20


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


def test_intact_entries_of_damaged_records_stay_as_they_are(rig, disk, events):
    file = disk.contents["/store/consumequeue/T/0/" + "0" * 20]
    whole = bytes(file)
    disk.contents["/store/commitlog/" + "0" * 20][300] ^= 1
    assert 0 < len(read(rig, pull)) < 20
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
    code = rig.entry("T", 0, tag + 30).tag_code
    return [it.queue_offset for it in records_of(rig.store, accept=code.__eq__)]


@sampled(5)
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
        at for at in wanted if rig.entry("T", 0, at).physical_offset > 1 << 12
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
    assert len(rig.store.pulls.suspects) == 0
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
    assert len(rig.store.reader.get_messages(SCHEDULE_TOPIC, 0, 0, 20).records) == VICTIM
    rig.work(3)
    assert [rig.entry(SCHEDULE_TOPIC, 0, at) for at in range(20)] == whole


@pytest.mark.parametrize("way", [pull, pull_by_tag, search])
def test_an_entry_that_points_before_the_log_has_not_expired(disk, events, way):
    rig = StoreRig(disk, small_settings(mapped_file_size_consume_queue=4_000), log=events)
    for number in range(150):
        rig.put(make_message(topic="T", body=b"%d" % number))
    rig.work(3)
    rig.clock.advance(73 * 3_600_000)
    rig.store.upkeep.cleaner.ask()
    rig.work(60)
    for number in range(150, 200):
        rig.put(make_message(topic="T", body=b"%d" % number))
    rig.work(3)
    assert rig.store.commit_log.min_offset > 100
    entry = rig.entry("T", 0, 170)
    entries_of(disk)[170 * ENTRY.size : 171 * ENTRY.size] = ENTRY.pack(100, *entry[1:])
    found, offset = [], 165
    while offset < 200:
        result = rig.settled(partial(way, rig, offset))
        found += offsets(map(decode_record, result.records))
        offset = result.next_offset
    assert found == list(range(165, 200))
    assert len(events.of("queue.repaired")) == 1


@sampled(8)
@pytest.mark.parametrize("expired_count", [0, 1, 40, 100])
@pytest.mark.parametrize("at", [0, 30, 40, 50, 90, 180])
@pytest.mark.parametrize("content", [b"\0", b"\xff"])
def test_retention_keeps_messages_around_damaged_entries(disk, events, at, expired_count, content):
    settings = msgspec.structs.replace(SETTINGS, mapped_file_size_consume_queue=4_000)
    rig = StoreRig(disk, settings, log=events)
    for number in range(200):
        rig.put(make_message(topic="T", body=b"%d" % number))
    rig.store.close()
    rig = StoreRig(disk, settings, log=events)
    log_first = rig.entry("T", 0, expired_count).physical_offset
    damaged = range(at, at + 20)
    entries_of(disk)[at * ENTRY.size : (at + 20) * ENTRY.size] = content * (20 * ENTRY.size)
    first = rig.queue("T", 0).first_at(log_first)
    assert first == (min(at, expired_count) if expired_count in damaged else expired_count)


@sampled(6)
@pytest.mark.parametrize("stop", ["close", "kill", "crash"])
@pytest.mark.parametrize("at", [0, 60, 150, 180])
@pytest.mark.parametrize("content", [b"\0", b"\xff", b"\x01"])
def test_a_start_on_damaged_entries_loses_nothing(disk, events, at, stop, content):
    settings = msgspec.structs.replace(SETTINGS, mapped_file_size_consume_queue=4_000)
    rig = StoreRig(disk, settings, log=events, boot_id="boot")
    for number in range(200):
        rig.put(make_message(topic="T", body=b"%d" % number))
    rig.work(3)
    for number in range(200, 210):
        rig.put(make_message(topic="T", body=b"%d" % number))
    if stop == "close":
        rig.store.close()
    else:
        disk.crash()
    entries_of(disk)[at * ENTRY.size : (at + 20) * ENTRY.size] = content * (20 * ENTRY.size)
    rig = StoreRig(disk, settings, log=events, boot_id="other" if stop == "crash" else "boot")
    assert rig.store.reader.max_offset("T", 0) >= 200
    found = [it.queue_offset for it in records_of(rig.store)]
    assert found[:200] == list(range(200))
