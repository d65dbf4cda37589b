# SPDX-License-Identifier: Apache-2.0
"""Checksums of a store that another program has used since: one test per row of the table."""

import pytest

from cometmq.store.layout import Layout
from cometmq.store.recovery.checkpoint import CHECKPOINT_BYTES, Checkpoint, read_checkpoint
from cometmq.testing.store.builders import SMALL, StoreRig, make_message
from cometmq.testing.store.memory_disk import MemoryDisk


@pytest.fixture
def disk():
    """Return the disk of a stopped store with several log files."""
    disk = MemoryDisk()
    rig = StoreRig(disk)
    for _ in range(60):
        rig.put(make_message(body=bytes(200)))
        rig.clock.advance(10)
    rig.work(3)
    rig.store.close()
    return disk


def sums(disk):
    return [path for path in disk.contents if path.startswith("/store/checksums/0")]


def used_by_another(disk, *, since_ms):
    """Write the checkpoint as if another broker had stored all records since this time."""
    _, progress = read_checkpoint(disk, Layout(SMALL))
    assert progress is not None
    own = Checkpoint(since_ms, since_ms, 0)
    disk.contents["/store/progress"][:] = progress._replace(checkpoint=own).encode()
    later = Checkpoint(since_ms + 60_000, since_ms + 60_000, 0)
    disk.contents["/store/checkpoint"][:CHECKPOINT_BYTES] = later.encode()


def test_a_store_that_only_this_program_used_keeps_all(disk):
    before = sums(disk)
    assert len(before) > 3
    StoreRig(disk)
    assert sums(disk) == before


def test_without_progress_nothing_is_trusted(disk):
    disk.contents["/store/progress"][:] = bytes(len(disk.contents["/store/progress"]))
    StoreRig(disk)
    assert sums(disk) == []


def test_files_before_the_records_of_another_program_are_trusted(disk):
    before = sums(disk)
    used_by_another(disk, since_ms=1_700_000_000_000 + 300)
    StoreRig(disk)
    assert 0 < len(sums(disk)) < len(before)
    assert sums(disk) == before[: len(sums(disk))]
