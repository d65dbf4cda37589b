# SPDX-License-Identifier: Apache-2.0
"""The index hashes of records, read in the order of an index, which is usually that of the log."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from cometmq.remoting.message.flags import index_hash
from cometmq.remoting.message.properties import parse_properties
from cometmq.remoting.message.record import Scan
from cometmq.store.errors import CorruptStore, DiskError
from cometmq.store.log.file_sequence import FileSequence
from cometmq.store.log.log_scanner import LogScanner
from cometmq.store.writing.append import ROLLBACK
from cometmq.store.writing.dispatcher import tag_and_keys

NEAR_BYTES: Final = 16 << 10
"""Skipping records over this distance takes less time than looking up one record."""


class RecordKeys(NamedTuple):
    """What the index says about one record."""

    offset: int
    size: int
    timestamp: int
    keys: tuple[int, ...]
    """The hashes of its keys, in the order in which the index has them."""
    tag: int | None
    """The hash of its tag, which RocketMQ 5 adds behind the keys."""

    @property
    def hashes(self) -> tuple[int | None, ...]:
        """All hashes that an entry may have."""
        return (*self.keys, self.tag)


def keys_of(scan: Scan) -> RecordKeys:
    """Return what the index says about a record."""
    topic, place = scan.topic, (scan.physical_offset, scan.size, scan.store_timestamp)
    if scan.sys_flag & ROLLBACK == ROLLBACK:
        return RecordKeys(*place, (), None)
    _, keys = tag_and_keys(scan.properties)
    tag = None
    if b"TAGS" in scan.properties:
        tag = parse_properties(str(scan.properties, "utf-8", "replace")).get("TAGS")
    return RecordKeys(
        *place,
        tuple(index_hash(topic, key) for key in keys),
        index_hash(topic, f"T#{tag}") if tag else None,
    )


class KeyReader:
    """Finds one record after another; blocks.

    Records near the last one are scanned in large reads, the others looked up one by one.
    """

    def __init__(self, files: FileSequence, end: int) -> None:
        self.files = files
        self._end = end
        self._scans: Iterator[Scan] = iter(())
        self._last: RecordKeys | None = None

    def at(self, offset: int) -> RecordKeys | None:
        """Return the keys of the record at an offset; None if no readable record begins there."""
        last = self._last
        if last is None or last.offset != offset:
            try:
                scan = self._scanned(last, offset)
            except (CorruptStore, DiskError):
                scan = None
            self._last = last = None if scan is None else keys_of(scan)
        return last

    def _scanned(self, last: RecordKeys | None, offset: int) -> Scan | None:
        if not self.files.first <= offset < self._end:
            return None
        scan: Scan | None = None
        if last is not None and 0 < offset - last.offset <= NEAR_BYTES:
            scan = next((it for it in self._scans if it.physical_offset >= offset), None)
        if scan is None or scan.physical_offset != offset:
            self._scans = iter(
                LogScanner(self.files, offset, check_crc=False, end=self._end, first_bytes=0)
            )
            scan = next(self._scans, None)
        return scan if scan is not None and scan.physical_offset == offset else None
