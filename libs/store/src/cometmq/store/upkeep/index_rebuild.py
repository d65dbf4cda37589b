# SPDX-License-Identifier: Apache-2.0
"""Rebuild damaged index files from the log.

A file has the keys of the records between the last entry of the file before and the first entry of
the files behind. They are linked into a new file, part of the log by part, which then takes the
place of the damaged one. If the log has more keys than fit, because indexing was turned off for a
while, another file follows it. A file that grows is rebuilt once new keys go to another one.

Records whose bytes are damaged keep the entries that the old file has: another member of a broker
group may repair them.
"""

from collections.abc import Iterator, Sequence
from copy import copy
from functools import partial
from typing import Final

from cometmq.remoting.message.record import Scan
from cometmq.store.errors import CorruptStore, DiskError
from cometmq.store.index.index_file import IndexFile
from cometmq.store.index.index_format import (
    Entry,
    HashedKey,
    HashedKeys,
    IndexHeader,
    IndexShape,
    Keys,
)
from cometmq.store.log.checksums import spans
from cometmq.store.log.damage import DamagedRange, merged, overlaps
from cometmq.store.log.log_scanner import LogScanner, find_record
from cometmq.store.parts import Parts
from cometmq.store.upkeep.index_check import (
    Compared,
    IndexWalk,
    KeyReader,
    LogPart,
    RecordKeys,
    keys_of,
    read_entries,
)
from cometmq.store.upkeep.jobs import Step, with_result
from cometmq.store.writing.runs import RecordRange

PART_BYTES: Final = 4 << 20
"""The part of the log that is read at once: 10 ms, or 0.2 s without native code."""
STEP_MS: Final = 500
"""How long one job reads parts: the scrubber's other jobs wait for it."""

SAMPLE_COUNT: Final = 1_000
"""Number of entries in which the borders of a file, and tags, are searched."""

UNWRITTEN_BYTES_MAX: Final = 8 << 20
RECORDS_PER_PAUSE: Final = 64


class IndexRepair:
    """Compares the index of one store with the log, and rebuilds damaged files; for the thread that
    owns the store.

    The scrubber begins a walk with each round through the log. A file in which a reader has found
    damage is rebuilt at once.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._walk = IndexWalk(parts.pause)
        self._rebuild: IndexRebuild | None = None
        self._failed: set[str] = set()
        """Names of files that could not be rebuilt before the next walk."""
        self.compared_count = 0
        self.repaired_count = 0

    @property
    def has_ended(self) -> bool:
        """Whether the walk has compared all files."""
        return self._walk.has_ended

    def begin(self) -> None:
        """Begin the walk with the first file."""
        self._walk.begin()
        self._failed.clear()

    def step(self, end: int, count_max: int) -> Step:
        """Return the next step: compare up to `count_max` entries of records before `end`."""
        checksums, log = self._parts.checksums, self._parts.commit_log
        generation, view = checksums.generation, self._parts.index.view()
        # The loop may drop files while the step runs.
        part = LogPart(copy(log.files), end, log.end, checksums)

        def take(found: Compared | None, _error: Exception | None) -> None:
            """Note what is wrong; `urgent_step` rebuilds the files."""
            count, damaged = found or (0, ())
            self.compared_count += count
            if generation == checksums.generation:
                for file, fault in damaged:
                    file.fault = fault

        return with_result("compare-index", partial(self._walk.step, view, part, count_max), take)

    def urgent_step(self) -> "IndexRebuild | None":
        """Return the next step of the rebuild of the first damaged file; None if there is none."""
        index = self._parts.index
        for file in index.files:
            if not file.fault or file.name in self._failed:
                continue
            try:
                index.let_rest(file)
            except DiskError as error:  # the disk is full
                self._fail(file, error)
                continue
            if file.is_growing:
                return None
            if self._rebuild is None or not self._rebuild.is_of(file):
                self._parts.log.warning("index.damaged", path=file.file.path, error=file.fault)
                end = self._parts.commit_log.confirm_offset
                self._rebuild = IndexRebuild(self, self._parts, file, end)
            return self._rebuild
        return None

    def note_rebuilt(self, rebuild: "IndexRebuild") -> None:
        """Use the files of a rebuild that has ended."""
        self._rebuild = None
        index, file, log = self._parts.index, rebuild.file, self._parts.log
        if rebuild.error is not None:
            self._fail(file, rebuild.error)
        elif rebuild.is_in_place and file in index.files:
            index.replace(file, rebuild.files)
            self.repaired_count += 1
            count = sum(it.header.next_number - 1 for it in rebuild.files)
            log.info("index.repaired", path=file.file.path, count=count)

    def _fail(self, file: IndexFile, error: DiskError) -> None:
        self._failed.add(file.name)
        self._parts.log.warning("index.unrepaired", path=file.file.path, error=str(error))


class IndexRebuild:
    """The rebuild of one file; each run is one part of it."""

    name = "rebuild-index"

    def __init__(self, repair: IndexRepair, parts: Parts, file: IndexFile, end: int) -> None:
        self._repair = repair
        self._parts = parts
        self._log_files = copy(parts.commit_log.files)
        self._end = end
        self._generation = parts.checksums.generation
        files = parts.index.files
        at = files.index(file)
        self._before, self._behind = files[at - 1] if at else None, files[at + 1 :]
        self._has_tags = False
        self._rows: list[HashedKey] = []
        self._is_cut = False  # the file is full; the rebuild of the next one continues
        self._steps = self._run()
        self.file = file
        self.files: list[IndexFile] = []
        """The new files."""
        self.is_in_place = False
        self.error: DiskError | None = None
        self._has_ended = False

    def is_of(self, file: IndexFile) -> bool:
        """Return whether this file is rebuilt, from a log that has not been changed since."""
        return self.file is file and self._generation == self._parts.checksums.generation

    def run(self) -> None:
        """Add the keys of the next parts of the log; blocks."""
        monotonic_ms = self._parts.monotonic_ms
        stop_ms = monotonic_ms() + STEP_MS
        try:
            while not self._has_ended:
                self._has_ended = next(self._steps, True)
                if monotonic_ms() >= stop_ms:
                    break
        except DiskError as error:
            self.error, self._has_ended = error, True

    def done(self, _error: Exception | None) -> None:
        """Report the end to the store."""
        if self._has_ended:
            self._repair.note_rebuilt(self)

    def _run(self) -> Iterator[bool]:
        reader = KeyReader(self._log_files, self._end)
        at, stop = self._log_files.first, self._end
        before = None if self._before is None else _proven(self._before, reader, is_first=False)
        behind = next((it for it in (_proven(it, reader) for it in self._behind) if it), None)
        sample = _sample(self.file)
        self._has_tags = any(
            (keys := reader.at(entry[1])) is not None and keys.tag == entry[0] for entry in sample
        )
        if before is not None:
            hash_, keys = before
            at = keys.offset + keys.size
            hashes = self._hashes(keys)
            self._add(keys, hashes[hashes.index(hash_) + 1 :] if hash_ in hashes else ())
        if behind is not None:
            stop = behind[1].offset
        while at < stop and not self._is_cut:
            at = self._add_part(at, stop, PART_BYTES)
            self._link_rows()
            yield False
        if behind is not None:
            hash_, keys = behind
            hashes = self._hashes(keys)
            self._add(keys, hashes[: hashes.index(hash_)] if hash_ in hashes else ())
        self._complete()

    def _hashes(self, keys: RecordKeys) -> tuple[int, ...]:
        has_tag = self._has_tags and keys.tag is not None
        return (*keys.keys, keys.tag) if has_tag and keys.tag is not None else keys.keys

    def _add(self, keys: RecordKeys, hashes: Sequence[int]) -> None:
        self._rows += [(hash_, keys.offset, keys.timestamp) for hash_ in hashes]

    def _add_part(self, at: int, stop: int, size: int) -> int:
        """Add the keys of the next part of the log; return where the rest begins."""
        files, end = self._log_files, min(at + size, stop)
        checks = (self._parts.checksums.check(span) for span in spans(files, at, end))
        damaged = merged(part for check in checks for part in check.damaged)
        is_plain = self._parts.read_range is not None and not damaged and not self._has_tags
        scanner = LogScanner(
            files, at, check_crc=False, end=end, take=self._take if is_plain else None
        )
        try:
            for number, scan in enumerate(scanner):
                self._add_record(scan, damaged)
                if number % RECORDS_PER_PAUSE == 0:
                    self._parts.pause()
        except CorruptStore:  # the damaged end of a file
            pass
        if scanner.offset > at:
            return scanner.offset
        found = find_record(files, at)
        if found is not None and found.physical_offset == at and end < stop:
            return self._add_part(at, stop, found.size)  # it is larger than the part
        rest = stop if found is None else min(max(found.physical_offset, at + 1), stop)
        self._keep_entries(at, rest)
        return rest

    def _add_record(self, scan: Scan, damaged: Sequence[DamagedRange]) -> None:
        if overlaps(damaged, scan.physical_offset, scan.size):
            self._keep_entries(scan.physical_offset, scan.physical_offset + 1)
        else:
            keys = keys_of(scan)
            self._add(keys, self._hashes(keys))

    def _keep_entries(self, begin: int, end: int) -> None:
        """Add the entries of the old file for records in a part of the log that is damaged."""
        file, shape = self.file, self.file.shape
        begin_ms = file.header.begin_timestamp
        rows = [
            (hash_, offset, begin_ms + seconds * 1000)
            for _, (hash_, offset, seconds, _) in shape.entries(file.file, 1, shape.entry_count)
            if begin <= offset < end and (offset or hash_)
        ]
        self._rows += rows

    def _take(self, data: bytes, position: int, base: int) -> int:
        """Add the keys of plain records; return their total size."""
        assert self._parts.read_range is not None
        fields = self._parts.read_range(
            data, position, base,
            check_crc=False, is_indexing=True, delayed=self._parts.queues.delayed,
        )  # fmt: skip
        if fields is None or not fields[1]:
            return 0
        found = RecordRange._make(fields)
        self._link_rows()
        self._link(found.keys)
        self._parts.pause()
        return found.size

    def _link_rows(self) -> None:
        """Link the keys that Python has read since the last call."""
        rows, self._rows = self._rows, []
        self._link(HashedKeys(rows))

    def _link(self, keys: Keys) -> None:
        start = 0
        while start < keys.count and not self._is_cut:
            if not self.files or self.files[-1].is_full:
                self._begin_file(self.file.shape)
                continue
            start += self.files[-1].add(keys, start)
            for file in self.files:
                if file.unwritten_bytes > UNWRITTEN_BYTES_MAX:
                    file.write_oldest(file.unwritten_bytes)

    def _begin_file(self, shape: IndexShape) -> None:
        if self.files and self.files[-1].is_growing:
            self._flush(self.files[-1])
        name = str(int(self.file.name) + len(self.files))
        behind = self._behind[0]
        if self.files and (behind.fault or behind.name == name):
            self._is_cut = True
            return
        path = self._parts.layout.temporary(f"{self._parts.layout.index}/{name}")
        file = self._parts.disk.create(path, shape.file_size, temporary=f"{path}.empty.new")
        self.files.append(IndexFile(name, file, shape, IndexHeader()))
        self.files[-1].begin()

    def _flush(self, file: IndexFile) -> None:
        flush = file.plan_flush(is_complete=True)
        flush.run()
        file.mark_flushed(flush)
        file.rest()

    def _complete(self) -> None:
        """Put the new files in the place of the old one."""
        self._link_rows()
        if self.files and self.files[-1].is_growing:
            self._flush(self.files[-1])
        self.is_in_place = self._parts.checksums.do_if_current(self._generation, self._rename)

    def _rename(self) -> None:
        disk, folder, renamed = self._parts.disk, self._parts.layout.index, []
        for file in self.files:
            file.file.close()
            path = f"{folder}/{file.name}"
            disk.rename(file.file.path, path)
            renamed.append(IndexFile.load(file.name, disk.open(path), file.shape))
        if not renamed:
            disk.remove(self.file.file.path)
        disk.sync_folder(folder)
        self.files = renamed


def _sample(file: IndexFile, *, is_first: bool = True) -> Sequence[Entry]:
    """Return the first or the last entries of a file; blocks."""
    end = file.written_count
    number = 1 if is_first else max(1, end - SAMPLE_COUNT)
    return read_entries(file.file, file.shape, number, min(end - number, SAMPLE_COUNT))


def _proven(
    file: IndexFile, reader: KeyReader, *, is_first: bool = True
) -> tuple[int, RecordKeys] | None:
    """Return the first or the last entry of a file that fits its record; None if there is none."""
    sample = _sample(file, is_first=is_first)
    for entry in sample if is_first else reversed(sample):
        keys = reader.at(entry[1])
        if keys is not None and entry[0] in keys.hashes:
            return entry[0], keys
    return None
