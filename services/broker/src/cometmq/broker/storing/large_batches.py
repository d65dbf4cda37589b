# SPDX-License-Identifier: Apache-2.0
"""Batches of many messages, which are decoded and stored in steps, one batch at a time.

The sizes of those that wait are bounded in total, because a client may close its connection and
send the next one on another.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from cometmq.broker.limits import BATCH_BYTES, Room
from cometmq.runtime.incremental import IncrementalRunner


class LargeBatches:
    """The large batches of one broker."""

    def __init__(self) -> None:
        self.runner = IncrementalRunner()
        self.size_bytes = 0
        """The size of the batches that wait or are being read."""

    @contextmanager
    def reading(self, size_bytes: int, room: Room) -> Iterator[None]:
        """Count a batch while it is read; raise LimitReached if there is no room for it."""
        bound = room.limits.maximum(BATCH_BYTES)
        if self.size_bytes + size_bytes > bound:
            detail = f"{self.size_bytes} of at most {bound} are waiting; try again later"
            raise room.limits.refusal(BATCH_BYTES, detail, room.peer)
        self.size_bytes += size_bytes
        try:
            yield
        finally:
            self.size_bytes -= size_bytes
