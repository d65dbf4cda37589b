# SPDX-License-Identifier: Apache-2.0
"""Notes of the topics that were deleted since the last checkpoint.

A deletion takes effect in memory at once, but the queues' files are deleted later, and the
checkpoint's progress counts their entries until the next checkpoint. After a kill, recovery would
therefore continue the old queues. If a new topic has the same name, its queue offsets restart at 0,
and recovery would take its messages for damaged ones. The notes prevent that. The deletion is also
marked in the log (`writing/marks.py`); followers make the same note when they reach the
mark.

Layout of the file (docs/protocol/store.md#deletions): for each note a CRC-32 of the rest of it
(uint32), the end of the log at the deletion (int64), the length of the topic (int16) and the topic
in UTF-8. The notes follow each other from the beginning of the file to the first one that is
invalid.

Invariants:

- Recovery ignores the records of a noted topic before the noted offset.
- A note is in the file before the topic's next message is in the log, and on the disk before that
  message is.
- A note is outdated once a checkpoint that was planned after the deletion is complete. It may stay
  in the file, because it does no harm: its offset is at or before the progress, and the queues have
  an entry for every earlier record of a live topic of that name.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple
from zlib import crc32

from cometmq.store.disk import Disk, DiskFile, read_whole
from cometmq.store.layout import Layout

FILE_BYTES: Final = 64 * 1024
"""The file grows in steps of this size; one step has room for thousands of notes."""

_CRC: Final = struct.Struct(">I")
_HEAD: Final = struct.Struct(">qh")
_END: Final = bytes(_CRC.size + _HEAD.size)


class Deletion(NamedTuple):
    """The deletion of one topic."""

    topic: str
    log_end: int
    """The end of the log at the deletion."""

    def encode(self) -> bytes:
        """Return the bytes of the note."""
        name = self.topic.encode()
        data = _HEAD.pack(self.log_end, len(name)) + name
        return _CRC.pack(crc32(data)) + data


def decode(data: bytes) -> list[Deletion]:
    """Parse the notes up to the first invalid one."""
    found, position = [], 0
    while position + len(_END) < len(data):
        (crc,) = _CRC.unpack_from(data, position)
        begin = position + _CRC.size
        log_end, length = _HEAD.unpack_from(data, begin)
        position = begin + _HEAD.size + length
        if length <= 0 or position > len(data) or crc32(data[begin:position]) != crc:
            break
        found.append(Deletion(data[position - length : position].decode(), log_end))
    return found


def read_notes(disk: Disk, layout: Layout) -> list[Deletion]:
    """Return the notes in the file; none if there is no file."""
    return decode(read_whole(disk, layout.deletions) or b"")


def ends_of(notes: Iterable[Deletion]) -> Mapping[str, int]:
    """Return, per deleted topic, the offset of the log before which its records are ignored."""
    found: dict[str, int] = {}
    for topic, log_end in notes:
        found[topic] = max(log_end, found.get(topic, 0))
    return found


class Deletions:
    """Keeps the notes of one store, in memory and in the file."""

    __slots__ = ("_disk", "_file", "_layout", "_notes", "_position", "_size", "version")

    def __init__(self, disk: Disk, layout: Layout) -> None:
        self._disk = disk
        self._layout = layout
        self._file: DiskFile | None = None
        self._size = 0
        self._position = 0
        self._notes: list[Deletion] = []
        self.version = 0
        """A counter that changes with every note; a sync of the file covers all notes up to a
        version.
        """

    @property
    def count(self) -> int:
        """The number of notes that are not known to be outdated."""
        return len(self._notes)

    @property
    def file(self) -> DiskFile:
        """The file, which exists once the store is open."""
        assert self._file is not None
        return self._file

    def load(self, progress_offset: int | None) -> None:
        """Read the notes of the last run, creating the file if it is missing.

        `progress_offset` is the offset of the last checkpoint's progress. None means that another
        program has used the store since; the notes do not apply to the queues that it left.
        """
        path = self._layout.deletions
        if not self._disk.exists(path):
            temporary = self._layout.temporary(path)
            self._file = self._disk.create(path, FILE_BYTES, temporary=temporary)
            self._size = FILE_BYTES
            return
        self._file = self._disk.open(path)
        self._size = self._file.size()
        notes = read_notes(self._disk, self._layout)
        self._position = sum(len(note.encode()) for note in notes)
        if progress_offset is not None:
            self._notes = [note for note in notes if note.log_end >= progress_offset]
        elif notes:
            self._rewrite([])

    def ends(self) -> Mapping[str, int]:
        """Return the offset of the log before which each deleted topic's records are ignored."""
        return ends_of(self._notes)

    def beyond(self, log_end: int) -> set[str]:
        """Return the topics whose deletion lies after the new end of a truncated log."""
        return {topic for topic, end in self._notes if end > log_end}

    def undo(self, log_end: int) -> None:
        """Drop the notes of deletions that lie after the new end of a truncated log."""
        if self._position:
            self._rewrite([note for note in self._notes if note.log_end <= log_end])

    def add(self, topic: str, log_end: int) -> None:
        """Write a note of a deletion to the file. It survives a kill of the process; the next sync
        of the log syncs the file first.
        """
        note = Deletion(topic, log_end)
        if not self._notes:
            self._position = 0
        data = note.encode()
        self._write(self._position, data)
        self._position += len(data)
        self._notes.append(note)

    def forget(self, count: int, progress_offset: int) -> None:
        """Drop the notes that a checkpoint has made outdated: of the `count` notes that existed
        when it was planned, those up to `progress_offset`.
        """
        if count:
            oldest = [note for note in self._notes[:count] if note.log_end > progress_offset]
            self._notes[:count] = oldest

    def clip(self, log_end: int) -> None:
        """Lower the notes to the new end of a truncated log: records stored after it are new."""
        if self._position:
            self._rewrite(
                [note._replace(log_end=min(note.log_end, log_end)) for note in self._notes]
            )

    def _rewrite(self, notes: list[Deletion]) -> None:
        data = b"".join(note.encode() for note in notes)
        self._write(0, data)
        self.file.sync()
        self._notes, self._position = notes, len(data)

    def _write(self, position: int, data: bytes) -> None:
        """Write notes followed by zeros, so that remains of earlier notes are not read."""
        self.version += 1
        end = position + len(data) + len(_END)
        if end > self._size:
            self._size = -(-end // FILE_BYTES) * FILE_BYTES
            self._disk.resize(self._layout.deletions, self._size)
        self.file.write(position, [data + _END])
