# SPDX-License-Identifier: Apache-2.0
from array import array
from pathlib import Path

from cometmq.store.disk import DiskFile
from cometmq.store.index.index_slots import (
    PAGE_SLOTS,
    SLOT_BYTES,
    WRITE_BYTES,
    SlotPages,
    SlotTable,
)
from cometmq.testing.store.memory_disk import MemoryDisk

PAGE_BYTES = PAGE_SLOTS * SLOT_BYTES
FIRST_PAGE, POSITION = 3, 40


def test_pages_are_written_in_pieces_that_hold_up_the_loop_only_briefly(monkeypatch):
    count = 2 * WRITE_BYTES // SLOT_BYTES + PAGE_SLOTS
    disk = MemoryDisk()
    file = disk.create(
        "slots", POSITION + (FIRST_PAGE + count // PAGE_SLOTS) * PAGE_BYTES, temporary="slots.tmp"
    )
    sizes = sizes_of_writes(file, monkeypatch)
    SlotPages(FIRST_PAGE, array("i", range(count)).tobytes()).write(file, POSITION)
    assert sizes == [WRITE_BYTES, WRITE_BYTES, PAGE_BYTES]
    written = file.read(POSITION + FIRST_PAGE * PAGE_BYTES, count * SLOT_BYTES)
    assert written == b"".join(number.to_bytes(4) for number in range(count))
    assert not any(file.read(0, POSITION + FIRST_PAGE * PAGE_BYTES))


def sizes_of_writes(file: DiskFile, monkeypatch) -> list[int]:
    sizes: list[int] = []
    write = type(file).write

    def counted(self, position, parts):
        sizes.append(sum(map(len, parts)))
        return write(self, position, parts)

    monkeypatch.setattr(type(file), "write", counted)
    return sizes


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
