# SPDX-License-Identifier: Apache-2.0
"""The format of an index file.

Layout (docs/protocol/store.md#index): header of 40 bytes, then the slots (int32: number of the
newest entry, 0 = none), then the entries (int32 hash, int64 physical offset, int32 seconds since
the file's first message, int32 number of the previous entry in the same slot). Entry 0 is never
used, so the header holds the next free number.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from cometmq.store.disk import DiskFile
from cometmq.store.index.index_slots import SLOT_BYTES
from cometmq.store.index.keys import ENTRY

HEADER: Final = struct.Struct(">qqqqii")

Entry: TypeAlias = tuple[int, int, int, int]
_BLOCK_COUNT: Final = 16_384  # entries read together


class IndexShape(NamedTuple):
    """The number of slots and entries per file."""

    slot_count: int
    entry_count: int

    @property
    def file_size(self) -> int:
        """The size of a complete file in bytes."""
        return self.entry_position(self.entry_count)

    def slot_position(self, slot: int) -> int:
        """Return the position of a slot in the file, in bytes."""
        return HEADER.size + slot * SLOT_BYTES

    def entry_position(self, number: int) -> int:
        """Return the position of an entry in the file, in bytes."""
        return HEADER.size + self.slot_count * SLOT_BYTES + number * ENTRY.size

    def entry(self, file: DiskFile, number: int) -> Entry:
        """Read an entry; blocks."""
        return ENTRY.unpack(file.read(self.entry_position(number), ENTRY.size))

    def entries(self, file: DiskFile, start: int, end: int) -> Iterator[tuple[int, Entry]]:
        """Yield entries with their numbers; blocks."""
        for first in range(start, end, _BLOCK_COUNT):
            last = min(first + _BLOCK_COUNT, end)
            data = file.read(self.entry_position(first), (last - first) * ENTRY.size)
            yield from enumerate(ENTRY.iter_unpack(data), first)


class IndexHeader(NamedTuple):
    """The fields of the 40-byte header."""

    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    used_slot_count: int = 0
    next_number: int = 1
