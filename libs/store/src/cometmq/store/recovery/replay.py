# SPDX-License-Identifier: Apache-2.0
"""Dispatches the records of the log again, into the queues and the index that recovery has
truncated.

Memory must not grow with the log: the entries of queues leave it when they are many, and only the
newest index files keep their slots. They are written without a sync; the next checkpoint syncs
them, and until then, recovery does not trust them.
"""

from collections.abc import Mapping
from typing import Final

from cometmq.remoting.message.record import Scan
from cometmq.store.disk import Disk
from cometmq.store.errors import DiskError
from cometmq.store.log.log_scanner import LogScanner, Take
from cometmq.store.parts import Parts
from cometmq.store.queues.unsaved_queues import UnsavedQueues, Written
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


class Spills:
    """Publishes the entries of a dispatcher in parts, and writes them if they are many."""

    def __init__(self, dispatcher: Dispatcher, unsaved: UnsavedQueues, disk: Disk) -> None:
        self._dispatcher = dispatcher
        self._unsaved = unsaved
        self._disk = disk
        self._published_count = self._spilled_count = 0  # records

    @property
    def is_due(self) -> bool:
        """Whether enough records were dispatched since the last `publish`."""
        return self._dispatcher.record_count - self._published_count >= PUBLISH_COUNT

    def publish(self) -> None:
        """Make the dispatched entries visible."""
        self._published_count = self._dispatcher.record_count
        self._unsaved.note(self._dispatcher.touched)
        self._dispatcher.publish()

    def spill(self) -> None:
        """Write the published entries if they are many; blocks."""
        count = self._dispatcher.record_count
        bytes_max = SPILL_BYTES + SPILL_QUEUE_BYTES * len(self._unsaved.queues)
        if (count - self._spilled_count) * CQ_ENTRY_BYTES >= bytes_max:
            self._spilled_count = count
            writes, written = self._unsaved.writes(), Written({}, set())
            written.write(self._disk, writes)
            self._unsaved.note_spilled(writes, written.folders)

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


GROWING_COUNT_MAX: Final = 3
"""Maximum number of index files whose slots are in memory, 20 MB each. Before an older one leaves
it, its 420 MB are synced, which the kernel has mostly done by then.
"""


class Replay:
    """Dispatches the records from the start offset of a recovery on."""

    def __init__(
        self, parts: Parts, unsaved: UnsavedQueues, deleted: Mapping[str, int], timestamp: int
    ) -> None:
        """Skip the records of `deleted` topics before the given log offsets. The checkpoint covers
        the records up to the store time `timestamp`.
        """
        self._unsaved = unsaved
        self._files = parts.commit_log.files
        self._queues = parts.queues
        self._index = parts.index
        self._disk = parts.disk
        self._log = parts.log
        self._check_crc = parts.settings.check_crc_on_recover
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
        self.spills = Spills(self.dispatcher, unsaved, parts.disk)
        self._is_from_head = False
        self._last: Scan | None = None  # read, but not dispatched yet
        self._odd_end = 0  # of the last range that native code could not dispatch

    def drop_topic(self, topic: str, _log_end: int) -> None:
        """Drop the queues of a topic, and their files."""
        for queue in self._queues.of_topic(topic):
            self._unsaved.forget(queue)
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


def _is_torn(scan: Scan) -> bool:
    """Return whether the last record's properties end in bytes that were never written."""
    return scan.properties.endswith(b"\0")
