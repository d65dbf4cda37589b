# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

from cometmq.store.index.index_slots import (
    PAGE_SLOTS,
    SLOT_BYTES,
    SlotTable,
)

PAGE_BYTES = PAGE_SLOTS * SLOT_BYTES
FIRST_PAGE, POSITION = 3, 40


def resident_bytes():
    """Return the process's memory that no other process shares."""
    text = Path("/proc/self/smaps_rollup").read_text("ascii")
    return sum(1024 * int(line.split()[1]) for line in text.splitlines() if "Private" in line)


def test_empty_slots_take_no_memory():
    slot_count = 5_000_000
    before = resident_bytes()
    tables: list[SlotTable[int]] = [SlotTable(slot_count) for _ in range(10)]
    assert resident_bytes() - before < slot_count * SLOT_BYTES
    for table in tables:
        table.values[-1] = 7
        assert (table.values[0], table.values[-1], len(table.values)) == (0, 7, slot_count)
