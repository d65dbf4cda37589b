# SPDX-License-Identifier: Apache-2.0
"""The format of an index file, and message keys that wait to be indexed, in log order.

Layout (docs/protocol/store.md#index): header of 40 bytes, then the slots (int32: number of the
newest entry, 0 = none), then the entries (int32 hash, int64 physical offset, int32 seconds since
the file's first message, int32 number of the previous entry in the same slot). Entry 0 is never
used, so the header holds the next free number.

Index files accept any `Keys`. `KeyedRows` holds the keys of messages that Python has placed in the
log; a native message path supplies its own keys, already hashed.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from cometmq.remoting.message.flags import index_hashes
from cometmq.store.disk import DiskFile
from cometmq.store.index.index_slots import SLOT_BYTES

ENTRY: Final = struct.Struct(">iqii")
SECONDS_MAX: Final = 0x7FFFFFFF
MERGED_COUNT: Final = 256
"""Number of keys that are queued before they are added to the files."""

KeyedRecord: TypeAlias = tuple[str, str, int, int]
"""Topic, key, physical offset and store timestamp of a message; one tuple per key."""

HashedKey: TypeAlias = tuple[int, int, int]
"""Hash, physical offset and store timestamp of a message; one tuple per key."""

_pack_entry = ENTRY.pack


class Keys(Protocol):
    """Message keys, in log order."""

    @property
    def count(self) -> int:
        """The number of keys."""

    def offset(self, index: int) -> int:
        """Return the physical offset of a key's message."""

    def timestamp(self, index: int) -> int:
        """Return the store time of a key's message."""

    def find(self, topic: str, key: str) -> Sequence[int]:
        """Return the offsets of messages that may have a key, newest first."""

    def absorb(self, newer: "Keys") -> bool:
        """Append newer keys of the same kind, which the caller then forgets.

        Return False and change nothing if they are of another kind, or if there are MERGED_COUNT
        keys already.
        """

    def link(  # flat arguments: one call per commit, in native code too
        self,
        start: int,
        count: int,
        slots: memoryview,
        dirty: bytearray,
        page_slots: int,
        number: int,
        begin_ms: int,
    ) -> tuple[bytes, int]:
        """Link keys into the slots of an index file; their entries are numbered from `number`.

        Mark the pages that change in `dirty`. Return the entries and the number of slots that were
        empty. `begin_ms` is the time of the file's first message.
        """


class HashedKeys:
    """Keys of which only the hashes are known."""

    __slots__ = ("rows",)

    def __init__(self, rows: list[HashedKey]) -> None:
        self.rows: list[Any] = rows  # their last items are the offset and the store time

    @property
    def count(self) -> int:
        """The number of keys."""
        return len(self.rows)

    def offset(self, index: int) -> int:
        """Return the physical offset of a key's message."""
        return int(self.rows[index][-2])

    def timestamp(self, index: int) -> int:
        """Return the store time of a key's message."""
        return int(self.rows[index][-1])

    def find(self, _topic: str, _key: str) -> Sequence[int]:
        """Return nothing: the keys are not known."""
        return ()

    def absorb(self, _newer: Keys) -> bool:
        """Return False."""
        return False

    def _hashed(self, start: int, end: int) -> Iterable[HashedKey]:
        return self.rows[start:end]

    def link(  # see `Keys`
        self,
        start: int,
        count: int,
        slots: memoryview,
        dirty: bytearray,
        page_slots: int,
        number: int,
        begin_ms: int,
    ) -> tuple[bytes, int]:
        """Link keys into the slots of an index file (see `Keys.link`)."""
        rows = self._hashed(start, start + count)
        return _link(rows, slots, dirty, page_slots, number, begin_ms)


class KeyedRows(HashedKeys):
    """Keys as text, one per row; rows may be appended until the keys are linked."""

    __slots__ = ()

    def __init__(self, rows: list[KeyedRecord] | None = None) -> None:
        self.rows: list[Any] = [] if rows is None else rows

    def find(self, topic: str, key: str) -> Sequence[int]:
        """Return the offsets of messages that may have a key, newest first."""
        return [row[2] for row in self.rows[::-1] if row[0] == topic and row[1] == key]

    def absorb(self, newer: Keys) -> bool:
        """Append newer rows (see `Keys.absorb`)."""
        if not isinstance(newer, KeyedRows) or len(self.rows) >= MERGED_COUNT:
            return False  # a list that always grew would never be released
        self.rows += newer.rows
        return True

    def _hashed(self, start: int, end: int) -> Iterable[HashedKey]:
        rows = self.rows[start:end]
        hashes = index_hashes([row[0] for row in rows], [row[1] for row in rows])
        return ((hash_, row[2], row[3]) for hash_, row in zip(hashes, rows, strict=True))


def _link(
    rows: Iterable[HashedKey],
    slots: memoryview,
    dirty: bytearray,
    page_slots: int,
    number: int,
    begin_ms: int,
) -> tuple[bytes, int]:
    slot_count, used = len(slots), 0
    entries: list[bytes] = []
    seconds, seconds_of = 0, -1
    for hash_, offset, timestamp in rows:
        if timestamp != seconds_of:
            seconds, seconds_of = seconds_between(begin_ms, timestamp), timestamp
        slot = hash_ % slot_count
        previous = slots[slot]
        entries.append(_pack_entry(hash_, offset, seconds, previous))
        slots[slot] = number
        dirty[slot // page_slots] = 1
        if not previous:
            used += 1
        number += 1
    return b"".join(entries), used


def seconds_between(begin: int, timestamp: int) -> int:
    """Return what an entry stores as the time of its record; `begin` is the time of the file."""
    return min(max(0, (timestamp - begin) // 1000), SECONDS_MAX) if begin > 0 else 0


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
