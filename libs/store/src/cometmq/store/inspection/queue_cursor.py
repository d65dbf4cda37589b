# SPDX-License-Identifier: Apache-2.0
"""Reads the entries of one queue in ascending order, for a check of all records."""

from typing import Final

from cometmq.store.queues.consume_queue import ConsumeQueue, entries_from
from cometmq.store.queues.queue_files import ENTRY, FILLER_SIZE
from cometmq.store.settings import CQ_ENTRY_BYTES

READ_COUNT: Final = 1024
"""Entries that are read at once."""


class QueueCursor:
    """Reads the entries of one queue in large pieces, in ascending order."""

    def __init__(self, queue: ConsumeQueue) -> None:
        self.queue = queue
        self.seen_count = 0
        self.is_gone = False  # deleted or shortened by a running broker
        self.begin = _first_place(queue)
        self._first = 0
        self._entries: list[tuple[int, int, int]] = []

    def entry(self, queue_offset: int) -> tuple[int, int, int] | None:
        """Return the entry at an offset; None if the queue has none there."""
        index = queue_offset - self._first
        if not 0 <= index < len(self._entries):
            self._first = queue_offset
            self._entries = entries_from(self.queue, queue_offset, READ_COUNT)
            index = 0
        return self._entries[index] if self._entries else None


def _first_place(queue: ConsumeQueue) -> int:
    """Return the physical offset of a queue's entry 0; 0 if the queue has lost that entry.

    Records before that offset belong to a deleted topic of the same name.
    """
    data = b"" if queue.files.first else queue.files.read(0, CQ_ENTRY_BYTES)
    if len(data) < CQ_ENTRY_BYTES:
        return 0
    place, size, _ = ENTRY.unpack(data)
    return 0 if size in {0, FILLER_SIZE} else int(place)
