# SPDX-License-Identifier: Apache-2.0
"""A store's hash index: a sequence of files; new keys are added to the newest.

Compatibility: as in RocketMQ, a new file takes the previous file's end as its own begin and end
until it gets its first entry; files are named after their local creation time.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import takewhile
from operator import attrgetter
from typing import Final, NamedTuple

from cometmq.remoting.message.flags import index_hash
from cometmq.store.disk import Disk
from cometmq.store.errors import CorruptStore
from cometmq.store.index.index_file import Check, IndexFile, IndexFlush, IndexSnapshot
from cometmq.store.index.index_format import MERGED_COUNT, IndexHeader, IndexShape, KeyedRows, Keys
from cometmq.store.layout import INDEX_DIGITS, Layout, is_file_name
from cometmq.store.reads import Lookup
from cometmq.store.settings import StoreSettings

ROWS_MAX: Final = 2_048
"""Number of keys that are added at once on the event loop: 5 ms."""
NATIVE_PER_ROW: Final = 8
"""Number of keys that native code adds in the time in which Python adds one."""
BACKLOG_COUNT_MAX: Final = 65_536
"""Above this number of queued keys, each batch adds as many keys as it queues, however long that
takes. Four messages with properties full of keys have that many.
"""
UNWRITTEN_BYTES_MAX: Final = 16 << 20
"""Above this size of the entries in memory, the loop itself writes the oldest ones.

Usually spills write them earlier, unless a checkpoint or another job runs for long. A message of 32
KiB may have 16,000 keys, whose entries have 320 KB; one client sends 100 MB of entries in a second.
The time for the writes is charged to the senders, like that of a long commit. Releasing 16 MiB
takes 2 ms.
"""


class IndexView(NamedTuple):
    """The state of all files, for a job that compares their bytes."""

    files: Sequence[IndexSnapshot]
    cut_count: int
    """How often entries have been removed from the end of the index."""


class Index:
    """Adds keys to the index files of a store, and searches them."""

    def __init__(
        self, disk: Disk, layout: Layout, settings: StoreSettings, clock_ms: Callable[[], int]
    ) -> None:
        self._disk = disk
        self._layout = layout
        self._clock_ms = clock_ms
        self._shape = IndexShape(settings.max_hash_slot_num, settings.max_index_num)
        self._backlog: list[Keys] = []  # never holds empty `Keys`
        self._backlog_count = 0  # keys in the backlog
        self._linked_count = 0  # keys of the backlog's first element that are in the files
        self._cut_count = 0
        self.files: list[IndexFile] = []

    def load(self, on_corrupt: Callable[[CorruptStore], None] | None = None) -> list[str]:
        """Read the headers of the files in the store's folder; return the paths that were ignored.

        Raise CorruptStore for an invalid file, or pass the error to `on_corrupt` and continue.
        """
        ignored = []
        for name in self._disk.names(self._layout.index):
            if not is_file_name(name, INDEX_DIGITS):
                ignored.append(f"{self._layout.index}/{name}")
                continue
            file = self._disk.open(f"{self._layout.index}/{name}")
            try:
                self.files.append(IndexFile.load(name, file, self._shape))
            except CorruptStore as error:
                if on_corrupt is None:
                    raise
                on_corrupt(error)
        return ignored

    @property
    def end_timestamp(self) -> int:
        """The store time of the newest indexed message."""
        if self._backlog:
            last = self._backlog[-1]
            return last.timestamp(last.count - 1)
        return self.files[-1].header.end_timestamp if self.files else 0

    @property
    def end_offset(self) -> int:
        """The physical offset of the newest indexed message."""
        if self._backlog:
            last = self._backlog[-1]
            return last.offset(last.count - 1)
        return self.files[-1].header.end_offset if self.files else 0

    def remember(self, batch: Iterable[Keys], *, is_large: bool = False) -> None:
        """Queue the keys of messages, in log order, and add up to ROWS_MAX queued keys to the
        files.

        With `is_large`, only queue them. While `is_behind`, the caller calls `catch_up` in later
        turns of the loop.

        Each addition has a fixed cost equal to that of three entries, so small additions are
        merged.
        """
        backlog = self._backlog
        brought = 0  # rows
        for keys in batch:
            count = keys.count
            if not count:
                continue
            brought += -(-count // _per_row(keys))
            if not backlog or not backlog[-1].absorb(keys):
                backlog.append(keys)
            self._backlog_count += count
        if self._backlog_count >= MERGED_COUNT and not is_large:
            is_full = self._backlog_count > BACKLOG_COUNT_MAX
            self.catch_up(max(ROWS_MAX, brought) if is_full else ROWS_MAX)

    @property
    def is_behind(self) -> bool:
        """Whether enough keys are queued to add them now."""
        return self._backlog_count >= MERGED_COUNT

    def catch_up(self, rows_max: int = sys.maxsize) -> bool:
        """Add the queued keys to the files; return whether all have been added.

        Stop after `rows_max` keys of Python's, or NATIVE_PER_ROW times as many keys that are hashed
        natively. After a DiskError, the remaining keys stay queued.
        """
        backlog = self._backlog
        while backlog:
            keys = backlog[0]
            per_row = _per_row(keys)
            while self._linked_count < keys.count:
                if rows_max <= 0:
                    return False
                if not self.files or self.files[-1].is_full:
                    self._begin_file()
                count = self.files[-1].add(keys, self._linked_count, rows_max * per_row)
                self._linked_count += count
                self._backlog_count -= count
                self._write_excess()
                rows_max -= -(-count // per_row)
            self._linked_count = 0
            del backlog[0]
        return True

    @property
    def unwritten_bytes(self) -> int:
        """The size of the entries that exist only in memory."""
        return sum(file.unwritten_bytes for file in self._growing())

    def _growing(self) -> Iterator[IndexFile]:
        """Yield the files whose slots are in memory, newest first: no older file grows."""
        return takewhile(attrgetter("is_growing"), reversed(self.files))

    def _write_excess(self) -> None:
        """Write the oldest entries if too many are in memory."""
        excess = self.unwritten_bytes - UNWRITTEN_BYTES_MAX
        if excess > 0:
            for file in reversed(list(self._growing())):
                if excess > 0 and file.unwritten_bytes:
                    excess -= file.write_oldest(excess)

    def _begin_file(self) -> None:
        now = datetime.fromtimestamp(self._clock_ms() / 1000, tz=UTC).astimezone()
        name = f"{now:%Y%m%d%H%M%S}{now.microsecond // 1000:03d}"
        header = IndexHeader()
        if self.files:
            last = self.files[-1]
            name = max(name, str(int(last.name) + 1))
            end = (last.header.end_timestamp, last.header.end_offset)
            header = IndexHeader(end[0], end[0], end[1], end[1])
        path = f"{self._layout.index}/{name}"
        file = self._disk.create(
            path, self._shape.file_size, temporary=self._layout.temporary(path)
        )
        index_file = IndexFile(name, file, self._shape, header)
        index_file.begin()
        self.files.append(index_file)

    def plan_flush(self, *, is_closing: bool = False) -> list[IndexFlush]:
        """Plan the writes that bring all entries to the disk."""
        return [
            file.plan_flush(is_complete=is_closing or file is not self.files[-1] or file.is_full)
            for file in self.files
            if file.is_growing and file.unflushed_count > 0
        ]

    def flush_full(self, kept_count: int) -> None:
        """Write and sync all growing files but the newest ones, to free their slots; may block."""
        flushes = [it.plan_flush(is_complete=True) for it in list(self._growing())[kept_count:]]
        for flush in flushes:
            flush.run()
        self.mark_flushed(flushes)

    def plan_spill(self) -> list[IndexFlush]:
        """Plan the writes of the entries that exist only in memory, without slots and headers."""
        return [file.plan_spill() for file in self.files if file.is_growing]

    def mark_flushed(self, flushes: Iterable[IndexFlush]) -> None:
        """Release the entries that the flushes have written, and close files that are full."""
        by_file = {flush.file: flush for flush in flushes}
        for file in self.files:
            flush = by_file.get(file.file)
            if flush is None:
                continue
            file.mark_flushed(flush)
            has_ended = file.is_full or file is not self.files[-1]
            if flush.header is not None and has_ended and not file.unflushed_count:
                file.rest()

    def mark_failed(self, flushes: Iterable[IndexFlush]) -> None:
        """Record that the content of failed flushes may be missing from the disk."""
        by_file = {flush.file: flush for flush in flushes}
        for file in self.files:
            if file.file in by_file:
                file.mark_failed(by_file[file.file])

    def recover(
        self, *, name: str, written_count: int, offset_end: int, was_clean: bool = False
    ) -> None:
        """Keep the entries of records before `offset_end`; the caller adds the rest again.

        `name` and `written_count` identify the file being filled and its number of entries, as
        recorded by the checkpoint at which recovery starts. They are preferred to the headers of
        files, which may be damaged.
        """
        self._cut_count += 1
        is_known = any(file.name == name for file in self.files)
        while self.files:
            file = self.files[-1]
            if not (file.name > name if is_known else file.begins_at_or_after(offset_end)):
                break
            self.files.pop()
            file.file.close()
            self._disk.remove(file.file.path)
        if not self.files:
            return
        last = self.files[-1]
        if written_count >= self._shape.entry_count if is_known else last.is_full:
            # Its header may be damaged.
            last.header = last.header._replace(next_number=self._shape.entry_count)
            if last.header.end_offset < offset_end:
                return
        count = written_count if is_known else 0
        last.recover(written_count=count, offset_end=offset_end, was_clean=was_clean)

    def let_rest(self, file: IndexFile) -> None:
        """Add no more keys to a file; if it grows, the next checkpoint completes it."""
        if file is self.files[-1]:
            file.flushed_count = 0
            self._begin_file()

    @property
    def is_completing(self) -> bool:
        """Whether a file that gets no more keys needs a checkpoint to complete it."""
        return any(it is not self.files[-1] for it in self._growing())

    def replace(self, file: IndexFile, rebuilt: Sequence[IndexFile]) -> None:
        """Use these files instead of one that does not grow, and is not the last."""
        at = self.files.index(file)
        self.files[at : at + 1] = rebuilt
        file.file.close()

    def visit(self, topic: str, key: str, begin_ms: int, end_ms: int, check: Check) -> Lookup[None]:
        """Check the candidate records of a key, newest first, until `check` ends the search.

        An entry that moves from memory to a file during the search may be checked twice.
        """
        for keys in self._backlog[::-1]:
            for offset in keys.find(topic, key):
                if not (yield from check(offset)):
                    return
        hash_ = index_hash(topic, key)
        for file in self.files[::-1]:
            if file.header.next_number <= 1 or not file.overlaps(begin_ms, end_ms):
                continue
            if not (yield from file.visit(hash_, begin_ms, end_ms, check)):
                return

    def remove_before(self, offset: int) -> list[str]:
        """Drop files whose records all precede the start of the log; return their paths."""
        paths = []
        while len(self.files) > 1 and self.files[0].header.end_offset < offset:
            file = self.files.pop(0)
            file.file.close()
            paths.append(file.file.path)
        return paths

    def view(self) -> IndexView:
        """Return the present state, for a job that compares the files with the log."""
        return IndexView([file.snapshot() for file in self.files], self._cut_count)

    def position(self) -> tuple[str, int]:
        """Return the name and entry count of the file being filled, for the checkpoint."""
        return (self.files[-1].name, self.files[-1].header.next_number) if self.files else ("", 0)


def _per_row(keys: Keys) -> int:
    return 1 if isinstance(keys, KeyedRows) else NATIVE_PER_ROW
