# SPDX-License-Identifier: Apache-2.0
"""Rebuild entries of queues that changed on the disk: the log still has the messages.

Readers stop before an entry that does not fit its record, and report it (`SuspectEntries`). A job
then builds all entries between two intact neighbours from the log, and writes those that differ. It
does not sync them, because the sync would consume the kernel's report of a failed writeback, which
the next checkpoint needs (`flush.py`). An entry that a power loss damages again is rebuilt again.
"""

from collections.abc import Sequence
from copy import copy
from itertools import islice
from typing import Final

from cometmq.remoting.message.record import Scan
from cometmq.remoting.message.record_layout import RECORD_BYTES_MIN
from cometmq.store.errors import DiskError
from cometmq.store.log.commit_log import CommitLog, LogView
from cometmq.store.log.log_scanner import records_in
from cometmq.store.parts import Parts
from cometmq.store.queues.consume_queue import ConsumeQueue, QueuePlan
from cometmq.store.queues.pulls import Pulls
from cometmq.store.queues.queue_files import ENTRY
from cometmq.store.queues.queue_reader import QueueRow
from cometmq.store.queues.record_check import matching
from cometmq.store.queues.suspect_entries import EXAMINED_MAX
from cometmq.store.upkeep.jobs import Job
from cometmq.store.upkeep.walks import Suspects, fits_tags
from cometmq.store.writing.append import UNQUEUED
from cometmq.store.writing.dispatcher import queue_code, tag_and_keys


def read_or_nothing(log: LogView, offset: int, size: int) -> bytes:
    """Return bytes of one file of the log, or fewer if they are damaged or unreadable; blocks."""
    try:
        return bytes(log.read(offset, size, may_block=True) or b"")
    except DiskError:
        return b""


SPAN_COUNT: Final = 1 << 18
"""Number of entries that one job rebuilds: 5 MiB. Readers report further entries again."""

STALL_MS: Final = 30_000
"""Time after which readers no longer wait for a rebuild."""

ATTEMPTS_MAX: Final = 3
"""How often the rebuild of a queue may fail before readers pass its suspects."""

RECORD_BYTES_MAX: Final = 16 << 20


class EntryRepair:
    """Plans the repairs of one store; only the thread that owns the store uses it."""

    def __init__(self, parts: Parts, pulls: Pulls) -> None:
        self._parts = parts
        self._pulls = pulls
        self._suspects = pulls.suspects
        self._running: _RepairJob | None = None
        self._began_ms = 0
        self._failed: dict[ConsumeQueue, int] = {}

    def job(self) -> Job | None:
        """Return the repair that is due, or None; only one runs at a time."""
        suspects, now_ms = self._suspects, self._parts.monotonic_ms()
        if self._running is not None:
            if not suspects.is_stalled and now_ms - self._began_ms >= STALL_MS:
                self._warn(self._running.queue, f"no answer of the disk within {STALL_MS} ms")
                suspects.stall(self._running.queue)
            return None
        found = suspects.take()
        if found is None:
            return None
        queue, offsets = found
        offsets_left = [it for it in offsets if queue.min_offset <= it < queue.max_offset]
        is_current = self._parts.queues.get(queue.topic, queue.queue_id) is queue
        if not is_current or not offsets_left:
            self._failed.pop(queue, None)
            suspects.settle(queue, ())
            return None
        self._running = _RepairJob(self, queue, self._parts.commit_log, offsets_left)
        self._began_ms = now_ms
        return self._running

    def suspect(self, found: Suspects) -> None:
        """Also examine entries that the scrubber has found."""
        for queue, offsets in found.items():
            self._suspects.add(queue, offsets)

    def ended(self, job: "_RepairJob", error: Exception | None) -> None:
        """Log the outcome of a repair, drop cached reads so that readers use the repaired entries,
        and let readers go on.
        """
        self._running = None
        queue, count = job.queue, job.repaired_count
        if count:
            self._suspects.repaired_count += count
            self._pulls.forget()
            self._parts.log.warning(
                "queue.repaired", topic=queue.topic, queue_id=queue.queue_id, count=count
            )
        if error is None:
            self._failed.pop(queue, None)
            self._suspects.settle(queue, job.passed)
            return
        self._warn(queue, str(error))
        self._failed[queue] = self._failed.get(queue, 0) + 1
        if self._failed[queue] < ATTEMPTS_MAX:
            self._suspects.add(queue, job.suspects)
        else:
            del self._failed[queue]
            self._suspects.settle(queue, job.passed)

    def _warn(self, queue: ConsumeQueue, error: str) -> None:
        self._parts.log.warning(
            "queue.unrepaired", topic=queue.topic, queue_id=queue.queue_id, error=error
        )


class _RepairJob:
    name = "repair"

    def __init__(
        self, repair: EntryRepair, queue: ConsumeQueue, log: CommitLog, suspects: list[int]
    ) -> None:
        self._repair = repair
        self._log, self._files = log.view(), copy(log.files)  # the loop may drop files meanwhile
        self._life = queue.life
        # The entry before may have a torn tag code, which no reader without a filter notices.
        self._first = max(suspects[0] - 1, queue.min_offset)
        self._before = _distant(queue, self._first, -1)
        self._behind = _distant(queue, suspects[-1], 1)
        self._entries = queue.plan(self._first, SPAN_COUNT)
        self.queue = queue
        self.suspects = suspects
        self.passed: Sequence[int] = suspects
        """The entries that readers may pass, because the log does not have their messages."""
        self.repaired_count = 0

    def run(self) -> None:
        """Build the entries from the log, and write those that differ; may block."""
        log, first, queue_id = self._log, self._first, self.queue.queue_id
        before, behind = self._nearest(self._before), self._nearest(self._behind)
        rows = list(ENTRY.iter_unpack(self._entries.read(may_block=True) or b""))
        begin, end, stop = log.first, log.end, first + len(rows)
        if before is not None:
            begin = before[1][0] + before[1][1]
        if behind is not None:
            stop, end = min(stop, behind[0]), behind[1][0]
        built = dict[int, QueueRow]()
        for scan in records_in(self._files, begin, end):
            at = scan.queue_offset
            if scan.queue_id == queue_id and first <= at < stop and self._is_own(scan):
                built[at] = self._row(rows[at - first], scan)
            # Without an entry before, a record of an earlier topic may precede the right one.
            if before is not None and len(built) == stop - first:
                break
        self._write({at: row for at, row in built.items() if row != rows[at - first]})
        lost = (at for at in range(first, stop) if at not in built)
        self.passed = sorted({*islice(lost, EXAMINED_MAX // 2), *self.suspects} - built.keys())

    def _nearest(self, entries: list[tuple[int, QueuePlan]]) -> tuple[int, QueueRow] | None:
        """Return the first intact one of some entries, with its offset."""
        for at, plan in entries:
            for row in ENTRY.iter_unpack(plan.read(may_block=True) or b""):
                if self._is_intact(at, row):
                    return at, row
        return None

    def _is_intact(self, at: int, row: QueueRow) -> bool:
        offset, size, _ = row
        log, queue = self._log, self.queue
        position = (offset - log.first) % log.file_size
        is_place = log.first <= offset <= log.end - size and size <= log.file_size - position
        if not is_place or not RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX:
            return False
        data = read_or_nothing(log, offset, size)
        place = [(size, queue.queue_id, at, offset)]
        return len(data) == size and bool(matching(data, offset, place, queue.topic_field))

    def _is_own(self, scan: Scan) -> bool:
        """Return whether a record belongs to the queue, and its bytes are not damaged."""
        size, is_queued = scan.size, not scan.sys_flag & UNQUEUED
        data = read_or_nothing(self._log, scan.physical_offset, size) if is_queued else b""
        return scan.topic == self.queue.topic and len(data) == size

    def _row(self, stored: QueueRow, scan: Scan) -> QueueRow:
        """Return the right entry of a record: the stored one, if it fits."""
        queue, place = self.queue, (scan.physical_offset, scan.size)
        if stored[:2] == place and fits_tags(queue, stored[2], scan.properties):
            return stored
        code = queue_code(queue, scan, tag_and_keys(scan.properties)[0])
        return *place, queue.entry_code(code, scan.store_timestamp)

    def _write(self, wrong: dict[int, QueueRow]) -> None:
        begin = self._first
        for file, position, size in self._entries.pieces:  # the others exist only in memory
            for at in range(begin, begin + size // ENTRY.size):
                if at in wrong and self.queue.life == self._life:
                    place = position + (at - begin) * ENTRY.size
                    file.write(place, [ENTRY.pack(*wrong[at])])
                    self.repaired_count += 1
            begin += size // ENTRY.size

    def done(self, error: Exception | None) -> None:
        """Report the outcome to the store."""
        self._repair.ended(self, error)


def _distant(queue: ConsumeQueue, queue_offset: int, step: int) -> list[tuple[int, QueuePlan]]:
    """Return entries at distances of 1, 2, 4, ... from one, as far as the queue has them."""
    places = (queue_offset + (step << bit) for bit in range(40))
    return [(it, queue.plan(it, 1)) for it in places if queue.min_offset <= it < queue.max_offset]
