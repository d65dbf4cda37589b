# SPDX-License-Identifier: Apache-2.0
"""Inspect a store's folder without a broker and without changing anything.

Folders written by RocketMQ can be inspected too, and so can a store that is in use: its files are
read as they are at that moment, and files that expire during the inspection are left out.
"""

import errno
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from statistics import mode
from typing import Final, NamedTuple

import msgspec

from cometmq.remoting.log import NO_LOG
from cometmq.remoting.message.record import MessageRecord, Scan
from cometmq.store.disk import Disk, DiskFile, read_whole
from cometmq.store.errors import CorruptStore, DiskError
from cometmq.store.folder import refuse_foreign
from cometmq.store.index.index_format import ENTRY, HEADER, IndexHeader, IndexShape
from cometmq.store.journal import JournalContent, read_journal
from cometmq.store.json_config import content_digest
from cometmq.store.layout import INDEX_DIGITS, Layout, file_name, is_file_name
from cometmq.store.log.log_scanner import LogScanner, Take, file_of_time, find_record
from cometmq.store.lookups import Lookups
from cometmq.store.os_disk import OsDisk
from cometmq.store.parts import Parts, build_parts
from cometmq.store.queues.deletions import ends_of, read_notes
from cometmq.store.queues.queue_table import queue_folders
from cometmq.store.reads import finish
from cometmq.store.recovery.checkpoint import Checkpoint, Progress, read_checkpoint
from cometmq.store.recovery.trust import find_floors
from cometmq.store.settings import StoreSettings

OPEN_ATTEMPTS: Final = 5


class QueueSummary(NamedTuple):
    """Summary of one consume queue."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    file_count: int


class IndexSummary(NamedTuple):
    """Summary of one index file."""

    name: str
    begin_timestamp: int
    end_timestamp: int
    begin_offset: int
    end_offset: int
    entry_count: int


class JournalSummary(NamedTuple):
    """Summary of one table in the journal."""

    table: str
    entry_count: int
    last_entry: int
    is_applied: bool
    """Whether a startup applies the entries; otherwise the table's file is newer or unrelated."""


class Damage(NamedTuple):
    """An invalid range of the log that is followed by more records."""

    path: str
    position: int
    physical_offset: int
    next_offset: int


class Inspection(NamedTuple):
    """Summary of a store."""

    root: str
    in_use_by: int | None  # process that holds the lock, 0 if its id is unknown
    was_clean: bool
    min_offset: int
    max_offset: int
    record_count: int
    commit_log_file_count: int
    commit_log_file_size: int
    checkpoint: Checkpoint
    progress: Progress | None
    queues: list[QueueSummary]
    index_files: list[IndexSummary]
    damages: list[Damage]
    journal: list[JournalSummary]
    journal_number: int
    """The number of the journal's last entry, of any table."""
    journal_damage: str


class StoreView:
    """The files of a store, opened for reading by `open_view`."""

    def __init__(self, root: str, *, disk: Disk, settings: StoreSettings) -> None:
        """Load the files; file sizes come from the folder, not from the settings."""
        self.disk = disk
        settings = msgspec.structs.replace(settings, store_path_root_dir=root)
        refuse_foreign(disk, Layout(settings))
        settings = _with_found_sizes(disk, settings)
        self.parts: Parts = build_parts(settings, disk=disk, clock_ms=lambda: 0, log=NO_LOG)
        layout = self.parts.layout
        self.in_use_by = disk.locked_by(layout.lock)
        self.was_clean = not disk.exists(layout.abort)
        self.checkpoint, self.progress = read_checkpoint(disk, layout)
        self.files = self.parts.commit_log.files
        self.faults: list[CorruptStore] = []
        self.damages: list[Damage] = []
        self.record_count = 0
        self.last_end: int | None = None
        """The offset at which the last call to `records` stopped."""
        try:
            self.files.load()
        except CorruptStore as error:
            self.faults.append(error)
        self.parts.queues.floors.load(disk, layout, lambda _: True)
        self.parts.queues.load(self.faults.append)
        progress = self.progress
        is_known = progress is not None and progress.is_newest(self.checkpoint)
        self.known_end = progress.offset if progress is not None and is_known else 0
        self.safe_end = self._safe_end()
        find_floors(self.parts, max(self.files.first, self.safe_end), self.files.end)

    def deletion_ends(self) -> Mapping[str, int]:
        """Return, for each recently deleted topic, the log offset before which its records need no
        queue.
        """
        if self.progress is None or not self.progress.is_newest(self.checkpoint):
            return {}
        return ends_of(read_notes(self.disk, self.parts.layout))

    def _safe_end(self) -> int:
        """Return the offset beyond which queues and index may lack entries."""
        files = self.files
        if self.was_clean and self.in_use_by is None:
            return files.end
        if self.known_end:
            return max(files.first, min(self.known_end, files.end))
        return self._end_by_time(self.checkpoint.min_timestamp)

    def _end_by_time(self, timestamp: int) -> int:
        """Return the offset of the first record stored after this time, by RocketMQ's rule."""
        scanner = LogScanner(self.files, file_of_time(self.files, timestamp), check_crc=False)
        for scan in scanner:
            if scan.store_timestamp > timestamp:
                return scan.physical_offset
        return scanner.offset

    def records(
        self, start: int | None = None, stop: int | None = None, take: Take | None = None
    ) -> Iterator[Scan]:
        """Yield the records between two record boundaries, skipping damaged ranges and those that
        `take` takes.

        Damaged ranges are added to `damages`. Past the safe end of a store in use, a gap is not
        damage: the next record is being written there.
        """
        offset: int | None = self.files.first if start is None else start
        while offset is not None and offset < (self.files.end if stop is None else stop):
            scanner = LogScanner(self.files, offset, check_crc=True, take=take)
            try:
                for scan in scanner:
                    if stop is not None and scan.physical_offset >= stop:
                        return
                    self.record_count += 1
                    self.parts.commit_log.set_end(scanner.offset)
                    yield scan
                # A blank ends the last file if a kill or a full disk kept the next one from being
                # created.
                self.parts.commit_log.set_end(scanner.offset)
                offset = self._follows(scanner.offset)
            except CorruptStore as error:
                self.faults.append(error)
                offset = self._follows(scanner.offset)
            except DiskError as error:
                offset = self._begin_after_deletion(error, scanner.offset)

    def _follows(self, offset: int) -> int | None:
        """Record the damage at this offset; return the offset of the next record, or None."""
        files = self.files
        self.last_end = offset
        if self.in_use_by is not None and offset >= self.safe_end:
            return None
        found = find_record(files, offset + 1)
        if found is None:
            return None
        position = (offset - files.first) % files.file_size
        path = files.file_at(offset).path
        self.damages.append(Damage(path, position, offset, found.physical_offset))
        return found.physical_offset

    def _begin_after_deletion(self, error: DiskError, offset: int) -> int:
        """Return the new start of the log if a broker has deleted the file being read; else raise
        `error`.
        """
        names = [name for name in self.disk.names(self.files.folder) if is_file_name(name)]
        begin = min(map(int, names), default=0)
        if not self.is_deletion(error) or begin <= offset:
            raise error
        self.files.forget_first((begin - self.files.first) // self.files.file_size)
        return begin

    def is_deletion(self, error: DiskError) -> bool:
        """Return whether this error only means that the running broker has deleted a file."""
        return self.in_use_by is not None and error.errno == errno.ENOENT

    def measure_queues(self, log_end: int) -> None:
        """Find the first and last offset of each queue, given the end of the log."""
        for queue in self.parts.queues.queues.values():
            queue.measure(self.files.first, log_end)

    def read(self, physical_offset: int) -> MessageRecord | None:
        """Return the record at this offset with its body; None if no record begins there."""
        try:
            return finish(Lookups(self.parts).read_record(physical_offset))
        except DiskError as error:
            if self.is_deletion(error):
                return None
            raise


def open_view(
    root: str, *, disk: Disk | None = None, settings: StoreSettings | None = None
) -> StoreView:
    """Open a store for reading; retry if its broker deletes files at the same time."""
    disk = disk if disk is not None else OsDisk(read_only=True)
    for attempt in range(1, OPEN_ATTEMPTS + 1):
        try:
            return StoreView(root, disk=disk, settings=settings or StoreSettings())
        except DiskError as error:
            if error.errno != errno.ENOENT or attempt == OPEN_ATTEMPTS:
                raise
    raise AssertionError


def inspect_store(
    root: str, *, disk: Disk | None = None, settings: StoreSettings | None = None
) -> Inspection:
    """Read a whole store and summarise it."""
    view = open_view(root, disk=disk, settings=settings)
    for _ in view.records():
        pass
    view.measure_queues(view.parts.commit_log.end)
    parts = view.parts
    journal = _read_journal(view)
    return Inspection(
        root=root,
        in_use_by=view.in_use_by,
        was_clean=view.was_clean,
        min_offset=parts.commit_log.min_offset,
        max_offset=parts.commit_log.end,
        record_count=view.record_count,
        commit_log_file_count=len(view.files.files),
        commit_log_file_size=view.files.file_size,
        checkpoint=view.checkpoint,
        progress=view.progress,
        queues=[
            QueueSummary(
                queue.topic,
                queue.queue_id,
                queue.min_offset,
                queue.max_offset,
                len(queue.files.files),
            )
            for _, queue in sorted(parts.queues.queues.items())
        ],
        index_files=_index_summaries(view),
        damages=[damage for damage in view.damages if damage.physical_offset < view.safe_end],
        journal=_journal_summaries(view, journal),
        journal_number=journal.number,
        journal_damage=journal.damage,
    )


def _index_summaries(view: StoreView) -> list[IndexSummary]:
    """Summarise the index files from their headers, which do not depend on the configured shape.

    The header of the growing file lags behind its entries, but the checkpoint counts them.
    """
    folder, settings = view.parts.layout.index, view.parts.settings
    shape = IndexShape(settings.max_hash_slot_num, settings.max_index_num)
    summaries = []
    for name in view.disk.names(folder):
        if not is_file_name(name, INDEX_DIGITS):
            continue
        file = view.disk.open(f"{folder}/{name}")
        header = IndexHeader(*HEADER.unpack(file.read(0, HEADER.size).ljust(HEADER.size, b"\0")))
        progress = view.progress
        if progress is not None and progress.index_name == name:
            header = _with_count(header, progress.index_count, file, shape)
        summaries.append(IndexSummary(name, *header[:4], max(0, header.next_number - 1)))
    return summaries


def _with_count(header: IndexHeader, count: int, file: DiskFile, shape: IndexShape) -> IndexHeader:
    """Return the header, advanced to the entry count of the checkpoint if the header lags."""
    if count <= header.next_number:
        return header
    header = header._replace(next_number=count)
    if file.size() != shape.file_size:
        return header  # it is unknown where the entries are
    _, offset, seconds, _ = ENTRY.unpack(file.read(shape.entry_position(count - 1), ENTRY.size))
    timestamp = header.begin_timestamp + seconds * 1000
    return header._replace(end_timestamp=timestamp, end_offset=offset)


def _read_journal(view: StoreView) -> JournalContent:
    """Read the journal; retry if a running broker deletes a file meanwhile."""
    for _ in range(OPEN_ATTEMPTS):
        try:
            return read_journal(view.disk, view.parts.layout.journal)
        except DiskError as error:
            if not view.is_deletion(error):
                raise
    return JournalContent()


def _journal_summaries(view: StoreView, journal: JournalContent) -> list[JournalSummary]:
    summaries = []
    for table in sorted({name for entry in journal.entries for name in entry.changes}):
        data = read_whole(view.disk, f"{view.parts.layout.config}/{table}")
        base = journal.base(table, content_digest(data) if data else "")
        entries = journal.entries_of(table)
        count, last = len(entries), entries[-1].number
        summaries.append(JournalSummary(table, count, last, base is not None))
    return summaries


def _with_found_sizes(disk: Disk, settings: StoreSettings) -> StoreSettings:
    """Replace the configured file sizes with those found in the folder."""
    root = os.path.expanduser(settings.store_path_root_dir)  # noqa: PTH111  # see os_disk.py
    log_folder = settings.store_path_commit_log or f"{root}/commitlog"
    changes: dict[str, object] = {"store_path_root_dir": root}
    starts = [int(name) for name in disk.names(log_folder) if is_file_name(name)]
    if starts:
        changes["mapped_file_size_commit_log"] = _log_file_size(disk, log_folder, starts)
    sizes = [
        disk.open(path).size() for path in islice(_queue_files(disk, f"{root}/consumequeue"), 100)
    ]
    if sizes:
        changes["mapped_file_size_consume_queue"] = mode(sizes)
    return msgspec.structs.replace(settings, **changes)


def _log_file_size(disk: Disk, folder: str, starts: list[int]) -> int:
    """Return the most common size that fits the file names; a damaged file may have any size."""
    sizes = Counter(disk.open(f"{folder}/{file_name(start)}").size() for start in starts)
    for size, _ in sizes.most_common():
        if size and not any(start % size for start in starts):
            return size
    return max(sizes)


def _queue_files(disk: Disk, folder: str) -> Iterator[str]:
    for _, _, queue in queue_folders(disk, folder, []):
        yield from (f"{queue}/{name}" for name in disk.names(queue) if is_file_name(name))
