# SPDX-License-Identifier: Apache-2.0
"""The history of this broker's log in memory and in its file, which a worker writes."""

from functools import partial

from cometmq.ha.epochs import EpochFile, History
from cometmq.runtime.worker import Worker


class EpochLog:
    """The history of the log. `save` makes a new one durable before it becomes the current one."""

    def __init__(self, file: EpochFile, history: History, *, worker: Worker) -> None:
        """`history` is the saved one, truncated to the log's end by recovery (R5)."""
        self._file = file
        self._worker = worker
        self.history = history

    async def save(self, history: History) -> None:
        """Replace the history; raise OSError and keep the old one if it cannot be saved."""
        if history == self.history:
            return
        await self._worker.submit(partial(self._file.save, history))
        self.history = history
