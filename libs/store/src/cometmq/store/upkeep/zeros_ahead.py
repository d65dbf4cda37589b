# SPDX-License-Identifier: Apache-2.0
"""Writes zeros after the end of the log before small batches are synced.

The files of the log are sparse. If a sync writes bytes to new blocks, it waits for the journal of
the file system; if they overwrite zeros, only for the bytes. With ext4, it takes 97 instead of 138
us after messages of 260 bytes, and 138 instead of 255 us after 16 KiB. Large batches gain nothing,
because all bytes are written twice. Readers notice no difference, because a sparse file reads as
zeros there.
"""

from typing import Final

from cometmq.store.errors import DiskError
from cometmq.store.log.commit_log import CommitLog

PAGE_BYTES: Final = 4096
AHEAD_BYTES: Final = 256 << 10
SMALL_BYTES: Final = 32 << 10
"""Maximum size of a batch for which zeros are written."""
_ZEROS: Final = bytes(AHEAD_BYTES + PAGE_BYTES)


class ZerosAhead:
    """Tracks the offset up to which blocks are allocated in the log's last file."""

    __slots__ = ("_end", "_log", "_seen")

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._end = 0
        self._seen = 0

    def write(self) -> None:
        """Write zeros if the batch since the last call is small and the next one may need blocks.

        Call this when nothing has been written after the end of the log.
        """
        log, files = self._log, self._log.files
        end, size = log.end, log.end - self._seen
        self._seen = end
        start = max(end, self._end)
        if size > SMALL_BYTES or start - end >= SMALL_BYTES or start >= files.end:
            return
        position = (start - files.first) % files.file_size
        rest = files.file_size - position
        count = min(AHEAD_BYTES + -(position + AHEAD_BYTES) % PAGE_BYTES, rest)
        self._end = start + count
        try:
            files.file_at(start).write(position, [memoryview(_ZEROS)[:count]])
        except DiskError:
            return  # the disk is full: messages may still fit, and are refused otherwise

    def note_truncated(self, offset: int) -> None:
        """Note that the file has no blocks after this offset any more."""
        self._end = self._seen = min(self._end, offset)
