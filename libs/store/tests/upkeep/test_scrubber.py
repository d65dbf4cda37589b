# SPDX-License-Identifier: Apache-2.0
"""Damage to the log is found, reported, hidden from readers and remembered across restarts."""

import errno
from random import Random

import pytest

from cometmq.remoting.message.record import decode_record
from cometmq.store.layout import Layout
from cometmq.store.log.block_sums import BLOCK_BYTES, PAGE_BYTES
from cometmq.store.log.damage import DamagedRange
from cometmq.store.reads import finish
from cometmq.store.results import GetStatus
from cometmq.store.upkeep.scrubber import RATE_MIN
from cometmq.store.upkeep.withheld import DamagedMessages, ScrubState, described, load_state
from cometmq.testing.remoting.hostile_json import hostile
from cometmq.testing.store.builders import (
    Events,
    StoreRig,
    make_message,
    records_of,
    small_settings,
)

FILE_BYTES = 5 * BLOCK_BYTES
SETTINGS = small_settings(mapped_file_size_commit_log=FILE_BYTES, log_scrub_rate_max=64 << 10)
COUNT = 150
BODY_BYTES = BLOCK_BYTES // 15


def opened(disk, settings=SETTINGS, boot_id="this boot", clock=None):
    events = Events()
    return StoreRig(disk, settings, clock, log=events, boot_id=boot_id), events


def filled(disk, **options):
    rig, events = opened(disk, **options)
    random = Random(1)
    for number in range(COUNT):
        rig.put(
            make_message(queue_id=number % 2, body=random.randbytes(BODY_BYTES), keys=f"k{number}")
        )
    rig.work(3)
    return rig, events


def test_a_state_that_is_no_json_counts_as_missing(disk):
    layout = Layout(SETTINGS)
    for name, content in hostile({}):
        disk.contents[layout.scrub] = bytearray(content)
        assert load_state(disk, layout) == ScrubState(), name


def damage(disk, rig, queue_id=0, queue_offset=10, *, at=-5, data=b"\0"):
    """Overwrite bytes of a record, by default the end of its properties; return its offset."""
    entry = rig.entry("T", queue_id, queue_offset)
    place = entry.physical_offset + (at if at >= 0 else entry.size + at)
    file_start = place - place % FILE_BYTES
    log = disk.contents[f"/store/commitlog/{file_start:020d}"]
    assert log[place - file_start : place - file_start + len(data)] != data
    log[place - file_start : place - file_start + len(data)] = data
    return entry.physical_offset


def read(rig, queue_id):
    """Return the offsets of all messages that a consumer receives."""
    return [it.queue_offset for it in records_of(rig.store, "T", queue_id)]


def missing(rig):
    return {
        (queue_id, offset)
        for queue_id in (0, 1)
        for offset in set(range(COUNT // 2)) - set(read(rig, queue_id))
    }


@pytest.mark.parametrize("data", [b"\0" * 60, bytes(range(60)), b"\x01"], ids=["0", "random", "1"])
@pytest.mark.parametrize("at", [-62, 200], ids=["properties", "body"])
def test_a_round_finds_damage_and_readers_do_not_get_it(disk, at, data):
    rig, events = filled(disk)
    rig.scrub()
    assert events.of("log.damaged") == []
    rig.clock.advance(168 * 3_600_000)
    place = damage(disk, rig, at=at, data=data)
    rig.scrub()
    (found,) = events.of("log.damaged")
    gone = missing(rig)
    assert (0, 10) in gone
    assert found["message_count"] == len(gone) <= 3
    assert "k20" in found["keys"].split(", ") or len(data) > 1
    assert found["spared_count"] == 16 - len(gone)  # 16 share a byte with the block
    assert place - PAGE_BYTES < found["physical_offset"] < place + BODY_BYTES + PAGE_BYTES
    assert found["messages"] == ", ".join(
        str(DamagedMessages("T", queue_id, min(offsets), max(offsets)))
        for queue_id in (0, 1)
        if (offsets := [offset for key, offset in gone if key == queue_id])
    )
    stats = rig.store.stats()
    assert stats.damaged_message_count == len(gone)
    assert stats.damaged_bytes <= 2 * PAGE_BYTES
    assert stats.damaged_messages.startswith(found["messages"])
    assert finish(rig.store.reader.read_record(place)) is None
    rig.scrub()
    assert len(events.of("log.damaged")) == 1


def test_damage_that_a_slow_read_finds_again_is_reported_once(disk):
    rig, events = filled(disk)
    rig.scrub()
    rig.clock.advance(168 * 3_600_000)
    place = damage(disk, rig)
    rig.scrub()
    upkeep, verified = rig.store.upkeep, rig.store.commit_log.verified
    before = rig.store.stats()
    page = place - place % PAGE_BYTES + PAGE_BYTES
    verified.suspects = (DamagedRange(page, page + PAGE_BYTES),)  # on a thread, as its last step
    rig.scrub(1)
    assert verified.suspects == ()
    assert len(events.of("log.damaged")) == upkeep.scrubber.repairs.found_count == 1
    assert rig.store.stats().damaged_message_count == before.damaged_message_count


def search(rig, offset):
    reader = rig.store.reader
    return rig.settled(lambda: finish(reader.find_messages("T", 0, offset, 32, lambda _: True)))


def test_searches_skip_damage_too(disk):
    rig, _ = filled(disk)
    damage(disk, rig)
    rig.scrub()
    gone = {offset for queue_id, offset in missing(rig) if queue_id == 0}
    found, offset = [], 0
    while offset < COUNT // 2:
        result = search(rig, offset)
        assert result.next_offset > offset
        found += [decode_record(record).queue_offset for record in result.records]
        offset = result.next_offset
    assert set(found) == set(range(COUNT // 2)) - gone
    assert finish(rig.store.reader.query("T", "k20", 32, 0, 1 << 60)).records == []


def test_cached_reads_end_when_damage_is_found(disk):
    rig, _ = filled(disk)
    for _ in range(3):
        rig.store.reader.get_messages("T", 0, 10, 4, joined=True)
    damage(disk, rig)
    rig.scrub()
    result = rig.store.reader.get_messages("T", 0, 10, 4, joined=True)
    assert result.awaits_repair


def test_a_pull_says_once_what_it_skips(disk):
    rig, events = filled(disk)
    damage(disk, rig)
    rig.scrub()
    for _ in range(3):
        read(rig, 0)
    assert len(events.of("records.damaged")) == 1


def test_a_cold_pull_says_it_too(disk):
    rig, events = filled(disk)
    damage(disk, rig)
    rig.scrub()
    disk.is_cold = True
    cold = rig.store.reader.get_messages("T", 0, 10, 1)
    assert cold.is_cold
    result = cold.load()
    assert (result.status, result.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 11)
    settled = rig.settled(lambda: rig.store.reader.settled("T", 0, 10, result))
    assert settled == result
    assert len(events.of("records.damaged")) == 1


def test_known_damage_survives_restarts_until_the_bytes_are_restored(disk):
    rig, _ = filled(disk)
    log = disk.contents["/store/commitlog/" + "0" * 20]
    whole = bytes(log)
    damage(disk, rig)
    rig.scrub()
    gone = missing(rig)
    rig.store.close()
    rig, events = opened(disk)
    assert missing(rig) == gone
    assert len(events.of("log.damaged")) == 1
    rig.store.close()
    log[:] = whole
    rig, events = opened(disk)
    assert missing(rig) == set()
    assert len(events.of("log.damage_gone")) == 1
    assert rig.store.stats().damaged_bytes == 0


def test_damage_stays_known_without_its_checksums(disk):
    rig, _ = filled(disk)
    damage(disk, rig)
    rig.scrub()
    gone = missing(rig)
    rig.store.close()
    disk.contents["/store/checksums/" + "0" * 20][:] = bytes(60)
    rig, _ = opened(disk)
    rig.clock.advance(1000 * 3_600_000)
    rig.scrub()
    assert missing(rig) == gone


@pytest.mark.parametrize("state", [b"", b"{", b"\0" * 40, b'{"offset": "x"}'])
def test_a_damaged_state_begins_a_new_round(disk, state):
    rig, _ = filled(disk)
    rig.scrub()
    damage(disk, rig)
    rig.store.close()
    disk.contents["/store/checksums/scrub.json"][:] = state
    rig, events = opened(disk)
    assert events.of("log.damaged") == []
    rig.scrub()
    assert len(events.of("log.damaged")) == 1
    assert missing(rig)


def test_after_a_crash_of_the_host_the_last_files_are_checked_before_they_are_served(disk):
    rig, _ = filled(disk)
    old = damage(disk, rig, queue_offset=2)
    damage(disk, rig, queue_offset=70)
    disk.crash()
    rig, events = opened(disk, boot_id="the next boot")
    (found,) = events.of("log.damaged")
    assert found["physical_offset"] > old
    assert {(0, 2), (0, 70)} <= missing(rig)
    rig.scrub()
    assert len(events.of("log.damaged")) == 2


@pytest.mark.parametrize("boot_id", ["this boot"])
def test_after_a_kill_the_page_cache_is_there_and_nothing_is_read(disk, boot_id):
    rig, _ = filled(disk)
    damage(disk, rig, queue_offset=70)
    disk.crash()
    _, events = opened(disk, boot_id=boot_id)
    assert events.of("log.verified") == []


def test_bytes_that_cannot_be_read_are_damage(disk):
    rig, events = filled(disk)

    def fault(operation, path):
        return errno.EIO if operation == "read" and path.endswith("commitlog/" + "0" * 20) else 0

    disk.fault = fault
    rig.scrub(1)
    (found,) = events.of("log.damaged")
    assert (found["physical_offset"], found["size"]) == (0, FILE_BYTES)
    assert rig.store.reader.get_messages("T", 0, 0, 1).status is GetStatus.MESSAGE_WAS_REMOVING


def test_a_round_computes_what_no_checkpoint_has_covered(disk):
    rig, _ = filled(disk)
    rig.store.close()
    for path in [path for path in disk.contents if path.startswith("/store/checksums/")]:
        del disk.contents[path]
    rig, events = opened(disk)
    rig.scrub()
    rig.clock.advance(168 * 3_600_000)
    damage(disk, rig)
    rig.scrub()
    assert len(events.of("log.damaged")) == 1


def test_rounds_have_a_rate_and_a_pause(disk):
    rig, _ = filled(disk)
    job = rig.store.upkeep.scrubber.job(rig.clock())
    assert job is not None
    assert rig.store.upkeep.scrubber.job(rig.clock()) is None  # only one comparison at a time
    job.run()
    job.done(None)
    done = rig.store.stats().scrubbed_bytes
    assert done == rig.store.commit_log.end // BLOCK_BYTES * BLOCK_BYTES  # less than one step
    rig.scrub(50, elapsed_ms=3_600_000)
    assert rig.store.stats().scrubbed_bytes == done
    rig.clock.advance(168 * 3_600_000)
    rig.scrub(1)
    assert rig.store.stats().scrubbed_bytes == 2 * done


def test_the_place_of_a_round_survives_a_restart(disk):
    settings = small_settings(mapped_file_size_commit_log=4 << 20, log_scrub_rate_max=64 << 10)
    rig, _ = opened(disk, settings)
    for _ in range(40):
        rig.put(make_message(body=bytes(100_000)))
    rig.work(3)
    rig.scrub(1)
    assert rig.store.stats().scrubbed_bytes == 1 << 20
    rig.scrub(20, elapsed_ms=(1 << 20) * 1000 // RATE_MIN // 10)
    assert rig.store.stats().scrubbed_bytes == 3 << 20  # at 64 KiB/s
    rig.store.close()
    rig, _ = opened(disk, settings, clock=rig.clock)
    rig.scrub(200)
    total = rig.store.commit_log.end // BLOCK_BYTES * BLOCK_BYTES
    assert rig.store.stats().scrubbed_bytes == total - (3 << 20)


def test_a_failed_comparison_is_repeated(disk):
    rig, events = filled(disk)

    def fault(operation, path):
        return errno.ENOMEM if operation == "read" and "commitlog" in path else 0

    disk.fault = fault
    rig.scrub(2)
    assert [line["physical_offset"] for line in events.of("scrub.failed")] == [0, 0]
    disk.fault = None
    rig.scrub(1)
    assert rig.store.stats().scrubbed_bytes > 0


def test_a_state_that_cannot_be_saved_is_a_warning(disk):
    rig, events = filled(disk)
    disk.fault = lambda operation, path: errno.ENOSPC if "scrub" in path else 0
    rig.store.close()
    assert len(events.of("scrub.unsaved")) == 1
    assert "/store/abort" not in disk.contents


def test_zero_hours_turn_it_off(disk):
    rig, _ = filled(disk, settings=small_settings(log_scrub_hours=0))
    rig.scrub()
    assert rig.store.stats().scrubbed_bytes == 0


def test_a_truncation_forgets_the_damage_behind_it(disk):
    rig, _ = filled(disk)
    damage(disk, rig, queue_offset=50)
    rig.scrub()
    assert rig.store.stats().damaged_bytes
    rig.store.truncate(rig.entry("T", 0, 20).physical_offset)
    assert rig.store.stats().damaged_bytes == 0
    assert rig.store.stats().damaged_message_count == 0


def test_a_truncation_during_a_comparison_is_no_damage(disk):
    rig, events = filled(disk)
    job = rig.store.upkeep.scrubber.job(rig.clock())
    assert job is not None
    rig.store.truncate(rig.entry("T", 0, 20).physical_offset)
    job.run()
    job.done(None)
    rig.scrub()
    assert events.of("log.damaged") == []


def test_an_expired_file_takes_its_damage_along(disk):
    rig, _ = filled(disk)
    damage(disk, rig)
    rig.scrub()
    rig.clock.advance(100 * 3_600_000)
    rig.store.upkeep.cleaner.ask()
    rig.work(5)
    rig.scrub(1)
    assert rig.store.stats().damaged_bytes == 0


def test_the_list_of_messages_is_bounded():
    messages = [DamagedMessages("T", number, 1, 1) for number in range(22)]
    assert described(messages).endswith("T/19: 1, and 2 more queues")
