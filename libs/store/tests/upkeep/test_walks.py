# SPDX-License-Identifier: Apache-2.0
"""The scrubber's walks through entries take a bounded part of each second, and come to an end."""

import pytest

from cometmq.store.upkeep.walks import ENTRIES_PER_S, STEP_ENTRIES_MAX
from cometmq.testing.store.builders import StoreRig, make_message, small_settings

SETTINGS = small_settings(
    mapped_file_size_commit_log=8 << 20,
    max_hash_slot_num=3_000,
    max_index_num=40_000,
)
COUNT = 12_000


def fill(rig, count=COUNT):
    results: list[object] = []
    for number in range(count):
        message = make_message(body=b"%d" % number, unique_key=f"U{number}")
        rig.store.writer.put(message, results.append)
        if number % 1_000 == 999:
            rig.store.writer.commit()
    rig.work(3)


@pytest.fixture
def rig(disk):
    rig = StoreRig(disk, SETTINGS)
    fill(rig)
    return rig


def compared(rig, ticks, elapsed_ms=250):
    """Return how many entries of the index have been compared at each tick."""
    index, counts = rig.store.upkeep.scrubber.walks.index, []
    for _ in range(ticks):
        before = index.compared_count
        rig.scrub(1, elapsed_ms)
        counts.append(index.compared_count - before)
    return counts


def test_the_first_step_is_no_longer_than_others(rig):
    counts = compared(rig, 60)
    assert sum(counts) == COUNT
    assert max(counts) < 2 * ENTRIES_PER_S
    assert sum(counts[:20]) <= 6 * ENTRIES_PER_S


def test_a_long_pause_does_not_make_a_long_step(rig):
    counts = compared(rig, 5, elapsed_ms=3_600_000)
    assert max(counts) == STEP_ENTRIES_MAX
    assert sum(counts) == COUNT


def test_walks_end_where_the_log_ended_when_they_began(rig):
    compared(rig, 60)
    fill(rig)
    assert sum(compared(rig, 60)) == 0
    rig.clock.advance(169 * 3_600_000)
    assert sum(compared(rig, 120)) == 2 * COUNT


def test_walks_go_on_after_a_restart_in_the_middle_of_a_round(disk):
    rig = StoreRig(disk, SETTINGS)
    fill(rig)
    scrubber = rig.store.upkeep.scrubber
    rig.scrub(1, 0)
    assert scrubber.state.offset < scrubber.state.round_end
    rig.store.close()
    rig = StoreRig(disk, SETTINGS, rig.clock)
    rig.work(3)
    assert COUNT * 0.9 < sum(compared(rig, 60)) <= COUNT  # the last block may be sealed later


def test_walks_have_no_work_after_a_round(disk):
    rig = StoreRig(disk, SETTINGS)
    fill(rig, 3_000)
    rig.scrub()
    rig.store.close()
    rig = StoreRig(disk, SETTINGS, rig.clock)
    rig.work(3)
    assert sum(compared(rig, 60)) == 0


def test_walks_pause_often(disk):
    pauses: list[None] = []
    rig = StoreRig(disk, SETTINGS, pause=lambda: pauses.append(None))
    fill(rig, 3_000)
    assert sum(compared(rig, 10, elapsed_ms=1_000)) == 3_000
    assert len(pauses) >= 2 * 3_000 // 100
