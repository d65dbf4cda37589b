# SPDX-License-Identifier: Apache-2.0
"""Damaged blocks are replaced by bytes that fit their checksum, and by nothing else."""

import itertools
from random import Random

import pytest

from cometmq.store.log.block_sums import BLOCK_BYTES, PAGE_BYTES
from cometmq.store.log.damage import DamagedRange, without
from cometmq.store.upkeep.block_repairs import Offer
from cometmq.testing.store.builders import (
    Events,
    StoreRig,
    make_message,
    records_of,
    small_settings,
)

FILE_BYTES = 2 * BLOCK_BYTES + 20_000
SETTINGS = small_settings(mapped_file_size_commit_log=FILE_BYTES, log_scrub_hours=0)
COUNT = 100


@pytest.fixture
def opened(disk):
    return filled(disk)


def filled(disk):
    events = Events()
    rig = StoreRig(disk, SETTINGS, log=events, boot_id="boot")
    random = Random(1)
    for number in range(COUNT):
        rig.put(make_message(queue_id=number % 2, body=random.randbytes(4000)))
    rig.work(3)
    return rig, events


def hurt(disk, rig, *places):
    """Change bytes, and let a reader find them."""
    for place in places:
        start = place - place % FILE_BYTES
        disk.contents[f"/store/commitlog/{start:020d}"][place - start] ^= 1
    rig.store.pulls.forget()
    read(rig)
    rig.scrub(1)


def read(rig):
    return [
        (it.queue_id, it.queue_offset) for at in (0, 1) for it in records_of(rig.store, "T", at)
    ]


def log_of(rig):
    log = rig.store.commit_log
    return log.read(0, log.end)


def give(rig, block, data, outcome=None):
    done = [] if outcome is None else outcome
    return rig.store.upkeep.scrubber.repairs.offer(
        Offer(block, bytes(data), "peer:10912", done.append)
    )


def blocks(rig, end=1 << 62):
    found, after = [], 0
    while (block := rig.store.upkeep.scrubber.repairs.next_block(after, end)) is not None:
        found.append(block)
        after = block.end
    return found


def test_a_block_is_replaced_and_reported(disk, opened):
    rig, events = opened
    whole, log = read(rig), log_of(rig)
    hurt(disk, rig, 70_000)
    assert len(read(rig)) < COUNT
    (block,) = blocks(rig)
    assert block == (BLOCK_BYTES, 2 * BLOCK_BYTES)
    outcome: list[bool] = []
    assert give(rig, block, log[block.start : block.end], outcome)
    rig.scrub(1)
    assert outcome == [True]
    assert events.of("log.repaired") == [
        {
            "path": "/store/commitlog/00000000000000000000",
            "physical_offset": BLOCK_BYTES,
            "size": BLOCK_BYTES,
            "source": "peer:10912",
        }
    ]
    assert read(rig) == whole
    stats = rig.store.stats()
    assert (stats.repaired_block_count, stats.damaged_bytes, stats.damaged_message_count) == (
        1, 0, 0,
    )  # fmt: skip
    disk.lose_power()
    again = StoreRig(disk, SETTINGS, boot_id="next boot")
    assert again.store.stats().damaged_bytes == 0
    assert read(again) == whole


def test_damage_is_given_block_by_block_within_files_and_bounds(disk, opened):
    rig, _ = opened
    end = rig.store.commit_log.end
    hurt(disk, rig, *range(0, end, 2_000))
    found = blocks(rig)
    assert found[0] == (0, BLOCK_BYTES)
    assert (2 * BLOCK_BYTES, FILE_BYTES) in found  # a file need not end with a whole block
    assert found[-1].end == end
    assert all(one.end == two.start for one, two in itertools.pairwise(found))
    assert blocks(rig, FILE_BYTES + 10)[-1] == (FILE_BYTES, FILE_BYTES + 10)
    assert blocks(rig, 0) == []
    rig.store.commit_log.confirm_offset = BLOCK_BYTES
    assert blocks(rig) == [(0, BLOCK_BYTES)]


def test_a_repair_between_two_damaged_blocks_leaves_both(disk, opened):
    rig, _ = opened
    log = log_of(rig)
    hurt(disk, rig, 100, BLOCK_BYTES + 100, 2 * BLOCK_BYTES + 100)
    block = blocks(rig)[1]
    give(rig, block, log[block.start : block.end])
    rig.scrub(1)
    stats = rig.store.stats()
    assert stats.damaged_bytes == 2 * PAGE_BYTES
    assert COUNT - len(read(rig)) == stats.damaged_message_count > 0
    hurt(disk, rig, FILE_BYTES + 7)  # finding more damage does not bring the block back
    assert block not in blocks(rig)
    assert COUNT - len(read(rig)) == rig.store.stats().damaged_message_count


@pytest.mark.parametrize("at", [0, 3_000, -1])
def test_bytes_that_do_not_fit_are_refused(disk, opened, at):
    rig, events = opened
    log = log_of(rig)
    hurt(disk, rig, 70_000)
    (block,) = blocks(rig)
    outcome: list[bool] = []
    before = log_of(rig)
    data = bytearray(log[block.start : block.end])
    data[at] ^= 4
    give(rig, block, data, outcome)
    rig.scrub(1)
    assert outcome == [False]
    assert log_of(rig) == before
    assert events.of("log.repaired") == []
    assert blocks(rig) == [block]


def test_a_part_of_a_block_is_enough_if_the_rest_is_intact(disk, opened):
    rig, _ = opened
    log = log_of(rig)
    hurt(disk, rig, 70_000)
    (block,) = blocks(rig, 80_000)
    assert block == (BLOCK_BYTES, 80_000)
    give(rig, block, log[BLOCK_BYTES:80_000])
    rig.scrub(1)
    assert log_of(rig) == log
    assert rig.store.stats().damaged_bytes == 0


def test_a_part_of_a_block_does_not_hide_damage_behind_it(disk, opened):
    rig, _ = opened
    log = log_of(rig)
    hurt(disk, rig, 70_000, 90_000)
    give(rig, DamagedRange(BLOCK_BYTES, 80_000), log[BLOCK_BYTES:80_000])
    rig.scrub(1)
    assert blocks(rig) == [(BLOCK_BYTES, 2 * BLOCK_BYTES)]


def test_a_block_without_a_checksum_is_left_alone(disk, opened):
    rig, _ = opened
    outcome: list[bool] = []
    log = log_of(rig)
    hurt(disk, rig, 70_000)
    disk.contents["/store/checksums/00000000000000000000"][12:24] = bytes(12)
    (block,) = blocks(rig)
    give(rig, block, log[block.start : block.end], outcome)
    rig.scrub(1)
    assert outcome == [False]
    assert blocks(rig) == [block]


def test_a_truncation_drops_the_offer(disk, opened):
    rig, _ = opened
    outcome: list[bool] = []
    log = log_of(rig)
    hurt(disk, rig, 70_000)
    (block,) = blocks(rig)
    give(rig, block, log[block.start : block.end], outcome)
    rig.store.write_state.role_writable = False
    rig.store.truncate(rig.entry("T", 0, 2).physical_offset)
    rig.scrub(1)
    assert outcome == [False]
    assert rig.store.stats().repaired_block_count == 0
    assert not any(log_of(rig)[rig.store.commit_log.end :])


def test_a_truncation_during_the_job_discards_it(disk, opened):
    rig, _ = opened
    outcome: list[bool] = []
    log = log_of(rig)
    hurt(disk, rig, 70_000)
    (block,) = blocks(rig)
    give(rig, block, log[block.start : block.end], outcome)
    job = rig.store.upkeep.scrubber.job(rig.clock.advance(1000))
    rig.store.write_state.role_writable = False
    rig.store.truncate(rig.entry("T", 0, 2).physical_offset)
    job.run()
    job.done(None)
    assert outcome == [False]
    assert not any(disk.contents["/store/commitlog/00000000000000000000"][BLOCK_BYTES:])


def test_a_reader_that_is_late_does_not_report_a_repaired_block(disk, opened):
    rig, events = opened
    log = log_of(rig)
    hurt(disk, rig, 70_000)
    (block,) = blocks(rig)
    give(rig, block, log[block.start : block.end])
    rig.scrub(1)
    verified = rig.store.commit_log.verified
    verified.suspects = (block,)  # it had read the bytes before the repair
    rig.scrub(1)
    assert verified.suspects == ()
    assert rig.store.stats().damaged_bytes == 0
    assert len(events.of("log.damaged")) == 1
    assert len(read(rig)) == COUNT


def test_one_offer_waits_at_a_time(disk, opened):
    rig, _ = opened
    log = log_of(rig)
    hurt(disk, rig, 70_000, 100)
    first, second = blocks(rig)
    assert give(rig, first, log[first.start : first.end])
    assert not give(rig, second, log[second.start : second.end])
    rig.scrub(1)
    assert give(rig, second, log[second.start : second.end])
    rig.scrub(1)
    assert log_of(rig) == log


def test_a_range_without_a_part():
    ranges = [DamagedRange(0, 10), DamagedRange(20, 40)]
    assert without(ranges, DamagedRange(25, 30)) == ((0, 10), (20, 25), (30, 40))
    assert without(ranges, DamagedRange(5, 25)) == ((0, 5), (25, 40))
    assert without(ranges, DamagedRange(10, 20)) == ((0, 10), (20, 40))
    assert without(ranges, DamagedRange(0, 50)) == ()
