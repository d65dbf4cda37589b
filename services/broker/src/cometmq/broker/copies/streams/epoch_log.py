# SPDX-License-Identifier: Apache-2.0
"""The history of this broker's log: the epochs in which it was written, and where each begins.

Handshakes compare histories. The history is in memory, and in a file that a worker thread writes.
"""

from bisect import bisect_right
from functools import partial

from cometmq.broker.copies.streams.handshake import LogExtent
from cometmq.ha.durable import DISK_FULL
from cometmq.ha.epochs import EpochFile, History, HistoryUnsaved, pruned, start_of
from cometmq.runtime.worker import Worker
from cometmq.store.log.commit_log import CommitLog


class EpochLog:
    """The history of the log. `save` makes a new one durable before it becomes the current one."""

    def __init__(
        self, file: EpochFile, history: History, *, commit_log: CommitLog, worker: Worker
    ) -> None:
        """`history` is the saved one, truncated to the log's end by recovery (R5)."""
        self._file = file
        self._commit_log = commit_log
        self._worker = worker
        self.history = history

    def extent(self) -> LogExtent:
        """Return the bounds of the log, and the part of its history that a handshake needs."""
        log = self._commit_log
        history = pruned(self.history, log.min_offset)
        return LogExtent(log.min_offset, log.end, log.files.file_size, history)

    async def save(self, history: History) -> None:
        """Save a history and make it the current one, without entries whose bytes
        the log has deleted.

        If it cannot be saved, keep the old history and raise OSError; HistoryUnsaved if the disk is
        full.
        """
        history = pruned(history, self._commit_log.min_offset)
        if history == self.history:
            return
        try:
            await self._worker.submit(partial(self._file.save, history))
        except OSError as error:
            if error.errno in DISK_FULL:
                raise HistoryUnsaved(error.errno, f"{error.strerror}: epoch file") from error
            raise
        self.history = history


def epoch_at(history: History, offset: int) -> int:
    """Return the epoch in which the byte at an offset was written; 0 before the first entry."""
    count = bisect_right(history, offset, key=start_of)
    return history[count - 1].epoch if count else 0


def next_start(history: History, offset: int) -> int:
    """Return an upper bound for the end of the epoch that contains the byte at an offset."""
    count = bisect_right(history, offset, key=start_of)
    return history[count].start if count < len(history) else 1 << 63
