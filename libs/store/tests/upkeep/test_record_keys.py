# SPDX-License-Identifier: Apache-2.0
"""Keys found by scanning near records are those found by looking up each record."""

import random

import pytest

from cometmq.store.upkeep.index_check import KeyReader
from cometmq.testing.store.builders import StoreRig, make_message


@pytest.mark.parametrize("seed", range(8))
def test_scanned_keys_are_the_looked_up_ones_in_any_order(disk, seed):
    chance = random.Random(seed)
    rig = StoreRig(disk)
    offsets = []
    for number in range(80):
        keys = chance.choice(["", f"k{number}", f"a{number} b{number}"])
        body = chance.choice([b"x", b"x" * 3_000])
        message = make_message(body=body, keys=keys, tags=chance.choice([None, "a"]))
        offsets.append(rig.put(message).physical_offset)
    log = rig.store.commit_log
    asked = [offset for offset in offsets if chance.random() < chance.choice([0.1, 0.9])]
    for _ in range(20):  # offsets out of order, or without a record
        asked.insert(chance.randrange(len(asked)), chance.choice(offsets) + chance.randrange(3))
    reader = KeyReader(log.files, log.end)
    found = [reader.at(offset) for offset in asked]
    assert found == [KeyReader(log.files, log.end).at(offset) for offset in asked]
    assert {it.offset for it in found if it is not None} == {*asked} & {*offsets}
    assert {it.offset for it in found if it is not None and it.keys} != set()
