# SPDX-License-Identifier: Apache-2.0
"""Verify a store completely: every record, queue entry and index entry.

One pass over the log compares each record with its queue entry. Then each index file is checked
entry by entry, and the log is compared with its checksums. Nothing is changed.

How the store was last used decides which findings are damage:

- If a broker has the store open, everything up to the last checkpoint must be correct. A finding
  counts only if a second pass confirms it, because files expire and topics are deleted during the
  check. The journal of the tables is being written and is not checked.
- If the store was stopped cleanly, everything must be correct.
- If it was not stopped cleanly, or something is wrong, the start and stop of a broker are rehearsed
  in memory. Whatever is still wrong after that, or keeps the broker from starting, is damage.
"""

import errno
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from cometmq.remoting.message.record import Scan
from cometmq.store.disk import Disk
from cometmq.store.errors import CorruptStore, DiskError
from cometmq.store.index.index_file import IndexFile
from cometmq.store.index.index_format import KeyedRows
from cometmq.store.inspection.checks import (
    configured_topics,
    damaged_parts,
    lost_head,
    table_faults,
)
from cometmq.store.inspection.inspect import StoreView, open_view
from cometmq.store.inspection.overlay import OverlayDisk
from cometmq.store.inspection.range_check import READ_COUNT, IndexReplay, QueueCursor, RangeCheck
from cometmq.store.inspection.verification import Finding, FindingKind, StoreState, Verification
from cometmq.store.journal import read_journal
from cometmq.store.message_store import MessageStore
from cometmq.store.os_disk import OsDisk
from cometmq.store.parts import NO_NATIVE_CODE, NativeCode
from cometmq.store.queues.consume_queue import ConsumeQueue, entries_from
from cometmq.store.queues.queue_files import FILLER_SIZE
from cometmq.store.recovery.start import StartReason
from cometmq.store.settings import StoreSettings
from cometmq.store.upkeep.index_check import Fault, FileCheck, KeyReader, disk_slots
from cometmq.store.writing.append import ROLLBACK, UNQUEUED
from cometmq.store.writing.dispatcher import tag_and_keys
from cometmq.store.writing.marks import is_deletion
from cometmq.store.writing.runs import RecordRange

_EVERYTHING: Final = 1 << 62  # includes entries that point past the log


def verify_store(
    root: str,
    *,
    disk: Disk | None = None,
    settings: StoreSettings | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    native: NativeCode = NO_NATIVE_CODE,
) -> Verification:
    """Verify a store; `on_progress` gets the number of bytes checked and the total. With `native`
    code, this is many times faster.

    If the index files do not have the default shape, the settings must specify their shape.
    """
    disk = disk if disk is not None else OsDisk(read_only=True)

    def look(disk: Disk, **options: bool) -> Verification:
        view = open_view(root, disk=disk, settings=settings)
        return _Verifier(view, on_progress, native, **options).run()

    view = open_view(root, disk=disk, settings=settings)
    if view.in_use_by is not None:
        confirmed = _confirmed(look(disk), lambda: look(disk))
        _check_tables(view, confirmed)
        return confirmed
    found = _Verifier(view, on_progress, native).run() if view.was_clean else None
    if found is None or not found.is_good:
        found = _rehearsed(view, found, look, native)
    _check_journal(view, found)
    _check_tables(view, found)
    if lost := lost_head(view):
        found.add(Finding(FindingKind.LOG_FILES_LOST, *lost))
        found.state = StoreState.DAMAGED
    return found


def _check_journal(view: StoreView, found: Verification) -> None:
    """Report damage to the tables' journal, which does not keep a broker from starting."""
    journal = read_journal(view.disk, view.parts.layout.journal)
    found.journal_entry_count = len(journal.entries)
    if journal.damage:
        place = view.parts.layout.journal
        found.add(Finding(FindingKind.JOURNAL_DAMAGED, place, journal.damage))
        if found.state is StoreState.HEALTHY:
            found.state = StoreState.NEEDS_RECOVERY


def _check_tables(view: StoreView, found: Verification) -> None:
    """Report tables that cannot be read; a start repairs a table whose copy it can read."""
    config = view.parts.layout.config
    faults = table_faults(view.disk, config)
    if faults and view.in_use_by is not None:  # a broker may have replaced a file meanwhile
        again = table_faults(view.disk, config)
        faults = [it for it in again if it in faults]
    for fault in faults:
        found.add(Finding(FindingKind.TABLE_DAMAGED, fault.path, fault.text))
        if fault.is_lost:
            found.state = StoreState.DAMAGED
        elif found.state is not StoreState.DAMAGED:
            found.state = StoreState.NEEDS_RECOVERY


def _confirmed(found: Verification, look: Callable[[], Verification]) -> Verification:
    """Keep only the findings that a second pass confirms."""
    found.state = StoreState.IN_USE
    if found.is_good:
        return found
    seen = {(finding.kind, finding.place) for finding in found.findings}
    again = look()
    again.state = StoreState.IN_USE
    again.findings = [it for it in again.findings if (it.kind, it.place) in seen]
    again.counts = dict(Counter(it.kind for it in again.findings))
    if again.findings:
        again.state = StoreState.DAMAGED
    return again


def _rehearsed(
    view: StoreView,
    found: Verification | None,
    look: Callable[..., Verification],
    native: NativeCode,
) -> Verification:
    """Start and stop the store on an overlay, and verify the result; `found` is added to it."""
    overlay = OverlayDisk(view.disk)
    try:
        settings = view.parts.settings
        store = MessageStore.open(settings, disk=overlay, clock_ms=lambda: 0, native=native)
    except (CorruptStore, DiskError) as error:
        if isinstance(error, DiskError) and error.errno != errno.EIO:
            raise
        found = found or look(view.disk)
        if str(error) not in {finding.text for finding in found.findings}:
            found.add(Finding(FindingKind.START_REFUSED, "start", str(error)))
        found.state = StoreState.DAMAGED
        return found
    recovered = store.upkeep.recovered
    store.close()
    after = look(overlay, is_complete=recovered.start.reason is StartReason.PROGRESS)
    if recovered.end < view.known_end:
        after.add(_shortened(view, recovered.end))
    after.state = StoreState.NEEDS_RECOVERY if after.is_good else StoreState.DAMAGED
    after.was_clean, after.recovery = view.was_clean, recovered
    if found is not None:  # the current findings, even those that a start would repair
        after.add_repairable(found)
    return after


def _shortened(view: StoreView, end: int) -> Finding:
    text = f"the log ends at {end}, but it was safe on the disk up to {view.known_end}"
    return Finding(FindingKind.LOG_DAMAGED, view.files.folder, text)


class _Verifier:
    """One pass over a store; after an unclean stop, it ends at the safe end of the log.

    `is_complete` means that no queue lacks entries, so a queue that is missing was deleted.
    """

    def __init__(
        self,
        view: StoreView,
        on_progress: Callable[[int, int], None] | None,
        native: NativeCode,
        *,
        is_complete: bool = False,
    ) -> None:
        self._view = view
        self._parts = view.parts
        self._on_progress = on_progress
        self._found = Verification(was_clean=view.was_clean, in_use_by=view.in_use_by)
        self._is_whole = view.was_clean and view.in_use_by is None
        self._stop = None if self._is_whole else view.safe_end
        self._is_complete = is_complete
        self._topics = configured_topics(view.disk, view.parts.layout.config)
        self._deletion_ends = view.deletion_ends()
        self._unqueued: dict[str, Verification] = {}
        """By topic: findings about records without a queue, unless the topic is deleted later."""
        self._cursors: dict[tuple[str, int], QueueCursor] = {}
        self._key_count = 0
        self._load_index()
        self._is_indexed = bool(self._parts.index.files)
        self._index_start = self._first_indexed() if self._is_indexed else 0
        self._read_range = native.read_range
        index_files = self._parts.index.files if native.read_range is not None else []
        self._replay = IndexReplay(index_files, view.files.first, self._growing_counts())

    def _load_index(self) -> None:
        faults: list[CorruptStore] = []
        self._parts.index.load(faults.append)
        if faults and not self._parts.index.files:
            raise faults[0]  # the settings are more likely to be wrong than every file
        self._view.faults += faults

    def run(self) -> Verification:
        view, found = self._view, self._found
        files = view.files
        if view.faults and not files.files:  # without the log, everything else would seem wrong
            self._note_damages()
            return found
        self._parts.commit_log.set_end(files.end)
        view.measure_queues(_EVERYTHING if self._stop is None else self._stop)
        self._is_complete = self._is_complete or self._has_all_entries()
        end = files.end if self._stop is None else self._stop
        take = None
        if self._read_range is not None:
            queues = self._parts.queues
            take = RangeCheck(
                self._read_range, queues, self._cursor_of, self._stop, self._note_range
            ).take
        try:
            for number, scan in enumerate(view.records(stop=self._stop, take=take)):
                self._check_record(scan)
                if number % 4096 == 0:
                    self._tell(scan.physical_offset)
            self._replay.finish()
            for unqueued in self._unqueued.values():
                found.add_all(unqueued)
            found.max_offset = self._parts.commit_log.end if self._stop is None else self._stop
            self._parts.commit_log.set_end(files.end)
            self._check_rest_of_queues()
            self._check_index()
            for part in damaged_parts(view, end, self._tell_compared):
                self._note(FindingKind.CHECKSUM_WRONG, *part)
        except DiskError as error:
            if error.errno != errno.EIO:
                raise
            self._note(FindingKind.FILE_DAMAGED, error.path, f"{error}; the check ends here")
        self._note_damages()
        log_end = found.max_offset if self._stop is None else files.end
        if log_end < view.known_end and view.files.files:
            found.add(_shortened(view, log_end))
        found.record_count = view.record_count
        found.queue_entry_count = sum(cursor.seen_count for cursor in self._cursors.values())
        found.min_offset = files.first
        return found

    def _tell(self, offset: int, *, is_second: bool = False) -> None:
        """Report the progress: the log is read twice."""
        if self._on_progress is not None:
            files = self._view.files
            size = (files.end if self._stop is None else self._stop) - files.first
            self._on_progress(offset - files.first + size * is_second, 2 * size)

    def _tell_compared(self, end: int) -> None:
        self._tell(end, is_second=True)

    def _note_range(self, end: int, found: RecordRange) -> None:
        """Count what was compared without Python."""
        self._view.record_count += found.record_count
        keys = found.keys
        known = bisect_left(range(keys.count), self._index_start, key=keys.offset)
        self._key_count += keys.count - known
        self._replay.feed(keys)
        self._tell(end)

    def _growing_counts(self) -> dict[str, int]:
        """Return the number of entries, up to the checkpoint, of the file being filled."""
        progress = self._view.progress
        if self._stop is None or progress is None:
            return {}
        return {progress.index_name: progress.index_count}

    def _note(self, kind: FindingKind, place: str, text: str) -> None:
        self._found.add(Finding(kind, place, text))

    def _note_damages(self) -> None:
        for fault in self._view.faults:
            path = str(fault).split(" ")[0].rstrip(":")
            place = path if path.startswith("/") else self._view.files.folder
            self._note(FindingKind.FILE_DAMAGED, place, str(fault))
        for damage in self._view.damages:
            self._note(
                FindingKind.LOG_DAMAGED,
                damage.path,
                f"no record at byte {damage.position} (physical offset"
                f" {damage.physical_offset}); the next record begins at {damage.next_offset}",
            )

    def _has_all_entries(self) -> bool:
        progress = self._view.progress
        if progress is None or not progress.is_newest(self._view.checkpoint):
            return False
        count = sum(queue.max_offset for queue in self._parts.queues.queues.values())
        return count == progress.entry_count

    def _first_indexed(self) -> int:
        """Return the offset at which the index begins; older index files were deleted."""
        return self._parts.index.files[0].header.begin_offset

    def _check_record(self, scan: Scan) -> None:
        if is_deletion(scan):
            self._unqueued.pop(scan.topic, None)
        code, keys = tag_and_keys(scan.properties)
        if scan.sys_flag & ROLLBACK != ROLLBACK and scan.physical_offset >= self._index_start:
            self._key_count += len(keys)
            at = scan.physical_offset, scan.store_timestamp
            self._replay.feed(KeyedRows([(scan.topic, key, *at) for key in keys]))
        if not scan.sys_flag & UNQUEUED:
            self._check_entry(scan, code)

    def _check_entry(self, scan: Scan, code: int) -> None:
        cursor = self._cursor(scan)
        if cursor is None or cursor.is_gone or scan.physical_offset < cursor.begin:
            return
        at = scan.queue_offset, scan.physical_offset
        if self._parts.queues.floors.hides(scan.topic, scan.queue_id, *at):
            return
        place = f"{scan.topic}/{scan.queue_id}/{scan.queue_offset}"
        try:
            entry = cursor.entry(scan.queue_offset)
        except DiskError as error:
            if not self._view.is_deletion(error):
                raise
            cursor.is_gone = True
            return
        if entry is None or entry[1] in {0, FILLER_SIZE}:
            text = f"the record at {scan.physical_offset} has no entry"
            self._note(FindingKind.QUEUE_ENTRY_MISSING, place, text)
            return
        cursor.seen_count += 1
        if cursor.queue.delay_ms is not None or entry[2] < -(1 << 31):
            code = entry[2]  # a delivery time depends on settings; extended entries differ, too
        expected = (scan.physical_offset, scan.size, code)
        if entry != expected:
            text = f"the entry says {entry}, the record {expected}"
            self._note(FindingKind.QUEUE_ENTRY_WRONG, place, text)

    def _cursor(self, scan: Scan) -> QueueCursor | None:
        """Return the cursor over the record's queue; None if the queue does not exist."""
        cursor = self._cursor_of(scan.topic, scan.queue_id)
        if cursor is None and not self._is_complete and self._must_be_queued(scan):
            text = f"the record at {scan.physical_offset} has no queue"
            place = f"{scan.topic}/{scan.queue_id}/{scan.queue_offset}"
            unqueued = self._unqueued.setdefault(scan.topic, Verification(was_clean=True))
            unqueued.add(Finding(FindingKind.QUEUE_ENTRY_MISSING, place, text))
        return cursor

    def _cursor_of(self, topic: str, queue_id: int) -> QueueCursor | None:
        cursor = self._cursors.get((topic, queue_id))
        if cursor is None:
            queue = self._parts.queues.get(topic, queue_id)
            if queue is not None and queue.files.files:
                cursor = self._cursors[topic, queue_id] = QueueCursor(queue)
        return cursor

    def _must_be_queued(self, scan: Scan) -> bool:
        is_deleted = scan.physical_offset < self._deletion_ends.get(scan.topic, 0)
        return not is_deleted and (self._topics is None or scan.topic in self._topics)

    def _check_rest_of_queues(self) -> None:
        for key, queue in self._parts.queues.queues.items():
            cursor = self._cursors.get(key)
            if cursor is not None and cursor.is_gone:
                continue
            seen_count = 0 if cursor is None else cursor.seen_count
            surplus = queue.max_offset - queue.min_offset - seen_count
            if surplus > 0:
                surplus -= self._filler_count(queue)
            if surplus > 0:
                self._note(
                    FindingKind.QUEUE_ENTRY_WITHOUT_RECORD,
                    f"{queue.topic}/{queue.queue_id}",
                    f"{surplus} of {queue.max_offset - queue.min_offset} entries have no record",
                )

    def _filler_count(self, queue: ConsumeQueue) -> int:
        """Count the fillers with which a recovery replaced lost messages."""
        count = 0
        for start in range(queue.min_offset, queue.max_offset, READ_COUNT):
            entries = entries_from(queue, start, READ_COUNT)
            count += sum(entry[1] == FILLER_SIZE for entry in entries)
        return count

    def _check_index(self) -> None:
        count = 0
        for file in self._parts.index.files:
            if file.name in self._replay.proven:
                count += self._replay.proven[file.name]
                continue
            try:
                count += self._check_index_file(file)
            except DiskError as error:
                if not self._view.is_deletion(error):
                    raise
                self._is_indexed = False  # it expired, so its keys can no longer be counted
        self._found.index_entry_count = count
        if self._is_indexed and count < self._key_count:
            text = f"{self._key_count - count} keys have no entry"
            self._note(FindingKind.INDEX_KEYS_MISSING, "index", text)

    def _check_index_file(self, file: IndexFile) -> int:
        """Check a file's entries and chains; return the number of entries with existing records."""
        progress = self._view.progress
        is_growing = self._stop is not None and file is self._parts.index.files[-1]
        known = 0
        if self._stop is not None and progress is not None and file.name == progress.index_name:
            known, is_growing = progress.index_count, True
        check = FileCheck(file.shape, file.header.begin_timestamp)
        reader = KeyReader(self._view.files, self._parts.commit_log.end)
        for _, entry in file.all_entries(known):
            if self._stop is not None and entry[1] >= self._stop:
                break
            self._note_faults(file, check.compare(entry, reader))
        if not is_growing:
            read = partial(disk_slots, file.file, file.shape)
            self._note_faults(file, check.slots(read, below=0))
        return check.live_count

    def _note_faults(self, file: IndexFile, faults: Iterator[Fault]) -> None:
        for fault in faults:
            kind = FindingKind.INDEX_ENTRY_WRONG
            if fault.is_chain:
                kind = FindingKind.INDEX_CHAIN_BROKEN
            self._note(kind, file.name, fault.text)
