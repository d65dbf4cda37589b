# SPDX-License-Identifier: Apache-2.0
"""The history of this broker's log in memory and in its file, which a worker writes."""

from functools import partial

from cometmq.ha.durable import DISK_FULL
from cometmq.ha.epochs import EpochFile, History, HistoryUnsaved
from cometmq.runtime.worker import Worker


class EpochLog:
    """The history of the log. `save` makes a new one durable before it becomes the current one."""

    def __init__(self, file: EpochFile, history: History, *, worker: Worker) -> None:
        """`history` is the saved one, truncated to the log's end by recovery (R5)."""
        self._file = file
        self._worker = worker
        self.history = history

    async def save(self, history: History) -> None:
        """Replace the history; raise OSError and keep the old one if it cannot be saved.

        Raise HistoryUnsaved if the disk is full.
        """
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
    return max((entry.epoch for entry in history if entry.start <= offset), default=0)


def next_start(history: History, offset: int) -> int:
    """Return an upper bound for the end of the epoch that contains the byte at an offset."""
    return min((entry.start for entry in history if entry.start > offset), default=1 << 63)
