# SPDX-License-Identifier: Apache-2.0
"""Keys found by scanning near records are those found by looking up each record."""

import random

import pytest

from cometmq.store.inspection.inspect import open_view
from cometmq.store.inspection.record_keys import RecordKeys
from cometmq.testing.store.builders import StoreRig, make_message
from cometmq.testing.store.memory_disk import MemoryDisk

LARGE = b"x" * 3_000


def filled_disk(seed):
    """Return a disk with a store of several files, and the offsets of its records."""
    chance = random.Random(seed)
    disk = MemoryDisk()
    rig = StoreRig(disk)
    offsets = []
    for number in range(80):
        keys = chance.choice(["", f"k{number}", f"a{number} b{number}"])
        body = chance.choice([b"x", LARGE])
        message = make_message(body=body, keys=keys, tags=chance.choice([None, "a"]))
        offsets.append(rig.put(message).physical_offset)
    rig.store.close()
    return disk, offsets


@pytest.mark.parametrize("seed", range(8))
def test_scanned_keys_are_the_looked_up_ones_in_any_order(seed):
    disk, offsets = filled_disk(seed)
    chance = random.Random(seed)
    view = open_view("/store", disk=disk)
    view.parts.commit_log.set_end(max(offsets) + 4_000)
    asked = [offset for offset in offsets if chance.random() < chance.choice([0.1, 0.9])]
    for _ in range(20):  # offsets out of order, or without a record
        asked.insert(chance.randrange(len(asked)), chance.choice(offsets) + chance.randrange(3))
    keys = RecordKeys(view)
    found = [keys.hashes(offset) for offset in asked]
    assert found == [keys._found(offset) for offset in asked]
    assert any(found)


def test_near_records_are_read_together(monkeypatch):
    disk, offsets = filled_disk(1)
    view = open_view("/store", disk=disk)
    view.parts.commit_log.set_end(max(offsets) + 4_000)
    keys = RecordKeys(view)
    looked_up: list[int] = []
    monkeypatch.setattr(keys, "_found", looked_up.append)
    for offset in offsets[40:]:
        keys.hashes(offset)
    assert looked_up == [offsets[40]]
