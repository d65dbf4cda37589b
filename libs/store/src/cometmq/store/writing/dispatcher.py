# SPDX-License-Identifier: Apache-2.0
"""Dispatch: write the queue entries and index keys of records that are in the log already.

Puts bypass this module, because `append.py` creates the entries together with the record. Recovery
and replication use it. They may dispatch a record twice, so dispatch is idempotent: it skips
entries that a queue already has.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from cometmq.remoting.message.flags import tag_code
from cometmq.remoting.message.properties import index_keys, parse_properties, timed_ms
from cometmq.remoting.message.record import Scan
from cometmq.store.index.index_format import KeyedRecord, KeyedRows, Keys
from cometmq.store.log.log_scanner import Take
from cometmq.store.queues.consume_queue import ConsumeQueue, entry_at
from cometmq.store.queues.floors import TrimmedQueue
from cometmq.store.queues.queue_files import ENTRY
from cometmq.store.queues.queue_table import QueueTable
from cometmq.store.settings import CQ_ENTRY_BYTES
from cometmq.store.writing.append import ROLLBACK, UNQUEUED
from cometmq.store.writing.marks import is_deletion, trimmed_by
from cometmq.store.writing.runs import ReadRange, RecordRange


def tag_and_keys(properties: bytes) -> tuple[int, tuple[str, ...]]:
    """Return the tag code and index keys of a property string; the last duplicate counts."""
    tags = keys = unique_key = b""
    for pair in properties.split(b"\x02"):
        if pair[:5] == b"TAGS\x01":
            tags = pair[5:] or tags
        elif pair[:9] == b"UNIQ_KEY\x01":
            unique_key = pair[9:] or unique_key
        elif pair[:5] == b"KEYS\x01":
            keys = pair[5:] or keys
    code = tag_code(str(tags, "utf-8", "replace")) if tags else 0
    if not keys:
        return code, (str(unique_key, "utf-8", "replace"),) if unique_key else ()
    return code, index_keys(str(unique_key, "utf-8", "replace"), str(keys, "utf-8", "replace"))


def queue_code(queue: ConsumeQueue, scan: Scan, tag: int) -> int:
    """Return the argument that `ConsumeQueue.entry_code` needs for a record: its tag code or, for a
    timed message in a delay level, its delivery time.
    """
    if queue.delay_ms is None:
        return tag
    return timed_ms(parse_properties(str(scan.properties, "utf-8", "replace"))) or 0


@dataclass(slots=True, kw_only=True)
class Dispatcher:
    """Adds scanned records to the queues and collects their keys for the index."""

    table: QueueTable
    is_indexing: bool
    on_deletion: Callable[[str, int], None]
    """Called with the topic and the end of each deletion mark; it drops the queues."""
    deleted: Mapping[str, int] = field(default_factory=dict)
    """Topics with the log offsets before which their records get no queue entries."""
    only: Collection[str] | None = None
    """If set, only these topics get records."""
    read_range: ReadRange | None = None
    """Reads plain records many at a time."""
    keyed: list[Keys] = field(default_factory=list)
    record_count: int = 0
    """The number of records that were dispatched."""
    store_timestamp: int = 0
    """The store time of the record that was dispatched last."""
    touched: dict[ConsumeQueue, None] = field(default_factory=dict)  # in the order of the log
    gaps: set[ConsumeQueue] = field(default_factory=set)

    def dispatch(self, scan: Scan, *, is_from_head: bool = False) -> None:
        """Dispatch one record; `is_from_head` means that the scan began at the head of the log.

        A queue that lacks entries before this record is added to `gaps` and gets no more entries
        until it is rebuilt from an earlier offset. In a scan from the head of the log, missing
        records are lost, so fillers take the place of their entries.
        """
        self.record_count += 1
        self.store_timestamp = scan.store_timestamp
        if is_deletion(scan):
            self._delete(scan)
            return
        trimmed = trimmed_by(scan)
        if trimmed is not None:
            self._trim(trimmed)
            return
        code, keys = tag_and_keys(scan.properties)
        if not scan.sys_flag & UNQUEUED:
            self._enqueue(scan, code, is_from_head=is_from_head)
        if keys and self.is_indexing and scan.sys_flag & ROLLBACK != ROLLBACK:
            rows = self._rows()
            for key in keys:
                rows.append((scan.topic, key, scan.physical_offset, scan.store_timestamp))

    def _delete(self, mark: Scan) -> None:
        topic = mark.topic
        self.touched = {queue: None for queue in self.touched if queue.topic != topic}
        self.gaps = {queue for queue in self.gaps if queue.topic != topic}
        self.on_deletion(topic, mark.physical_offset + mark.size)

    def _trim(self, trimmed: TrimmedQueue) -> None:
        queue = self.table.get(trimmed.topic, trimmed.queue_id)
        if queue is not None and queue in self.touched:
            queue.publish()  # the mark follows all messages that it deletes
        self.table.trim(*trimmed)

    def _rows(self) -> list[KeyedRecord]:
        keyed = self.keyed
        last = keyed[-1] if keyed else None
        if not isinstance(last, KeyedRows):
            last = KeyedRows()
            keyed.append(last)
        return last.rows

    def read(self, data: bytes, position: int, base: int, *, check_crc: bool) -> RecordRange | None:
        """Read many plain records at once; return None if there are none, or if Python must read
        them.

        The first byte of `data` lies at offset `base` of the log.
        """
        if self.read_range is None:
            return None
        found = self.read_range(
            data,
            position,
            base,
            check_crc=check_crc,
            is_indexing=self.is_indexing,
            delayed=self.table.delayed,
        )
        return RecordRange._make(found) if found is not None and found[1] else None

    def dispatch_range(self, found: RecordRange, *, is_from_head: bool = False) -> None:
        """Dispatch the records that `read` found, as `dispatch` does for a single record."""
        self.record_count += found.record_count
        self.store_timestamp = found.store_timestamp
        for topic, queue_id, first_offset, count, entries in found.runs:
            known_count = count_before(entries, self.deleted.get(topic, 0))
            if known_count == count or (self.only is not None and topic not in self.only):
                continue
            queue = self.table.queues.get((topic, queue_id))
            if queue is None:
                queue = self.table.create(topic, queue_id)
            rest = entries[known_count * CQ_ENTRY_BYTES :]
            self._enqueue_run(queue, first_offset + known_count, rest, is_from_head=is_from_head)
        if found.keys.count:
            self.keyed.append(found.keys)

    @property
    def taker(self) -> Take | None:
        """A `Take` that dispatches plain records from the log's head on, without CRC checks; None
        without `read_range`.
        """
        return None if self.read_range is None else self._take

    def _take(self, data: bytes, position: int, base: int) -> int:
        found = self.read(data, position, base, check_crc=False)
        if found is None:
            return 0
        self.dispatch_range(found, is_from_head=True)
        return found.size

    def _enqueue(self, scan: Scan, code: int, *, is_from_head: bool) -> None:
        if scan.physical_offset < self.deleted.get(scan.topic, 0):
            return
        if self.only is not None and scan.topic not in self.only:
            return
        queue = self.table.queues.get((scan.topic, scan.queue_id))
        if queue is None:
            queue = self.table.create(scan.topic, scan.queue_id)
        if not scan.queue_offset and queue.next_offset:
            self._begin_again(queue, scan.physical_offset)
        missing = scan.queue_offset - queue.next_offset
        if missing:
            if missing < 0:
                return
            if not is_from_head:
                self.gaps.add(queue)
                return
            _close_gap(queue, scan.queue_offset)
        code = queue_code(queue, scan, code)
        if queue.stage(scan.physical_offset, scan.size, code, scan.store_timestamp):
            self.touched[queue] = None

    def _enqueue_run(
        self, queue: ConsumeQueue, first_offset: int, entries: bytes, *, is_from_head: bool
    ) -> None:
        """Enqueue a run of records, as `_enqueue` does for a single record."""
        if not first_offset and queue.next_offset:
            self._begin_again(queue, ENTRY.unpack_from(entries)[0])
        missing = first_offset - queue.next_offset
        if missing < 0:
            entries = entries[-missing * CQ_ENTRY_BYTES :]
        elif missing and not is_from_head:
            self.gaps.add(queue)
            return
        elif missing:
            _close_gap(queue, first_offset)
        if entries and queue.stage_run(entries, len(entries) // CQ_ENTRY_BYTES):
            self.touched[queue] = None

    def _begin_again(self, queue: ConsumeQueue, physical_offset: int) -> None:
        """Empty a queue whose first record is older: its topic was deleted and created again.

        Offsets of the new topic restart at 0; the messages of the deleted topic must not reappear.
        """
        queue.publish()
        first = entry_at(queue, 0)
        if first is None or first.physical_offset < physical_offset:
            queue.begin_again()

    def publish(self) -> None:
        """Make the dispatched entries visible in the queues."""
        for queue in self.touched:
            queue.publish()
        self.touched.clear()


def count_before(entries: bytes, physical_offset: int) -> int:
    """Count the leading entries of a run whose records begin before an offset of the log."""
    if not physical_offset:
        return 0
    return bisect_left([entry[0] for entry in ENTRY.iter_unpack(entries)], physical_offset)


def _close_gap(queue: ConsumeQueue, queue_offset: int) -> None:
    queue.publish()
    if queue.min_offset == queue.max_offset:
        queue.skip_to(queue_offset)
    else:
        queue.fill_to(queue_offset)
