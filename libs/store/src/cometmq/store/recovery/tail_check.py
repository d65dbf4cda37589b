# SPDX-License-Identifier: Apache-2.0
"""Check the records after the last checkpoint, which have no checksums yet, one by one.

The scanner has compared their sizes, physical offsets and body CRCs. The rest of a record can be
wrong nevertheless: its properties are checked for their syntax, and its queue offset must be the
next one of its queue. A damaged record keeps its queue offset, but readers do not get it.

This module is used only by a recovery that starts at the progress, or that of a store without any
checkpoint. The queues are then complete up to the first record, so every deviation has one of the
reasons that `TailCheck.dispatch` lists.
"""

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

import msgspec

from cometmq.remoting.message.record import Scan
from cometmq.store.log.damage import DamagedRange
from cometmq.store.queues.consume_queue import last_entry
from cometmq.store.queues.queue_table import QueueTable
from cometmq.store.writing.append import UNQUEUED
from cometmq.store.writing.dispatcher import Dispatcher, count_before
from cometmq.store.writing.marks import QUEUE_ID, is_deletion, trimmed_by
from cometmq.store.writing.runs import QueueRun

_REPLACED: Final = "\ufffd"

_Name: TypeAlias = tuple[str, int]
"""Topic and queue id."""


def is_sound(properties: bytes) -> bool:
    """Return whether a property text is valid UTF-8, and each pair in it has a name.

    Brokers store no other texts, whatever clients send; values may contain NUL.
    """
    for pair in properties.split(b"\x02"):
        if pair and pair.find(b"\x01") <= 0:
            return False
    try:
        str(properties, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


class TailCheck:
    """Dispatches records, and collects those that are damaged."""

    def __init__(
        self,
        table: QueueTable,
        dispatcher: Dispatcher,
        start: int,
        *,
        begins_at_zero: bool,
        deleted: Mapping[str, int],
    ) -> None:
        """Begin to check at offset `start` of the log.

        `begins_at_zero` means that the log still has the first message of every queue. The records
        of `deleted` topics before the given offsets are in no queue.
        """
        self._table = table
        self._start = start
        self._dispatcher = dispatcher
        self._begins_at_zero = begins_at_zero
        self._deleted = deleted
        self._held: dict[_Name, Scan] = {}  # records whose queue offset is not the next one
        self._misplaced_count = 0
        self._places: dict[int, int] = {}

    @property
    def damaged(self) -> tuple[DamagedRange, ...]:
        """The damaged records, in log order."""
        found = sorted(self._places.items())
        return tuple(DamagedRange(offset, offset + size) for offset, size in found)

    def is_plain(self, runs: Iterable[QueueRun]) -> bool:
        """Return whether the queue offsets of all records of a range are the next ones."""
        expected: dict[_Name, int] = {}
        for topic, queue_id, first, count, entries in runs:
            name = (topic, queue_id)
            deleted_count = count_before(entries, self._deleted.get(topic, 0))
            if deleted_count == count:
                continue
            if name in self._held or first + deleted_count != expected.get(name, self._next(name)):
                return False
            expected[name] = first + count
        return True

    def _next(self, name: _Name) -> int:
        queue = self._table.get(*name)
        return 0 if queue is None else queue.next_offset

    def dispatch(self, scan: Scan) -> None:
        """Dispatch one record. If its queue offset is not the next one of its queue, hold it until
        the next record of its queue shows what is wrong:

         queue offset of the next record | conclusion about the held record |
        ---|---|
         the missing offset plus one | its queue offset is damaged |
         the missing offset | its topic, queue id or queue offset is damaged |
         another | it is right: the queue began again, or records are missing |
        """
        if is_deletion(scan):
            self._held = {name: held for name, held in self._held.items() if name[0] != scan.topic}
            self._dispatcher.dispatch(scan)
            return
        if trimmed_by(scan) is not None:
            self._dispatcher.dispatch(scan)
            return
        if not is_sound(scan.properties) or scan.queue_id == QUEUE_ID:
            self._note(scan)
        if _REPLACED in scan.topic:
            self._misplace(scan)
            return
        is_deleted = scan.physical_offset < self._deleted.get(scan.topic, 0)
        if is_deleted or scan.sys_flag & UNQUEUED:
            self._dispatcher.dispatch(scan)
            return
        name = (scan.topic, scan.queue_id)
        held = self._held.pop(name, None)
        if held is not None:
            expected = self._next(name)
            if scan.queue_offset == expected + 1:
                self._correct(held, expected)
            elif scan.queue_offset == expected:
                self._misplace(held)
            else:
                self._accept(held)
        if scan.queue_offset != self._next(name):
            self._held[name] = scan
            return
        self._dispatcher.dispatch(scan)

    def finish(self) -> None:
        """Decide about the held records that no other record of their queue follows."""

        def gap(scan: Scan) -> int:
            missing = scan.queue_offset - self._next((scan.topic, scan.queue_id))
            return missing if missing > 0 else 1 << 63

        for scan in sorted(self._held.values(), key=gap, reverse=True):
            name = (scan.topic, scan.queue_id)
            is_new = self._table.get(*name) is None
            if (is_new and not self._begins_at_zero) or gap(scan) <= self._misplaced_count:
                self._accept(scan)  # the missing records have expired, or are misplaced
            elif is_new or self._is_repeated(scan):
                self._misplace(scan)
            else:
                self._correct(scan, self._next(name))
        self._held.clear()

    def _is_repeated(self, scan: Scan) -> bool:
        """Return whether a record has the queue offset of the last one of its queue."""
        return scan.queue_offset == self._next((scan.topic, scan.queue_id)) - 1

    def _accept(self, scan: Scan) -> None:
        self._dispatcher.dispatch(scan, is_from_head=True)

    def _correct(self, scan: Scan, queue_offset: int) -> None:
        self._note(scan)
        self._dispatcher.dispatch(msgspec.structs.replace(scan, queue_offset=queue_offset))

    def _misplace(self, scan: Scan) -> None:
        """Leave a record out of the queue that it names.

        If the record before it has the same queue offset, either of the two may be misplaced.
        """
        self._note(scan)
        self._misplaced_count += 1
        queue = self._table.get(scan.topic, scan.queue_id)
        if queue is not None and self._is_repeated(scan):
            queue.publish()
            entry = last_entry(queue)
            if entry is not None and entry.physical_offset >= self._start:
                self._places[entry.physical_offset] = entry.size

    def _note(self, scan: Scan) -> None:
        self._places[scan.physical_offset] = scan.size
