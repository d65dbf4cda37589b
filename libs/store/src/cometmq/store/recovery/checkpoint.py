# SPDX-License-Identifier: Apache-2.0
"""The files that record how much of the store is on disk: RocketMQ's `checkpoint`, our `progress`.

Layout: `checkpoint` holds three int64 timestamps (log, queues, index) in 4096 bytes. `progress`
holds magic, offset, verify offset, number of queue entries, index entry count, the checkpoint's
timestamps, the name of the index file and a CRC-32 of all these fields.

Invariant: every record before `Progress.offset` is on the disk, with its queue entry and its index
entries. If another program has used the store since, it has advanced the timestamps in
`checkpoint`. A progress file with older timestamps is therefore ignored.
"""

import struct
from typing import Final, NamedTuple
from zlib import crc32

from cometmq.store.disk import Disk, DiskFile, read_whole
from cometmq.store.layout import Layout

CHECKPOINT_BYTES: Final = 4096
SAFETY_MS: Final = 3_000

_TIMESTAMPS: Final = struct.Struct(">qqq")
_PROGRESS: Final = struct.Struct(">8sqqqqqqq17s")
_CRC: Final = struct.Struct(">I")
_MAGIC: Final = b"CometMQ1"
_PROGRESS_BYTES: Final = _PROGRESS.size + _CRC.size


class Checkpoint(NamedTuple):
    """For each part of the store, the store time up to which it is on the disk."""

    log_timestamp: int = 0
    queue_timestamp: int = 0
    index_timestamp: int = 0

    @property
    def min_timestamp(self) -> int:
        """The time before which records are complete, computed as RocketMQ does."""
        return max(0, min(self.log_timestamp, self.queue_timestamp) - SAFETY_MS)

    def encode(self) -> bytes:
        """Return the content of the file."""
        return _TIMESTAMPS.pack(*self).ljust(CHECKPOINT_BYTES, b"\0")

    @classmethod
    def decode(cls, data: bytes) -> "Checkpoint":
        """Parse the file; a truncated file yields timestamps of 0."""
        if len(data) < _TIMESTAMPS.size:
            return cls()
        return cls(*_TIMESTAMPS.unpack_from(data))


class Progress(NamedTuple):
    """The offset up to which log, queues and index are on the disk.

    `verify_offset` is an earlier record boundary, from which on recovery checks all headers.
    `entry_count` is the sum of all queues' maximum offsets; another sum reveals deleted queues.
    """

    offset: int
    verify_offset: int
    entry_count: int
    index_count: int
    checkpoint: Checkpoint
    index_name: str

    def encode(self) -> bytes:
        """Return the content of the file."""
        data = _PROGRESS.pack(
            _MAGIC,
            self.offset,
            self.verify_offset,
            self.entry_count,
            self.index_count,
            *self.checkpoint,
            self.index_name.encode(),
        )
        return data + _CRC.pack(crc32(data))

    def is_newest(self, checkpoint: Checkpoint) -> bool:
        """Return whether no other program has written the checkpoint since."""
        own = self.checkpoint
        return (
            checkpoint.log_timestamp <= own.log_timestamp
            and checkpoint.queue_timestamp <= own.queue_timestamp
        )

    @classmethod
    def decode(cls, data: bytes) -> "Progress | None":
        """Parse the file; return None if it is truncated or damaged."""
        if len(data) < _PROGRESS_BYTES:
            return None
        if crc32(data[: _PROGRESS.size]) != _CRC.unpack_from(data, _PROGRESS.size)[0]:
            return None
        magic, offset, verify, entries, index_count, *timestamps, name = _PROGRESS.unpack_from(data)
        if magic != _MAGIC:
            return None
        text = name.rstrip(b"\0").decode("ascii", "replace")
        return cls(offset, verify, entries, index_count, Checkpoint(*timestamps), text)


def read_checkpoint(disk: Disk, layout: Layout) -> tuple[Checkpoint, Progress | None]:
    """Return the content of both files; of this program's last progress, even if another one has
    used the store since (`Progress.is_newest`).
    """
    checkpoint, progress = read_whole(disk, layout.checkpoint), read_whole(disk, layout.progress)
    return Checkpoint.decode(checkpoint or b""), Progress.decode(progress or b"")


class CheckpointFiles:
    """Writes a store's checkpoint file and progress file, and creates them."""

    __slots__ = ("_checkpoint", "_progress")

    def __init__(self, disk: Disk, layout: Layout) -> None:
        temporary = layout.temporary(layout.checkpoint)
        self._checkpoint = _open(disk, layout.checkpoint, CHECKPOINT_BYTES, temporary)
        self._progress = _open(disk, layout.progress, _PROGRESS_BYTES, temporary)

    def save(self, progress: Progress) -> None:
        """Write and sync both files; runs on a worker thread.

        The progress file is written first, so a crash in between leaves the older checkpoint.
        """
        self._progress.write(0, [progress.encode()])
        self._progress.sync()
        self._checkpoint.write(0, [progress.checkpoint.encode()])
        self._checkpoint.sync()

    def close(self) -> None:
        """Close the files."""
        self._checkpoint.close()
        self._progress.close()


def _open(disk: Disk, path: str, size: int, temporary: str) -> DiskFile:
    if disk.exists(path):
        return disk.open(path)
    return disk.create(path, size, temporary=temporary)
