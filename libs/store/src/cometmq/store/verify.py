# SPDX-License-Identifier: Apache-2.0
"""Check a store completely: every record, every queue entry, every index entry.

One walk through the log, in its order, compares each record with the entry that its queue has for
it; then each index file is followed entry by entry. Nothing is changed.

Behind a crash the newest queue and index entries may be missing: recovery builds them. They are
findings all the same, with a kind of their own.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Final, NamedTuple

from cometmq.remoting.message.flags import index_hash
from cometmq.remoting.message.record import Scan
from cometmq.store.append import ROLLBACK, UNQUEUED
from cometmq.store.consume_queue import FILLER_SIZE, ConsumeQueue
from cometmq.store.disk import Disk
from cometmq.store.dispatcher import tag_and_keys
from cometmq.store.index_file import IndexFile
from cometmq.store.inspect import StoreView
from cometmq.store.reads import finish
from cometmq.store.settings import StoreSettings

FINDINGS_COUNT_MAX: Final = 1000
_READ_COUNT: Final = 1024
_EVERYTHING: Final = 1 << 62  # also entries that point behind the log


class FindingKind(StrEnum):
    """What can be wrong."""

    LOG_DAMAGED = "log-damaged"
    QUEUE_ENTRY_WRONG = "queue-entry-wrong"
    QUEUE_ENTRY_MISSING = "queue-entry-missing"
    QUEUE_ENTRY_WITHOUT_RECORD = "queue-entry-without-record"
    INDEX_ENTRY_WRONG = "index-entry-wrong"
    INDEX_CHAIN_BROKEN = "index-chain-broken"
    INDEX_KEYS_MISSING = "index-keys-missing"


class Finding(NamedTuple):
    """One thing that is wrong, and where."""

    kind: FindingKind
    place: str
    text: str


class Verification(NamedTuple):
    """What was looked at, and what is wrong with it."""

    record_count: int
    queue_entry_count: int
    index_entry_count: int
    min_offset: int
    max_offset: int
    was_clean: bool
    findings: list[Finding]
    finding_count: int  # all of them; the list is bounded

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return self.finding_count == 0


def verify_store(
    root: str,
    *,
    disk: Disk | None = None,
    settings: StoreSettings | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Verification:
    """Check everything; `on_progress` hears of bytes done and bytes in all.

    The settings must say what shape the index files have, if it is not the usual one.
    """
    view = StoreView(root, disk=disk, settings=settings or StoreSettings())
    return _Verifier(view, on_progress).run()


class _QueueCursor:
    """Reads the entries of one queue in big pieces, as the log's order asks for them."""

    def __init__(self, queue: ConsumeQueue) -> None:
        self.queue = queue
        self.seen_count = 0
        self._first = 0
        self._entries: list[tuple[int, int, int]] = []

    def entry(self, queue_offset: int) -> tuple[int, int, int] | None:
        index = queue_offset - self._first
        if not 0 <= index < len(self._entries):
            self._first = queue_offset
            self._entries = self.queue.read_entries(queue_offset, _READ_COUNT)
            index = 0
        return self._entries[index] if self._entries else None


class _Verifier:
    def __init__(self, view: StoreView, on_progress: Callable[[int, int], None] | None) -> None:
        self._view = view
        self._parts = view.parts
        self._on_progress = on_progress
        self._cursors: dict[tuple[str, int], _QueueCursor] = {}
        self._findings: list[Finding] = []
        self._finding_count = 0
        self._hashes_of: tuple[int, set[int]] = (-1, set())
        self._key_count = 0
        self._parts.index.load()
        self._is_indexed = bool(self._parts.index.files)
        self._index_start = self._first_indexed() if self._is_indexed else 0

    def run(self) -> Verification:
        files = self._view.files
        self._parts.commit_log.end = files.end
        self._view.measure_queues(_EVERYTHING)
        for number, scan in enumerate(self._view.records()):
            self._check_record(scan)
            if self._on_progress is not None and number % 4096 == 0:
                self._on_progress(scan.physical_offset - files.first, files.end - files.first)
        self._check_rest_of_queues()
        index_entry_count = sum(map(self._check_index_file, self._parts.index.files))
        if self._is_indexed and index_entry_count < self._key_count:
            missing = self._key_count - index_entry_count
            self._note(FindingKind.INDEX_KEYS_MISSING, "index", f"{missing} keys have no entry")
        for damage in self._view.damages:
            self._note(
                FindingKind.LOG_DAMAGED,
                damage.path,
                f"no record at byte {damage.position} (physical offset"
                f" {damage.physical_offset}), the next one begins at {damage.next_offset}",
            )
        layout = self._parts.layout
        return Verification(
            self._view.record_count,
            sum(cursor.seen_count for cursor in self._cursors.values()),
            index_entry_count,
            files.first,
            self._parts.commit_log.end,
            not self._view.disk.exists(layout.abort),
            self._findings,
            self._finding_count,
        )

    def _note(self, kind: FindingKind, place: str, text: str) -> None:
        self._finding_count += 1
        if len(self._findings) < FINDINGS_COUNT_MAX:
            self._findings.append(Finding(kind, place, text))

    def _first_indexed(self) -> int:
        """Return where the index begins: files that speak of older records were deleted."""
        return self._parts.index.files[0].header.begin_offset

    def _check_record(self, scan: Scan) -> None:
        code, keys = tag_and_keys(scan.properties)
        if scan.sys_flag & ROLLBACK != ROLLBACK and scan.physical_offset >= self._index_start:
            self._key_count += len(keys)
        if not scan.sys_flag & UNQUEUED:
            self._check_entry(scan, code)

    def _check_entry(self, scan: Scan, code: int) -> None:
        place = f"{scan.topic}/{scan.queue_id}/{scan.queue_offset}"
        cursor = self._cursors.get((scan.topic, scan.queue_id))
        if cursor is None:
            queue = self._parts.queues.get(scan.topic, scan.queue_id)
            if queue is None:
                text = f"the record at {scan.physical_offset} has no queue"
                self._note(FindingKind.QUEUE_ENTRY_MISSING, place, text)
                return
            cursor = self._cursors[scan.topic, scan.queue_id] = _QueueCursor(queue)
        entry = cursor.entry(scan.queue_offset)
        if entry is None or entry[1] in {0, FILLER_SIZE}:
            text = f"the record at {scan.physical_offset} has no entry"
            self._note(FindingKind.QUEUE_ENTRY_MISSING, place, text)
            return
        cursor.seen_count += 1
        if cursor.queue.delay_ms is not None or entry[2] < -(1 << 31):
            code = entry[2]  # a time of delivery depends on settings; so does an extended entry
        expected = (scan.physical_offset, scan.size, code)
        if entry != expected:
            text = f"the entry says {entry}, the record {expected}"
            self._note(FindingKind.QUEUE_ENTRY_WRONG, place, text)

    def _check_rest_of_queues(self) -> None:
        for key, queue in self._parts.queues.queues.items():
            cursor = self._cursors.get(key)
            seen_count = 0 if cursor is None else cursor.seen_count
            surplus = queue.max_offset - queue.min_offset - seen_count
            if surplus > 0:
                self._note(
                    FindingKind.QUEUE_ENTRY_WITHOUT_RECORD,
                    f"{queue.topic}/{queue.queue_id}",
                    f"{surplus} of {queue.max_offset - queue.min_offset} entries have no record",
                )

    def _check_index_file(self, file: IndexFile) -> int:
        """Check entries and chains of one file; return how many entries the log still has."""
        log_first = self._view.files.first
        newest: dict[int, int] = {}
        count = 0
        for number, (hash_, offset, _, previous) in file.all_entries():
            slot = hash_ % file.shape.slot_count
            if previous != newest.get(slot, 0):
                text = f"entry {number} leads to {previous}, not to {newest.get(slot, 0)}"
                self._note(FindingKind.INDEX_CHAIN_BROKEN, file.name, text)
            newest[slot] = number
            if offset < log_first:
                continue
            count += 1
            if hash_ not in self._hashes(offset):
                text = f"entry {number} speaks of offset {offset}, which has no such key"
                self._note(FindingKind.INDEX_ENTRY_WRONG, file.name, text)
        for slot, number in newest.items():
            found = finish(file.newest(slot))
            if found != number:
                text = f"slot {slot} leads to {found}, not to {number}"
                self._note(FindingKind.INDEX_CHAIN_BROKEN, file.name, text)
        return count

    def _hashes(self, offset: int) -> set[int]:
        """Return the hashes of a record's keys; entries of one record follow each other."""
        if self._hashes_of[0] != offset:
            record = self._view.read(offset)
            keys = set() if record is None else {record.unique_key, *record.keys}
            topic = "" if record is None else record.topic
            self._hashes_of = (offset, {index_hash(topic, key) for key in keys if key})
        return self._hashes_of[1]
