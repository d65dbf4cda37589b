# SPDX-License-Identifier: Apache-2.0
"""What is known to be on the disk: RocketMQ's checkpoint, and our more exact progress file.

Layout: `checkpoint` holds three int64 timestamps (log, queues, index) in 4096 bytes. `progress`
holds magic, offset, verify offset, number of queue entries, index entry count, the checkpoint's
timestamps, the name of the index file and a CRC-32 of all that.

Invariants: everything of records before `Progress.offset` is on the disk: their bytes, their
queue entries and their index entries. Another program that ran on the store has moved the
checkpoint's timestamps on, so a progress file that has older ones is not believed.
"""

import struct
from typing import Final, NamedTuple
from zlib import crc32

from cometmq.store.disk import Disk, DiskFile

CHECKPOINT_BYTES: Final = 4096
SAFETY_MS: Final = 3_000

_TIMESTAMPS: Final = struct.Struct(">qqq")
_PROGRESS: Final = struct.Struct(">8sqqqqqqq17s")
_CRC: Final = struct.Struct(">I")
_MAGIC: Final = b"CometMQ1"
_PROGRESS_BYTES: Final = _PROGRESS.size + _CRC.size


class Checkpoint(NamedTuple):
    """Store times up to which each part is on the disk."""

    log_timestamp: int = 0
    queue_timestamp: int = 0
    index_timestamp: int = 0

    @property
    def min_timestamp(self) -> int:
        """Records stored before this time are complete, as RocketMQ reckons."""
        return max(0, min(self.log_timestamp, self.queue_timestamp) - SAFETY_MS)

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        return _TIMESTAMPS.pack(*self).ljust(CHECKPOINT_BYTES, b"\0")

    @classmethod
    def decode(cls, data: bytes) -> "Checkpoint":
        """Read the file; a short one knows nothing."""
        if len(data) < _TIMESTAMPS.size:
            return cls()
        return cls(*_TIMESTAMPS.unpack_from(data))


class Progress(NamedTuple):
    """Up to where everything is on the disk.

    `verify_offset` is an earlier record border, near enough to look at all headers in between;
    `entry_count` is the sum of all queues' maximum offsets: a queue that somebody deleted shows.
    """

    offset: int
    verify_offset: int
    entry_count: int
    index_count: int
    checkpoint: Checkpoint
    index_name: str

    def encode(self) -> bytes:
        """Return the bytes of the file."""
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
        """Whether no other program has written this checkpoint since."""
        own = self.checkpoint
        return (
            checkpoint.log_timestamp <= own.log_timestamp
            and checkpoint.queue_timestamp <= own.queue_timestamp
        )

    @classmethod
    def decode(cls, data: bytes) -> "Progress | None":
        """Read the file; None unless it is whole."""
        if len(data) < _PROGRESS_BYTES:
            return None
        if crc32(data[: _PROGRESS.size]) != _CRC.unpack_from(data, _PROGRESS.size)[0]:
            return None
        magic, offset, verify, entries, index_count, *timestamps, name = _PROGRESS.unpack_from(data)
        if magic != _MAGIC:
            return None
        text = name.rstrip(b"\0").decode("ascii", "replace")
        return cls(offset, verify, entries, index_count, Checkpoint(*timestamps), text)


class CheckpointFiles:
    """The two files."""

    __slots__ = ("_checkpoint", "_progress")

    def __init__(self, disk: Disk, *, checkpoint: str, progress: str, temporary: str) -> None:
        """Make the files that do not exist yet."""
        self._checkpoint = _open(disk, checkpoint, CHECKPOINT_BYTES, temporary)
        self._progress = _open(disk, progress, _PROGRESS_BYTES, temporary)

    def load(self) -> tuple[Checkpoint, Progress | None]:
        """Return what they say; no progress if it does not belong to the checkpoint."""
        checkpoint = Checkpoint.decode(self._checkpoint.read(0, CHECKPOINT_BYTES))
        progress = Progress.decode(self._progress.read(0, _PROGRESS_BYTES))
        if progress is not None and not progress.is_newest(checkpoint):
            progress = None
        return checkpoint, progress

    def save(self, progress: Progress) -> None:
        """Write both and wait for the disk; a worker thread runs this.

        The progress goes first: a crash in between leaves a checkpoint that is older.
        """
        self._progress.write(0, [progress.encode()])
        self._progress.sync()
        self._checkpoint.write(0, [progress.checkpoint.encode()])
        self._checkpoint.sync()

    def close(self) -> None:
        """Let go of the files."""
        self._checkpoint.close()
        self._progress.close()


def _open(disk: Disk, path: str, size: int, temporary: str) -> DiskFile:
    if disk.exists(path):
        return disk.open(path)
    return disk.create(path, size, temporary=temporary)
