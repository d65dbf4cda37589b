# SPDX-License-Identifier: Apache-2.0
"""The floors of queues: the offsets before which an administrator has deleted all messages.

Every copy sets the floor once its readers may see the mark of the trim in the log
(`writing/marks.py`). The deleted records stay in the log until they expire. They precede the
mark, so the floor is needed only as long as the log has its mark.

Layout of the file (docs/protocol/store.md#deletions): a CRC-32 of the rest (uint32), then for each
floor its queue offset, the position of its mark (int64 each), the queue id (int32), the length of
the topic (int16) and the topic in UTF-8.

Invariants: a checkpoint saves the floors whose marks lie before it; recovery finds the others in
the log. A floor hides only records before its mark: a topic of the same name that was created later
begins at offset 0 again. So it does no harm to keep a floor for too long, or to add it twice.
"""

import struct
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias
from zlib import crc32

from cometmq.remoting.message.record import MessageRecord
from cometmq.store.disk import Disk, read_whole, replace
from cometmq.store.layout import Layout

_CRC: Final = struct.Struct(">I")
_HEAD: Final = struct.Struct(">qqih")
_UNQUEUED: Final = 0x4  # as in `writing/append.py`: such a record has no queue offset

QueueName: TypeAlias = tuple[str, int]
"""Topic and queue id."""


class Floor(NamedTuple):
    """The first offset of a queue after a trim."""

    queue_offset: int
    place: int
    """The position of the mark in the log."""


class TrimmedQueue(NamedTuple):
    """A floor and its queue."""

    topic: str
    queue_id: int
    floor: Floor

    def encode(self) -> bytes:
        """Return the bytes of one entry of the file."""
        name = self.topic.encode()
        return _HEAD.pack(*self.floor, self.queue_id, len(name)) + name


def encode(trimmed: list[TrimmedQueue]) -> bytes:
    """Return the content of the file."""
    data = b"".join(entry.encode() for entry in trimmed)
    return _CRC.pack(crc32(data)) + data


def decode(data: bytes) -> list[TrimmedQueue] | None:
    """Parse the file; return None if it is damaged."""
    if len(data) < _CRC.size or crc32(data[_CRC.size :]) != _CRC.unpack_from(data)[0]:
        return None
    found, position = [], _CRC.size
    while position < len(data):
        queue_offset, place, queue_id, length = _HEAD.unpack_from(data, position)
        position += _HEAD.size + length
        topic = data[position - length : position].decode()
        found.append(TrimmedQueue(topic, queue_id, Floor(queue_offset, place)))
    return found


class FloorsFile(NamedTuple):
    """The content that a checkpoint writes to the file, and its version."""

    disk: Disk
    layout: Layout
    data: bytes
    version: int

    def save(self) -> None:
        """Replace the file and sync it; runs on a worker thread."""
        path = self.layout.floors
        replace(self.disk, path, self.data, temporary=self.layout.temporary(path))


class Floors:
    """Keeps the floors of one store's queues, in memory and, by checkpoints, in the file."""

    __slots__ = ("_floors", "_saved_version", "_version")

    def __init__(self) -> None:
        self._floors: dict[QueueName, tuple[Floor, ...]] = {}
        self._version = self._saved_version = 0

    def __len__(self) -> int:
        return len(self._floors)

    def of(self, topic: str, queue_id: int) -> tuple[Floor, ...]:
        """Return the floors of a queue, and of earlier queues of the same name."""
        return self._floors.get((topic, queue_id), ())

    def add(self, topic: str, queue_id: int, floor: Floor) -> None:
        """Add a floor, and drop those that hide only records that it hides, too; do nothing if
        another floor hides all these records already.
        """
        known = self.of(topic, queue_id)
        if any(it.queue_offset >= floor.queue_offset and it.place >= floor.place for it in known):
            return
        kept = (
            it for it in known if it.queue_offset > floor.queue_offset or it.place > floor.place
        )
        self._floors[topic, queue_id] = (*kept, floor)
        self._version += 1

    def hides(self, topic: str, queue_id: int, queue_offset: int, place: int) -> bool:
        """Return whether the record with this queue offset, at `place` in the log, is below a
        floor.
        """
        return any(
            queue_offset < floor.queue_offset and place < floor.place
            for floor in self.of(topic, queue_id)
        )

    def hides_record(self, record: MessageRecord) -> bool:
        """Return whether a record has been deleted."""
        return not record.sys_flag & _UNQUEUED and self.hides(
            record.topic, record.queue_id, record.queue_offset, record.physical_offset
        )

    def beyond(self, log_end: int) -> set[str]:
        """Return the topics with a mark after the new end of a truncated log."""
        return {
            topic
            for (topic, _), floors in self._floors.items()
            if any(floor.place >= log_end for floor in floors)
        }

    def undo(self, log_end: int) -> None:
        """Drop the floors whose marks lie after the new end of a truncated log."""
        self._keep(lambda _, floor: floor.place < log_end)

    def prune(self, log_first: int) -> None:
        """Drop the floors whose marks have expired with all records before them."""
        self._keep(lambda _, floor: floor.place >= log_first)

    def _keep(self, is_kept: Callable[[QueueName, Floor], bool]) -> None:
        for name, floors in list(self._floors.items()):
            kept = tuple(floor for floor in floors if is_kept(name, floor))
            if len(kept) == len(floors):
                continue
            self._version += 1
            if kept:
                self._floors[name] = kept
            else:
                del self._floors[name]

    def load(self, disk: Disk, layout: Layout, has_mark: Callable[[TrimmedQueue], bool]) -> bool:
        """Read the floors of the last run; return False if the file is damaged.

        `has_mark` returns whether the log has the mark of a floor: another program may have
        truncated it.
        """
        data = read_whole(disk, layout.floors)
        if data is None:
            return True
        found = decode(data)
        for entry in found or ():
            if has_mark(entry):
                self.add(*entry)
        self._saved_version = self._version
        return found is not None

    def plan(self, disk: Disk, layout: Layout, log_first: int) -> FloorsFile | None:
        """Return the file that the next checkpoint has to save; None if no floor has changed."""
        self.prune(log_first)
        if self._version == self._saved_version:
            return None
        entries = [
            TrimmedQueue(*name, floor) for name, floors in self._floors.items() for floor in floors
        ]
        return FloorsFile(disk, layout, encode(entries), self._version)

    def note_saved(self, saved: FloorsFile | None) -> None:
        """Record that a checkpoint has saved this file."""
        if saved is not None:
            self._saved_version = saved.version
