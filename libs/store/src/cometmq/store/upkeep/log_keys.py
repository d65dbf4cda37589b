# SPDX-License-Identifier: Apache-2.0
"""The keys of the log's records, in the order in which the index has them.

RocketMQ 5 also indexes the tag of each message, after its keys. Its entries are intact; a store
that both have written has them for some of the messages.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from cometmq.remoting.message.flags import index_hash
from cometmq.remoting.message.properties import parse_properties
from cometmq.remoting.message.record import Scan
from cometmq.store.errors import CorruptStore
from cometmq.store.index.index_format import Entry
from cometmq.store.log.file_sequence import FileSequence
from cometmq.store.log.log_scanner import LogScanner, find_record, first_record
from cometmq.store.upkeep.entry_check import READ_BYTES, RECORDS_PER_PAUSE
from cometmq.store.writing.append import ROLLBACK
from cometmq.store.writing.dispatcher import tag_and_keys

NEAR_BYTES: Final = 1 << 20
"""Up to this distance, keys that are skipped are read."""
TAGS_MAX: Final = 64
"""Number of records, read last, whose tags may have an entry next: those without keys between two
records with keys."""


class KeyRow(NamedTuple):
    """One key of a record: what its entry in the index says, and the record's size."""

    hash_: int
    offset: int
    timestamp: int
    size: int


def keys_of(scan: Scan) -> list[KeyRow]:
    """Return the keys of a record that the index has."""
    if scan.sys_flag & ROLLBACK == ROLLBACK:
        return []
    place = scan.physical_offset, scan.store_timestamp, scan.size
    _, keys = tag_and_keys(scan.properties)
    return [KeyRow(index_hash(scan.topic, key), *place) for key in keys]


def tag_row(scan: Scan) -> KeyRow | None:
    """Return the tag of a record as an index of RocketMQ 5 has it; None if it has none."""
    tag = parse_properties(str(scan.properties, "utf-8", "replace")).get("TAGS")
    if not tag or scan.sys_flag & ROLLBACK == ROLLBACK:
        return None
    hash_ = index_hash(scan.topic, f"T#{tag}")
    return KeyRow(hash_, scan.physical_offset, scan.store_timestamp, scan.size)


class LogKeys:
    """Reads the keys of the records of a log, up to an offset; blocks."""

    def __init__(self, files: FileSequence, end: int, pause: Callable[[], None]) -> None:
        self.files = files
        self._pause = pause
        self.is_begun = not files.first
        """Whether a key was found in the index, so that the keys of all later entries are in the
        log.
        """
        self._end = end
        self._rows: deque[KeyRow] = deque()
        self._tagged: deque[Scan] = deque(maxlen=TAGS_MAX)
        self._read_count = 0
        self._seek(files.first)

    def _seek(self, offset: int) -> None:
        self._scanner = LogScanner(
            self.files, offset, check_crc=False, end=self._end, first_bytes=READ_BYTES
        )
        self._scans: Iterator[Scan] = iter(self._scanner)

    def resume(self, files: FileSequence, end: int) -> None:
        """Continue with the present files and end of the log."""
        offset = self._rows[0].offset if self._rows else self._scanner.offset
        self.files, self._end = files, end
        if offset < files.first:
            self._rows.clear()
            self.is_begun = False
        self._seek(max(self._scanner.offset, files.first))

    def begin_behind(self, entry: Entry) -> None:
        """Continue with the key that follows the one of this entry, if the entry is intact."""
        row = self.find(*entry[:2])
        if row is not None:
            self.skip_to(row)

    def peek(self) -> KeyRow | None:
        """Return the next key; None at the end of the log."""
        while not self._rows:
            if not self._read():
                return None
        return self._rows[0]

    def _read(self) -> bool:
        """Read the keys of the next intact record; return whether there is one."""
        try:
            scan = next(self._scans, None)
        except CorruptStore:  # the damaged end of a file
            scan = None
        if scan is not None:
            self._read_count += 1
            if self._read_count % RECORDS_PER_PAUSE == 0:
                self._pause()
            self._rows.extend(keys_of(scan))
            self._tagged.append(scan)
            return True
        if self._scanner.offset >= self._end:
            return False
        found = find_record(self.files, self._scanner.offset + 1)
        self._seek(self._end if found is None else min(found.physical_offset, self._end))
        return self._scanner.offset < self._end

    def take_tag(self, entry: Entry) -> KeyRow | None:
        """Return the tag that an entry of RocketMQ 5 stands for, once; None if it is none."""
        for scan in self._tagged:
            if scan.physical_offset == entry[1]:
                row = tag_row(scan)
                if row is None or row.hash_ != entry[0]:
                    return None
                self._tagged.remove(scan)
                return row
        return None

    def drop_next(self, *, is_match: bool = False) -> None:
        """Go on to the key that follows the next one; `is_match` says that the index has it."""
        self._rows.popleft()
        self.is_begun = self.is_begun or is_match

    def take(self, count: int) -> list[KeyRow]:
        """Return up to `count` keys, and go on to the one that follows them."""
        rows: list[KeyRow] = []
        while len(rows) < count and self.peek() is not None:
            rows.append(self._rows.popleft())
        return rows

    def put_back(self, rows: Sequence[KeyRow]) -> None:
        """Go back to the first of these keys, which are the last ones that were dropped."""
        self._rows.extendleft(reversed(rows))

    def find(self, hash_: int, offset: int) -> KeyRow | None:
        """Return the key with this hash of the record at an offset; None if there is none."""
        if not self.files.first <= offset < self._end:
            return None
        scan = first_record(self.files, offset)
        rows = [] if scan is None else keys_of(scan)
        return next((row for row in rows if row.hash_ == hash_), None)

    def has_passed(self, row: KeyRow) -> bool:
        """Return whether a key comes before the next one."""
        key = self.peek()
        if key is None or row.offset != key.offset:
            return key is None or row.offset < key.offset
        return row not in self._rows

    def skip_to(self, row: KeyRow) -> list[KeyRow]:
        """Go on to the key that follows `row`; return the keys before `row` that were read."""
        skipped: list[KeyRow] = []
        self.is_begun = True
        if row.offset - self._scanner.offset > NEAR_BYTES:
            self._rows.clear()
            self._seek(row.offset)
        while (key := self.peek()) is not None and key.offset <= row.offset:
            self._rows.popleft()
            if key == row:
                break
            skipped.append(key)
        return skipped
