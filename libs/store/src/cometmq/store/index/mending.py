# SPDX-License-Identifier: Apache-2.0
"""The repair of slots and header of an index file that grows: the loop changes both, so a job that
compares the file only reports what is wrong.
"""

from dataclasses import dataclass, field

from cometmq.store.index.index_file import IndexSnapshot
from cometmq.store.index.index_format import IndexHeader
from cometmq.store.index.index_slots import PAGE_SLOTS


@dataclass(slots=True)
class Mending:
    """The faults that a comparison with the log has found in a file that grows."""

    before: IndexSnapshot
    end: int
    """The number of the first entry that was not compared. Slots that lead to it, or to newer
    entries, are right.
    """
    header: IndexHeader
    """A header with the right bounds."""
    disk_header: IndexHeader
    slots: list[tuple[int, int, int]] = field(default_factory=list)
    """Slots, with the value in memory and the right one."""
    disk_pages: set[int] = field(default_factory=set)
    """Pages of slots on the disk that differ from those in memory, as they may until they are
    flushed.
    """
    disk_slot_count: int = 0
    """The number of slots that differ in these pages."""

    def apply(self) -> tuple[int, bool]:
        """Repair what has not changed since the comparison; the next flush writes it.

        Return the number of wrong slots, and whether the header was wrong.
        """
        before, file = self.before, self.before.file
        now, header = file.snapshot(), file.header
        table = now.table
        if table is None or table is not before.table:
            return 0, False
        newer = range(self.end, header.next_number)
        count = 0
        for slot, value, right in self.slots:
            if table.values[slot] == value and value not in newer:
                table.values[slot] = right
                table.dirty[slot // PAGE_SLOTS] = 1
                count += 1
        for page in self.disk_pages:
            table.dirty[page] = 1
        file.header = self._right(header)
        is_wrong = file.header != header
        if before.is_flushed and now.is_flushed and header == before.header:
            count += self.disk_slot_count
            is_wrong |= self.disk_header != header
        if count or is_wrong:
            file.flushed_count = 0
        return count, is_wrong

    def _right(self, header: IndexHeader) -> IndexHeader:
        """Return the present header with the bounds that are known."""
        if header.next_number == self.before.header.next_number:
            header = header._replace(
                end_timestamp=self.header.end_timestamp, end_offset=self.header.end_offset
            )
        return header._replace(
            begin_timestamp=self.header.begin_timestamp, begin_offset=self.header.begin_offset
        )
