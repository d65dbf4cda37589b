# SPDX-License-Identifier: Apache-2.0
"""Damage behind the last checkpoint, which no checksum covers, is found record by record."""

import struct

import pytest

from cometmq.peers.long_forms import sampled
from cometmq.store.recovery.start import StartReason
from cometmq.store.recovery.tail_check import is_sound
from cometmq.testing.store.builders import (
    Events,
    StoreRig,
    make_message,
    records_of,
    small_settings,
)

SETTINGS = small_settings(mapped_file_size_commit_log=1 << 20)
PER_QUEUE = 12
SAVED = 3  # messages of each queue that the last checkpoint covers
QUEUES = [("T", 0), ("T", 1), ("U", 0)]


def killed(disk):
    """Leave a killed store whose last checkpoint covers a part of its messages."""
    rig = StoreRig(disk, SETTINGS)
    for number in range(PER_QUEUE):
        for topic, queue_id in QUEUES:
            rig.put(make_message(topic=topic, queue_id=queue_id, body=b"%d" % number, tags="a"))
        if number == SAVED - 1:
            rig.work(3)
    places = {(*queue, at): rig.entry(*queue, at) for queue in QUEUES for at in range(PER_QUEUE)}
    rig.flush()
    disk.crash()
    return places


def overwrite(disk, place, at, data):
    log = disk.contents["/store/commitlog/" + "0" * 20]
    begin = place.physical_offset + (at if at >= 0 else place.size + at)
    log[begin : begin + len(data)] = data


def opened(disk, *, has_copies=False):
    events = Events()
    rig = StoreRig(disk, SETTINGS, log=events, boot_id="boot", has_copies=has_copies)
    assert rig.store.upkeep.recovered.start.reason is StartReason.PROGRESS
    return rig, events


def read(rig, topic, queue_id):
    records = records_of(rig.store, topic, queue_id)
    assert all((it.topic, it.queue_id) == (topic, queue_id) for it in records)
    return {it.queue_offset: it.body for it in records}


def check(rig, victim, *, claimed=None):
    """All messages but the victim are there, and new ones get the next offsets.

    `claimed` is the message whose place the victim claims: readers may get neither.
    """
    for queue in QUEUES:
        missing = {one[2] for one in (victim, claimed) if one is not None and one[:2] == queue}
        expected = {at: b"%d" % at for at in range(PER_QUEUE) if at not in missing}
        assert read(rig, *queue) == expected
    for queue in QUEUES:
        result = rig.put(make_message(topic=queue[0], queue_id=queue[1], body=b"new"))
        if queue != victim[:2] or victim[2] < PER_QUEUE - 1:
            assert result.queue_offset == PER_QUEUE
        assert read(rig, *queue)[result.queue_offset] == b"new"


VICTIMS = [("T", 0, 4), ("T", 1, 8), ("U", 0, SAVED), ("T", 0, PER_QUEUE - 1)]


PLACES = [
    *(("queue offset", it) for it in (0, 1, 3, 5, 6, 9, 13, 1 << 20, 1 << 62, -1)),
    *(("queue id", it) for it in (1, 7, 1 << 30)),
    *(("topic", it) for it in (b"U", b"V", b"\xd4", b"\x81")),
]


@sampled(12)
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize(("field", "value"), PLACES)
def test_a_damaged_place_costs_only_its_message(disk, victim, field, value):
    places = killed(disk)
    topic, queue_id, queue_offset = victim
    claimed = None
    if field == "queue offset":
        changed = value + 100 * (value == queue_offset)
        overwrite(disk, places[victim], 20, struct.pack(">q", changed))
    elif field == "queue id":
        claimed = topic, value + (value == queue_id), queue_offset
        overwrite(disk, places[victim], 12, struct.pack(">i", claimed[1]))
    else:
        name = b"T" if value == topic.encode() else value
        claimed = name.decode("latin-1"), queue_id, queue_offset
        overwrite(disk, places[victim], 89 + len(str(queue_offset)), name)
    rig, events = opened(disk)
    (told, *others) = events.of("log.damaged")
    if claimed is None:
        assert (told["physical_offset"], others) == (places[victim].physical_offset, [])
    check(rig, victim, claimed=claimed if claimed and claimed[:2] in QUEUES else None)


@sampled(4)
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("data", [b"\0", b"\xff", b"A", b"\x81"])
def test_damaged_properties_cost_only_their_message_and_stay_known(disk, victim, data):
    places = killed(disk)
    overwrite(disk, places[victim], -2, data)  # the separator of TAGS and its value
    rig, events = opened(disk)
    (told,) = events.of("log.damaged")
    assert told["messages"] == f"{victim[0]}/{victim[1]}: {victim[2]}"
    check(rig, victim)
    rig.work(5)
    rig.store.close()
    rig, events = opened(disk)
    assert victim[2] not in read(rig, *victim[:2])
    assert len(events.of("log.damaged")) == 1


DAMAGE = {
    "queue offset": (20, struct.pack(">q", 100)),
    "queue id": (12, struct.pack(">i", 7)),
    "topic": (89, b"V"),
    "properties": (-2, b"A"),
}


@sampled(5)
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_store_with_copies_is_cut_off_before_the_damage(disk, victim, kind):
    places = killed(disk)
    intact = bytes(disk.contents["/store/commitlog/" + "0" * 20])
    at, data = DAMAGE[kind]
    overwrite(disk, places[victim], at + (len(str(victim[2])) if kind == "topic" else 0), data)
    rig, events = opened(disk, has_copies=True)
    end = rig.store.commit_log.end
    assert end == rig.store.upkeep.recovered.end <= places[victim].physical_offset
    assert rig.store.upkeep.recovered.has_cut_records
    assert rig.store.upkeep.recovered.damaged == ()
    (told,) = events.of("log.truncated")
    assert told["physical_offset"] == end
    assert rig.store.stats().damaged_bytes == rig.store.stats().damaged_message_count == 0
    kept = {place: it for place, it in places.items() if it.physical_offset < end}
    for queue in QUEUES:
        assert len(read(rig, *queue)) == sum(place[:2] == queue for place in kept)
    last = max(places.values(), key=lambda it: it.physical_offset)
    rig.store.write_state.role_writable = False
    rig.store.replica.append(
        end, intact[end : last.physical_offset + last.size]
    )  # from another copy
    rig.store.publisher.confirm(None)
    rig.store.write_state.role_writable = True
    check(rig, ("none", 0, 0))


@pytest.mark.parametrize("kind", DAMAGE)
def test_records_of_a_store_without_a_checkpoint_are_checked_too(disk, kind):
    rig = StoreRig(disk, SETTINGS)
    for number in range(PER_QUEUE):
        rig.put(make_message(body=b"%d" % number, tags="a"))
    rig.flush()
    place = rig.entry("T", 0, 4)
    disk.crash()
    at, data = DAMAGE[kind]
    overwrite(disk, place, at + (1 if kind == "topic" else 0), data)
    events = Events()
    rig = StoreRig(disk, SETTINGS, log=events, boot_id="boot")
    assert rig.store.upkeep.recovered.start.reason is StartReason.CHECKPOINT
    (told,) = events.of("log.damaged")
    assert told["physical_offset"] == place.physical_offset
    assert sorted(read(rig, "T", 0)) == [at for at in range(PER_QUEUE) if at != 4]


def test_a_start_that_dies_after_the_cut_is_remembered(disk):
    places = killed(disk)
    overwrite(disk, places["T", 0, 8], *DAMAGE["properties"])
    rig, _ = opened(disk, has_copies=True)
    for _ in range(2):
        disk.crash()
        rig, _ = opened(disk, has_copies=True)
        assert rig.store.upkeep.recovered.has_cut_records
    rig.work(5)
    rig.store.close()
    rig, _ = opened(disk, has_copies=True)
    assert not rig.store.upkeep.recovered.has_cut_records


def test_a_last_record_that_is_cut_off_does_not_come_back(disk):
    places = killed(disk)
    victim = places["T", 0, 8]
    overwrite(disk, victim, 88, b"x")  # its body
    rig, events = opened(disk)
    assert events.of("log.truncated")
    rig.put(make_message(body=b"", tags="a"))  # shorter than the old record
    disk.crash()
    rig, _ = opened(disk)
    assert rig.store.commit_log.end < victim.physical_offset + victim.size
    assert sorted(read(rig, "T", 0)) == [*range(8), 8]
    assert read(rig, "T", 0)[8] == b""
    assert len(read(rig, "U", 0)) == 8


def test_a_damaged_last_record_is_named_when_it_is_cut_off(disk):
    places = killed(disk)
    overwrite(disk, places["U", 0, PER_QUEUE - 1], 88, b"x")
    _, events = opened(disk)
    (told,) = events.of("log.truncated")
    assert told["physical_offset"] == places["U", 0, PER_QUEUE - 1].physical_offset


def test_intact_records_are_all_dispatched(disk):
    killed(disk)
    rig, events = opened(disk)
    assert events.of("log.damaged") == events.of("log.truncated") == []
    check(rig, ("none", 0, 0))


def test_a_topic_that_was_created_again_begins_at_zero(disk):
    rig = StoreRig(disk, SETTINGS)
    for number in range(5):
        rig.put(make_message(body=b"%d" % number))
    rig.work(3)
    rig.queue("T", 0).begin_again()  # as after a deletion that the disk does not show
    for number in range(3):
        rig.put(make_message(body=b"new %d" % number))
    disk.crash()
    events = Events()
    rig = StoreRig(disk, SETTINGS, log=events, boot_id="boot")
    assert list(read(rig, "T", 0).values()) == [b"new 0", b"new 1", b"new 2"]
    assert events.of("log.damaged") == []


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        (b"", True),
        (b"a\x01b", True),
        (b"a\x01b\x02", True),
        (b"a\x01\x02b\x01c\x01d", True),
        ("ä\x01ö".encode(), True),
        (b"a", False),
        (b"\x01b", False),
        (b"a\x01b\x02c", False),
        (b"a\x01\xff", False),
        (b"a\x01\0", True),
        (b"a\0", False),
    ],
)
def test_the_syntax_of_properties(text, is_right):
    assert is_sound(text) is is_right
