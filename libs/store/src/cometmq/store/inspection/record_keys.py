# SPDX-License-Identifier: Apache-2.0
"""The index hashes of records, read in the order of an index, which is usually that of the log."""

from collections.abc import Iterator
from typing import Final

from cometmq.remoting.message.flags import index_hash
from cometmq.remoting.message.record import Scan
from cometmq.store.errors import CorruptStore, DiskError
from cometmq.store.inspection.inspect import StoreView
from cometmq.store.log.log_scanner import LogScanner
from cometmq.store.upkeep.log_keys import keys_of, tag_row

NEAR_BYTES: Final = 16 << 10
"""Skipping records over this distance takes less time than looking up one record."""


class RecordKeys:
    """Finds the hashes of the keys of one record after another."""

    def __init__(self, view: StoreView) -> None:
        self._view = view
        self._scans: Iterator[Scan] = iter(())
        self._scan: Scan | None = None  # the last one
        self._last_offset = -1
        self._hashes: set[int] = set()

    def hashes(self, offset: int) -> set[int]:
        """Return the index hashes of the keys and the tag of the record at this offset; an empty
        set without a record.

        Records near the last one are scanned in large reads, the others looked up one by one.
        """
        if offset != self._last_offset:
            is_near = 0 < offset - self._last_offset <= NEAR_BYTES
            self._last_offset = offset
            scan = self._scanned(offset) if is_near else None
            self._hashes = self._found(offset) if scan is None else _hashes(scan)
        return self._hashes

    def _scanned(self, offset: int) -> Scan | None:
        """Return the record at this offset; None if the scan does not find it."""
        scan = self._scan
        if scan is None or not 0 <= offset - scan.physical_offset <= NEAR_BYTES:
            view = self._view
            end = view.parts.commit_log.end
            self._scans = iter(LogScanner(view.files, offset, check_crc=False, end=end))
        try:
            while scan is None or scan.physical_offset < offset:
                scan = next(self._scans, None)
                if scan is None:
                    break
        except (CorruptStore, DiskError):  # the caller then looks up the record
            scan = None
        self._scan = scan
        return scan if scan is not None and scan.physical_offset == offset else None

    def _found(self, offset: int) -> set[int]:
        record = self._view.read(offset)
        if record is None:
            return set()
        keys = {record.unique_key, *record.keys, record.tags and f"T#{record.tags}"}
        return {index_hash(record.topic, key) for key in keys if key}


def _hashes(scan: Scan) -> set[int]:
    tag = tag_row(scan)
    return {key.hash_ for key in (*keys_of(scan), *((tag,) if tag else ()))}
