# SPDX-License-Identifier: Apache-2.0
"""The repair of the index file that was being filled, when a store opens.

Entries that the header does not count are linked again. A slot that points at a missing entry is
reset to the newest existing entry of its chain.
"""

from cometmq.store.disk import DiskFile
from cometmq.store.index.index_format import HEADER, IndexHeader, IndexShape
from cometmq.store.index.index_slots import PAGE_SLOTS, SLOT_BYTES, SlotTable


def relink(
    file: DiskFile,
    shape: IndexShape,
    header: IndexHeader,
    *,
    written_count: int,
    offset_end: int,
    was_clean: bool,
) -> tuple[SlotTable[IndexHeader], IndexHeader]:
    """Return the slots and the header with only the entries of records before `offset_end`.

    `written_count` is the number that follows these entries, as recorded by the checkpoint at which
    recovery starts; if it is 0, the entries are searched. Entries that the header does not count
    are relinked without reading the log. After a crash, slots may point at entries that neither
    count includes.
    """
    count = min(written_count, shape.entry_count)
    if not count:
        count = _count_before(file, shape, offset_end, header.next_number)
    table: SlotTable[IndexHeader] = SlotTable(
        shape.slot_count, file.read(HEADER.size, shape.slot_count * SLOT_BYTES)
    )
    used = header.used_slot_count
    used += _link(table, file, shape, min(header.next_number, count), count)
    # Scanning five million slots takes time; after a clean stop no slot can be wrong.
    if not was_clean or not count == header.next_number == written_count:
        _unlink(table, file, shape, count)
    if count < header.next_number:
        used = sum(map(bool, table.values))
    return table, _header(header, file, shape, count, used)


def _count_before(file: DiskFile, shape: IndexShape, offset_end: int, known: int) -> int:
    """Return the number of the first entry that is invalid or refers to `offset_end` or later."""
    low, high = 1, known
    while low < high:
        middle = (low + high) // 2
        _, offset, seconds, previous = shape.entry(file, middle)
        if offset < offset_end and seconds >= 0 and 0 <= previous < middle:
            low = middle + 1
        else:
            high = middle
    return low


def _link(
    table: SlotTable[IndexHeader], file: DiskFile, shape: IndexShape, start: int, count: int
) -> int:
    """Link entries that are in the file but not counted by its header.

    Return how many of these entries were the first of their slot.
    """
    slots, dirty = table.values, table.dirty
    slot_count = shape.slot_count
    first_count = 0
    for number, (hash_, _, _, previous) in shape.entries(file, start, count):
        slot = hash_ % slot_count
        slots[slot] = number
        dirty[slot // PAGE_SLOTS] = 1
        first_count += not previous
    return first_count


def _unlink(table: SlotTable[IndexHeader], file: DiskFile, shape: IndexShape, count: int) -> None:
    """Reset each slot that points at or beyond `count` to an earlier entry of its chain."""
    slots, entry_count = table.values, shape.entry_count
    if max(slots) < count:
        return
    for slot, newest in enumerate(slots):
        if newest < count:
            continue
        number = newest
        # The bound ends a chain that damage has turned into a cycle.
        for _ in range(entry_count):
            if number < count:
                break
            number = shape.entry(file, number)[3] if number < entry_count else 0
        slots[slot] = number
        table.dirty[slot // PAGE_SLOTS] = 1


def _header(
    old: IndexHeader, file: DiskFile, shape: IndexShape, count: int, used: int
) -> IndexHeader:
    if count == old.next_number:
        return old
    if count <= 1:
        return old._replace(next_number=1, used_slot_count=0)
    _, begin_offset, _, _ = shape.entry(file, 1)
    _, end_offset, seconds, _ = shape.entry(file, count - 1)
    end_timestamp = old.begin_timestamp + seconds * 1000
    return IndexHeader(old.begin_timestamp, end_timestamp, begin_offset, end_offset, used, count)
