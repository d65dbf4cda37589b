# SPDX-License-Identifier: Apache-2.0
"""Repair entries of queues that changed on the disk: the log still has the messages.

Readers leave out a message whose entry does not fit its record, and report the entries that they
have read. A job then compares these entries with the log, searches for the missing records between
the neighbours, and writes their entries again. It does not sync them, because the sync would
consume the kernel's report of a failed writeback, which the next checkpoint needs (`flush.py`). An
entry that a power loss damages again is repaired again.
"""

from typing import Final, NamedTuple

from cometmq.remoting.message.record import ScanStatus, scan_record
from cometmq.remoting.message.record_layout import RECORD_BYTES_MIN
from cometmq.store.log.commit_log import LogView
from cometmq.store.parts import Parts
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.pulls import Pulls
from cometmq.store.queues.queue_files import ENTRY, FILLER_SIZE
from cometmq.store.queues.queue_reader import QueueRow
from cometmq.store.queues.record_check import matching
from cometmq.store.upkeep.entry_check import Suspects, fits_tags
from cometmq.store.upkeep.jobs import Job
from cometmq.store.writing.append import UNQUEUED
from cometmq.store.writing.dispatcher import queue_code, tag_and_keys

SEARCHED_BYTES_MAX: Final = 16 << 20
"""The part of the log that is searched for one message; the search takes 20 ms."""

SPAN_COUNT_MAX: Final = 4_096
"""Maximum number of entries of a queue that one repair examines for the scrubber; the next round
finds the others.
"""

RECORD_BYTES_MAX: Final = 16 << 20


class _Repaired(NamedTuple):
    queue_offset: int
    row: QueueRow


class EntryRepair:
    """Plans the repairs of one store; only the thread that owns the store uses it."""

    def __init__(self, parts: Parts, pulls: Pulls) -> None:
        self._parts = parts
        self._pulls = pulls
        self._is_running = False

    def job(self) -> Job | None:
        """Return the repair that is due, or None; only one runs at a time."""
        suspects = self._pulls.suspects
        if self._is_running or not suspects:
            return None
        queue, offsets = suspects.popitem()
        first = max(offsets.start - 1, queue.min_offset)
        stop = min(offsets.stop + 1, queue.written_offset)
        if self._parts.queues.get(queue.topic, queue.queue_id) is not queue or first >= stop:
            return None
        self._is_running = True
        return _RepairJob(self, queue, self._parts.commit_log.view(), range(first, stop))

    def suspect(self, found: Suspects) -> None:
        """Also examine entries that the scrubber has found."""
        for queue, offsets in found.items():
            known = self._pulls.suspects.get(queue)
            ends = [offsets[0], offsets[-1] + 1] + ([known.start, known.stop] if known else [])
            if max(ends) - min(ends) <= SPAN_COUNT_MAX:
                self._pulls.suspects[queue] = range(min(ends), max(ends))

    def ended(self, queue: ConsumeQueue, count: int, error: Exception | None) -> None:
        """Log the outcome of a repair, and drop cached reads so that readers use the repaired
        entries.
        """
        self._is_running = False
        if error is not None:
            self._parts.log.warning(
                "queue.unrepaired", topic=queue.topic, queue_id=queue.queue_id, error=str(error)
            )
        elif count:
            self._pulls.repaired_count += count
            self._pulls.forget()
            self._parts.log.info(
                "queue.repaired", topic=queue.topic, queue_id=queue.queue_id, count=count
            )


class _RepairJob:
    name = "repair"

    def __init__(
        self, repair: EntryRepair, queue: ConsumeQueue, log: LogView, offsets: range
    ) -> None:
        self._repair = repair
        self._queue = queue
        self._log = log
        self._offsets = offsets
        self._life = queue.life
        self._entries = queue.plan(offsets.start, len(offsets))
        self._places = {it: queue.files.place(it) for it in offsets}
        self._has_intact = False
        self._count = 0

    def run(self) -> None:
        """Compare the entries with the log, and write those that are wrong; may block."""
        rows = list(ENTRY.iter_unpack(self._entries.read(may_block=True) or b""))
        wrong = [at for at, row in enumerate(rows) if self._is_wrong(at, row)]
        for at in wrong:
            found = self._find(at, rows, set(wrong))
            if found is None or self._queue.life != self._life:
                continue
            file, position = self._places[found.queue_offset]
            file.write(position, [ENTRY.pack(*found.row)])
            rows[at] = found.row
            self._count += 1

    def _is_wrong(self, at: int, row: QueueRow) -> bool:
        offset, size, _ = row
        log, queue = self._log, self._queue
        is_expired = 0 <= offset < log.first and size >= RECORD_BYTES_MIN and not self._has_intact
        if size == FILLER_SIZE or is_expired:
            return False
        position = (offset - log.first) % log.file_size
        is_place = log.first <= offset <= log.end - size and size <= log.file_size - position
        if not is_place or not RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX:
            return True
        data = log.read(offset, size, may_block=True) or b""
        if len(data) < size:
            return False  # the log is damaged there
        place = (size, queue.queue_id, self._offsets.start + at, offset)
        is_intact = bool(matching(data, offset, [place], queue.topic_field))
        if is_intact:
            scan = scan_record(bytes(data), 0)
            is_record = scan.status is ScanStatus.RECORD
            is_intact = not is_record or fits_tags(queue, row[2], scan.properties)
        self._has_intact |= is_intact
        return not is_intact

    def _find(self, at: int, rows: list[QueueRow], wrong: set[int]) -> _Repaired | None:
        """Search the log between the nearest intact entries."""
        log = self._log
        before = [row for number, row in enumerate(rows[:at]) if number not in wrong]
        behind = [row for number, row in enumerate(rows) if number > at and number not in wrong]
        start = next((it[0] + it[1] for it in before[::-1] if it[1] != FILLER_SIZE), log.first)
        stop = next((it[0] for it in behind if it[1] != FILLER_SIZE), log.end)
        start = max(start, log.first)
        stop = min(stop, start + SEARCHED_BYTES_MAX)
        while start < stop:
            file_end = start + log.file_size - (start - log.first) % log.file_size
            data = log.read(start, min(stop, file_end) - start, may_block=True) or b""
            found = self._find_in(bytes(data), start, self._offsets.start + at)
            if found is not None:
                return found
            start = file_end
        return None

    def _find_in(self, data: bytes, start: int, queue_offset: int) -> _Repaired | None:
        queue, cursor = self._queue, 0
        scan = scan_record(data, cursor)
        while scan.status is ScanStatus.RECORD and scan.physical_offset == start + cursor:
            name = (scan.topic, scan.queue_id, scan.queue_offset)
            is_queued = not scan.sys_flag & UNQUEUED
            if is_queued and name == (queue.topic, queue.queue_id, queue_offset):
                code = queue_code(queue, scan, tag_and_keys(scan.properties)[0])
                code = queue.entry_code(code, scan.store_timestamp)
                return _Repaired(queue_offset, (scan.physical_offset, scan.size, code))
            cursor += scan.size
            scan = scan_record(data, cursor)
        return None

    def done(self, error: Exception | None) -> None:
        """Report the outcome to the store."""
        self._repair.ended(self._queue, self._count, error)
