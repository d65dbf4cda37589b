# SPDX-License-Identifier: Apache-2.0
"""Dispatches the records of the log again, into the queues and the index that recovery has
truncated.

Memory must not grow with the log: the entries of queues leave it when they are many, and only the
newest index files keep their slots. They are written without a sync; the next checkpoint syncs
them, and until then, recovery does not trust them.
"""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Final, NamedTuple

from cometmq.remoting.message.record import Scan
from cometmq.store.errors import DiskError
from cometmq.store.log.log_scanner import LogScanner, Take
from cometmq.store.parts import Parts
from cometmq.store.queues.consume_queue import ConsumeQueue, last_entry
from cometmq.store.queues.queue_table import QueueTable
from cometmq.store.recovery.tail_check import TailCheck
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


GROWING_COUNT_MAX: Final = 3
"""Maximum number of index files whose slots are in memory, 20 MB each. Before an older one leaves
it, its 420 MB are synced, which the kernel has mostly done by then.
"""


class Replay:
    """Dispatches the records from the start offset of a recovery on."""

    def __init__(self, parts: Parts, deleted: Mapping[str, int], timestamp: int) -> None:
        """Skip the records of `deleted` topics before the given log offsets. The checkpoint covers
        the records up to the store time `timestamp`.
        """
        self._commit_log = parts.commit_log
        self._files = parts.commit_log.files
        self._queues = parts.queues
        self._index = parts.index
        self._disk = parts.disk
        self._log = parts.log
        self._check_crc = parts.settings.check_crc_on_recover
        self._deleted = deleted
        self._read_range = parts.read_range
        self.dispatcher = Dispatcher(
            table=parts.queues,
            is_indexing=parts.settings.message_index_enable,
            deleted=deleted,
            on_deletion=self.drop_topic,
            read_range=parts.read_range,
        )
        self.dispatcher.store_timestamp = timestamp
        self.check: TailCheck | None = None
        self.spills = Spills(self.dispatcher, self._queues)
        self._filling: Spills | None = None
        self._is_from_head = False
        self._last: Scan | None = None  # read, but not dispatched yet
        self._odd_end = 0  # of the last range that native code could not dispatch

    def drop_topic(self, topic: str, _log_end: int) -> None:
        """Drop the queues of a topic, and their files."""
        for path in self._queues.remove_topic(topic):
            self._disk.remove_tree(path)

    def run(self, start: int) -> int:
        """Dispatch every record from `start` on; return the end of the log.

        Each record is dispatched once the next one proves it complete. The last one is checked for
        torn properties first, because a record's CRC does not cover its properties.
        """
        self._is_from_head = start == self._files.first
        take = None if self._read_range is None else self._take
        scanner = LogScanner(self._files, start, check_crc=self._check_crc, take=take)
        for scan in scanner:
            self._dispatch_last()
            self._last = scan
        end, last = scanner.offset, self._last
        if last is not None and _is_torn(last):
            end = last.physical_offset
            self._log.warning("record.dropped", physical_offset=end, reason="torn properties")
        else:
            self._dispatch_last()
        if self.check is not None:
            self.check.finish()
        self._publish()
        return end

    def _take(self, data: bytes, position: int, base: int) -> int:
        """Dispatch plain records that are not torn; return their total size."""
        if base + position < self._odd_end:
            return 0
        found = self.dispatcher.read(data, position, base, check_crc=self._check_crc)
        if found is None:
            return 0
        self._dispatch_last()
        if self.check is not None and not self.check.is_plain(found.runs):
            self._odd_end = base + position + found.size
            return 0
        self.dispatcher.dispatch_range(found, is_from_head=self._is_from_head)
        self._publish_in_parts()
        return found.size

    def _dispatch_last(self) -> None:
        last, self._last = self._last, None
        if last is None:
            return
        if self.check is not None:
            self.check.dispatch(last)
        else:
            self.dispatcher.dispatch(last, is_from_head=self._is_from_head)
        self._publish_in_parts()

    def _publish_in_parts(self) -> None:
        if self.spills.is_due:
            self._publish()

    def _publish(self) -> None:
        """Publish the dispatched entries; if the disk is full, they and their keys stay queued."""
        self.spills.publish()
        keyed, self.dispatcher.keyed = self.dispatcher.keyed, []
        try:
            self._index.remember(keyed)
            self._index.catch_up()
            self._index.flush_full(GROWING_COUNT_MAX)
            self.spills.spill()
        except DiskError as error:
            if not error.is_space_missing:
                raise
            self._log.error("queues.write_failed", error=str(error))

    def fill_gaps(self) -> None:
        """Scan from the head of the log to rebuild queues that lack entries in the middle."""
        gaps = self.dispatcher.gaps
        if not gaps:
            return
        names = sorted(f"{queue.topic}/{queue.queue_id}" for queue in gaps)
        self._log.warning("queues.rebuilt", count=len(names), first=names[0])
        # The other queues are complete; dispatching to them again would only cost time.
        behind = {queue: _known_end(queue) for queue in gaps}
        gaps.clear()

        def delete(topic: str, log_end: int) -> None:
            for queue, known_end in behind.items():
                if queue.topic == topic and known_end <= log_end:
                    queue.begin_again()

        dispatcher = Dispatcher(
            table=self._queues,
            is_indexing=False,
            behind=behind,
            deleted=self._deleted,
            on_deletion=delete,
            read_range=self._read_range,
        )
        filling = Spills(dispatcher, self._queues)
        scanner = LogScanner(
            self._files, self._files.first, check_crc=False, end=self._commit_log.end,
            take=filling.taker,
        )  # fmt: skip
        for scan in scanner:
            dispatcher.dispatch(scan, is_from_head=True)
            filling.advance()
        filling.publish()
        self._filling = filling

    def unsynced(self) -> Iterator[Unsynced]:
        """Yield the entries that were written but not synced."""
        for spills in (self.spills, self._filling):
            if spills is not None:
                yield spills.unsynced()


def _known_end(queue: ConsumeQueue) -> int:
    entry = last_entry(queue)
    return 0 if entry is None else entry.physical_offset + entry.size


def _is_torn(scan: Scan) -> bool:
    """Return whether the last record's properties end in bytes that were never written."""
    return scan.properties.endswith(b"\0")
