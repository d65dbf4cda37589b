# SPDX-License-Identifier: Apache-2.0
"""Repair entries of queues that changed on the disk: the log still has the messages.

Readers stop before an entry that does not fit its record, and report it (`SuspectEntries`). A job
then compares the entries with the log, searches for the missing records between the neighbours, and
writes their entries again. It does not sync them, because the sync would consume the kernel's
report of a failed writeback, which the next checkpoint needs (`flush.py`). An entry that a power
loss damages again is repaired again.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Final, TypeAlias

from cometmq.remoting.message.record import ScanStatus, scan_record
from cometmq.remoting.message.record_layout import RECORD_BYTES_MIN
from cometmq.store.disk import DiskFile
from cometmq.store.log.commit_log import LogView
from cometmq.store.log.record_search import find_heads, read_or_nothing
from cometmq.store.parts import Parts
from cometmq.store.queues.consume_queue import ConsumeQueue, QueuePlan
from cometmq.store.queues.pulls import Pulls
from cometmq.store.queues.queue_files import ENTRY, FILLER_SIZE
from cometmq.store.queues.queue_reader import QueueRow
from cometmq.store.queues.record_check import matching
from cometmq.store.queues.suspect_entries import SPAN_COUNT_MAX
from cometmq.store.upkeep.entry_check import Suspects, fits_tags
from cometmq.store.upkeep.jobs import Job
from cometmq.store.writing.append import UNQUEUED
from cometmq.store.writing.dispatcher import queue_code, tag_and_keys

SEARCHED_BYTES_MAX: Final = 1 << 30
"""The part of the log that is searched between two entries. It takes 0.4 s, or as long as the disk
needs. After that, an examination ends; readers report further entries again.
"""

STALL_MS: Final = 30_000
"""Time after which readers no longer wait for an examination."""

ATTEMPTS_MAX: Final = 3
"""How often the examination of a queue may fail before readers pass its suspects."""

AHEAD_COUNT: Final = 32
"""An examination ends after this number of intact entries behind the last suspect: usually, a whole
page of entries is damaged.
"""

RECORD_BYTES_MAX: Final = 16 << 20


class _State(Enum):
    INTACT = "intact"
    WRONG = "wrong"
    EMPTY = "empty"  # there is no message: a filler, or expired
    UNREADABLE = "unreadable"  # the log is damaged at the entry's place


_DAMAGED: Final = (_State.WRONG, _State.UNREADABLE)

_Doubt: TypeAlias = tuple[int, int]
"""The offset of a damaged entry, and the place of its record, or -1 if the place is unknown."""


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
        self._running = _RepairJob(self, queue, self._parts.commit_log.view(), offsets_left)
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
        queue, count = job.queue, len(job.repaired)
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
        self, repair: EntryRepair, queue: ConsumeQueue, log: LogView, suspects: list[int]
    ) -> None:
        self._repair = repair
        self._log = log
        self._life = queue.life
        # The entry before may have a torn tag code, which no reader without a filter notices.
        self._first = max(suspects[0] - 1, queue.min_offset)
        self._entries = queue.plan(self._first, SPAN_COUNT_MAX)
        self._before = _distant(queue, self._first, -1)
        self._behind = _distant(queue, self._first + SPAN_COUNT_MAX - 1, 1)
        self._end = self._first + SPAN_COUNT_MAX
        self._searched_bytes = 0
        self._has_intact = False
        self._damaged: set[int] = set()
        self.queue = queue
        self.suspects = suspects
        self.repaired: set[int] = set()

    @property
    def passed(self) -> Sequence[int]:
        """The entries that readers may pass: suspects and damaged ones that were not repaired."""
        passed = {*self.suspects, *self._damaged} - self.repaired
        return sorted(it for it in passed if it < self._end)

    def run(self) -> None:
        """Compare the entries with the log, and write those that are wrong; may block."""
        before = self._nearest(self._before)
        doubts: list[_Doubt] = []
        intact_count = 0
        rows = ENTRY.iter_unpack(self._entries.read(may_block=True) or b"")
        for at, row in enumerate(rows, self._first):
            state = self._state(at, row)
            if state in _DAMAGED:
                self._damaged.add(at)
                doubts.append((at, row[0] if state is _State.UNREADABLE else -1))
                intact_count = 0
            elif state is _State.INTACT:
                self._mend(doubts, before, row)
                before, doubts = row, []
                intact_count += 1
                is_done = intact_count >= AHEAD_COUNT and at > self.suspects[-1]
                if is_done or self._searched_bytes >= SEARCHED_BYTES_MAX:
                    self._end = at + 1
                    return
        self._mend(doubts, before, self._nearest(self._behind))

    def _nearest(self, entries: list[tuple[int, QueuePlan]]) -> QueueRow | None:
        """Return the first intact one of some entries."""
        for at, plan in entries:
            for row in ENTRY.iter_unpack(plan.read(may_block=True) or b""):
                if self._state(at, row) is _State.INTACT:
                    return row
        return None

    def _state(self, at: int, row: QueueRow) -> _State:
        offset, size, code = row
        log, queue = self._log, self.queue
        is_expired = 0 <= offset < log.first and size >= RECORD_BYTES_MIN and not self._has_intact
        if size == FILLER_SIZE or is_expired:
            return _State.EMPTY
        position = (offset - log.first) % log.file_size
        is_place = log.first <= offset <= log.end - size and size <= log.file_size - position
        if not is_place or not RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX:
            return _State.WRONG
        data = read_or_nothing(log, offset, size)
        if len(data) < size:
            return _State.UNREADABLE
        if not matching(data, offset, [(size, queue.queue_id, at, offset)], queue.topic_field):
            return _State.WRONG
        scan = scan_record(data)
        if scan.status is ScanStatus.RECORD and not fits_tags(queue, code, scan.properties):
            return _State.WRONG
        self._has_intact = True
        return _State.INTACT

    def _mend(self, doubts: list[_Doubt], before: QueueRow | None, behind: QueueRow | None) -> None:
        """Search the log between two intact entries for the records of those between them."""
        if not doubts:
            return
        log = self._log
        end = log.end if behind is None else behind[0]
        begin = before[0] + before[1] if before is not None else log.first
        if before is None and behind is not None:
            begin = max(begin, end - SEARCHED_BYTES_MAX)
        end = min(end, begin + SEARCHED_BYTES_MAX)
        wanted = {at for at, place in doubts if not begin <= place < end}
        found: dict[int, QueueRow] = {}
        if not wanted:
            return
        searched_end = end
        for offset, size, queue_offset in find_heads(log, begin, end, self.queue.queue_id):
            row = self._row(offset, size, queue_offset) if queue_offset in wanted else None
            if row is not None:
                found[queue_offset] = row
                # Without an entry before, an earlier topic's record may precede the right one.
                if before is not None and len(found) == len(wanted):
                    searched_end = offset
                    break
        self._searched_bytes += searched_end - begin
        self._write(found)

    def _row(self, offset: int, size: int, queue_offset: int) -> QueueRow | None:
        queue = self.queue
        scan = scan_record(read_or_nothing(self._log, offset, size))
        place = (scan.topic, scan.queue_id, scan.queue_offset, scan.physical_offset)
        if (
            scan.status is not ScanStatus.RECORD
            or scan.sys_flag & UNQUEUED
            or place != (queue.topic, queue.queue_id, queue_offset, offset)
        ):
            return None
        code = queue_code(queue, scan, tag_and_keys(scan.properties)[0])
        return offset, size, queue.entry_code(code, scan.store_timestamp)

    def _write(self, found: dict[int, QueueRow]) -> None:
        for at, row in sorted(found.items()):
            place = self._place(at)
            if place is not None and self.queue.life == self._life:
                file, position = place
                file.write(position, [ENTRY.pack(*row)])
                self.repaired.add(at)

    def _place(self, queue_offset: int) -> tuple[DiskFile, int] | None:
        """Return where an entry is; None if it exists only in memory."""
        rest = (queue_offset - self._first) * ENTRY.size
        for file, position, size in self._entries.pieces:
            if rest < size:
                return file, position + rest
            rest -= size
        return None

    def done(self, error: Exception | None) -> None:
        """Report the outcome to the store."""
        self._repair.ended(self, error)


def _distant(queue: ConsumeQueue, queue_offset: int, step: int) -> list[tuple[int, QueuePlan]]:
    """Return entries at distances of 1, 2, 4, ... from one, as far as the queue has them."""
    places = (queue_offset + (step << bit) for bit in range(40))
    return [(it, queue.plan(it, 1)) for it in places if queue.min_offset <= it < queue.max_offset]
