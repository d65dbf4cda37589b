# SPDX-License-Identifier: Apache-2.0
"""Publishes the entries of queues that are rebuilt, and writes them to the files when they are
many: memory must not grow with the log.

They are written without a sync. The next checkpoint syncs them; until then, recovery does not trust
them.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Final, NamedTuple

from cometmq.store.log.log_scanner import Take
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.queue_table import QueueTable
from cometmq.store.settings import CQ_ENTRY_BYTES
from cometmq.store.writing.dispatcher import Dispatcher

PUBLISH_COUNT: Final = 20_000
"""Number of records after which the dispatched entries are published."""

SPILL_BYTES: Final = 16 << 20
SPILL_QUEUE_BYTES: Final = 1 << 10
"""Entries are written above SPILL_BYTES, and this much more for each queue that has some: writing a
queue takes as long as building this many bytes.
"""


class Unsynced(NamedTuple):
    """Entries that were written but not synced."""

    queues: Mapping[ConsumeQueue, int] = MappingProxyType({})
    """The first such entry of each queue."""
    folders: AbstractSet[str] = frozenset()
    """The folders of these queues that have new files."""


class Spills:
    """The entries of one dispatcher, and what was written."""

    def __init__(self, dispatcher: Dispatcher, table: QueueTable) -> None:
        self._dispatcher = dispatcher
        self._table = table
        self._published_count = self._spilled_count = 0  # records
        self._unwritten: dict[ConsumeQueue, None] = {}
        self._written: dict[ConsumeQueue, int] = {}
        self._new: set[ConsumeQueue] = set()

    @property
    def is_due(self) -> bool:
        """Whether enough records were dispatched since the last `publish`."""
        return self._dispatcher.record_count - self._published_count >= PUBLISH_COUNT

    def publish(self) -> None:
        """Make the dispatched entries visible."""
        self._published_count = self._dispatcher.record_count
        self._unwritten.update(self._dispatcher.touched)
        self._dispatcher.publish()

    def spill(self) -> None:
        """Write the published entries if they are many; blocks."""
        count = self._dispatcher.record_count
        bytes_max = SPILL_BYTES + SPILL_QUEUE_BYTES * len(self._unwritten)
        if (count - self._spilled_count) * CQ_ENTRY_BYTES < bytes_max:
            return
        self._spilled_count = count
        for queue in self.unwritten():
            first, file_count = queue.written_offset, len(queue.files.files)
            queue.write_tail()
            self._written[queue] = min(first, self._written.get(queue, first))
            if len(queue.files.files) != file_count:
                self._new.add(queue)
        self._unwritten.clear()

    def advance(self) -> None:
        """Publish and write what is due; blocks."""
        if self.is_due:
            self.publish()
            self.spill()

    @property
    def taker(self) -> Take | None:
        """The dispatcher's `taker`, with `advance` before each range."""
        take = self._dispatcher.taker
        if take is None:
            return None

        def paced(data: bytes, position: int, base: int) -> int:
            self.advance()
            return take(data, position, base)

        return paced

    def _exists(self, queue: ConsumeQueue) -> bool:
        """Return whether the queue's topic has not been deleted."""
        return self._table.get(queue.topic, queue.queue_id) is queue

    def unwritten(self) -> list[ConsumeQueue]:
        """Return the queues that have entries only in memory."""
        return [queue for queue in self._unwritten if self._exists(queue)]

    def unsynced(self) -> Unsynced:
        """Return what the next checkpoint must sync."""
        queues = {queue: first for queue, first in self._written.items() if self._exists(queue)}
        return Unsynced(queues, {it.files.folder for it in self._new if it in queues})
