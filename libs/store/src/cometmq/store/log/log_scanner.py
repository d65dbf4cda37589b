# SPDX-License-Identifier: Apache-2.0
"""Walk through the records of a commit log in large reads, up to the first invalid one.

A record is valid only if it contains its own physical offset. This rejects bytes of an older log
that reappear after a crash.
"""

import struct
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import Final, TypeAlias

from cometmq.remoting.message.record import Scan, ScanStatus, scan_record
from cometmq.remoting.message.record_layout import (
    BLANK_BYTES_MIN,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
)
from cometmq.store.errors import CorruptStore, DiskError
from cometmq.store.layout import is_topic
from cometmq.store.log.file_sequence import FileSequence

CHUNK_BYTES_MIN: Final = 64 * 1024
CHUNK_BYTES_MAX: Final = 4 << 20
SKIPPED_BYTES: Final = 64 << 10
"""The distance that `records_in` skips at bytes that cannot be read."""
_SEARCH_BYTES: Final = 256 << 10
_MAGIC_BYTES: Final = (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab")

Take: TypeAlias = Callable[[bytes, int, int], int]
"""A function that consumes whole records from a position in `data` on; it returns their total size.
Its arguments: the data, the position, and the offset of the data in the log.
"""


class LogScanner:
    """Iterates over records; `offset` is where the next one begins."""

    __slots__ = ("_check_crc", "_chunk_bytes", "_end", "_files", "_take", "offset")

    def __init__(
        self,
        files: FileSequence,
        offset: int,
        *,
        check_crc: bool,
        end: int | None = None,
        take: Take | None = None,
        first_bytes: int | None = None,
    ) -> None:
        """Begin at `offset`; if `end` is given, read nothing at or after it.

        The first read has up to `first_bytes`, by default up to 4 MiB if `end` is given.

        Records are first offered to `take`, in log order; iteration yields the records that `take`
        does not consume.
        """
        self._files = files
        self._take = take
        self._end = end
        self._check_crc = check_crc
        # A known range is read at once. With small first reads, which suit an unknown range, a
        # follower's loop took 18 % longer.
        if first_bytes is None:
            first_bytes = 0 if end is None else min(end - offset, CHUNK_BYTES_MAX)
        self._chunk_bytes = max(CHUNK_BYTES_MIN, first_bytes)
        self.offset = offset

    def __iter__(self) -> Iterator[Scan]:
        """Yield records up to the first offset without a valid record."""
        files = self._files
        end = files.end if self._end is None else min(files.end, self._end)
        while files.first <= self.offset < end:
            position = (self.offset - files.first) % files.file_size
            left = files.file_size - position
            count = min(self._chunk_bytes, left, end - self.offset)
            data = files.file_at(self.offset).read(position, count)
            start = self.offset
            status = yield from self._scan_chunk(data, left)
            if status is ScanStatus.INVALID:
                return
            if status is ScanStatus.INCOMPLETE and self.offset == start:
                if len(data) < self._chunk_bytes:
                    return  # the file ends before the record does
                self._chunk_bytes *= 2
            elif self._chunk_bytes < CHUNK_BYTES_MAX:
                self._chunk_bytes *= 2

    def _scan_chunk(self, data: bytes, file_left: int) -> Generator[Scan, None, ScanStatus]:
        """Yield the records of one read; return the reason why the scan stopped."""
        base = self.offset
        cursor = 0
        check_crc, take = self._check_crc, self._take
        while True:
            if take is not None:
                cursor += take(data, cursor, base)
                self.offset = base + cursor
            scan = scan_record(data, cursor, check_crc=check_crc)
            if scan.status is not ScanStatus.RECORD:
                break
            if scan.physical_offset != base + cursor or not is_topic(scan.topic):
                return ScanStatus.INVALID
            cursor += scan.size
            self.offset = base + cursor
            yield scan
        if scan.status is ScanStatus.BLANK:
            if scan.size != file_left - cursor:
                raise CorruptStore(
                    f"offset {self.offset} of the log closes a file {scan.size} bytes before its"
                    f" end, but by the configured file size it must be {file_left - cursor}"
                )
            if self._end is not None and base + file_left > self._end:
                return ScanStatus.INCOMPLETE
            self.offset = base + file_left
        return scan.status


_MAGICS: Final = frozenset({MAGIC_V1, MAGIC_V2})
_HEAD: Final = struct.Struct(">ii20xq")  # size, magic, physical offset


def follow_headers(files: FileSequence, start: int, end: int) -> int:
    """Walk from header to header; return the offset reached, at most `end`.

    Only sizes and offsets are checked, which is five times faster than scanning whole records
    (bench/micro/bench_recovery.py).
    """
    offset = start
    while offset < end and files.first <= offset < files.end:
        position = (offset - files.first) % files.file_size
        left = files.file_size - position
        if left < _HEAD.size:
            offset += left  # no record fits there
            continue
        data = files.file_at(offset).read(position, min(CHUNK_BYTES_MAX, left))
        count, magic = _follow_chunk(data, offset, end)
        offset += count
        if magic == MAGIC_BLANK:
            offset = offset - offset % files.file_size + files.file_size
        elif magic is not None or not count:
            break
    return offset


def _follow_chunk(data: bytes, base: int, end: int) -> tuple[int, int | None]:
    cursor = 0
    stop = min(len(data) - _HEAD.size, end - base - 1)
    while cursor <= stop:
        size, magic, physical_offset = _HEAD.unpack_from(data, cursor)
        is_record = magic in _MAGICS and size >= RECORD_BYTES_MIN
        if not is_record or physical_offset != base + cursor:
            return cursor, magic
        cursor += size
    return cursor, None


def first_record(files: FileSequence, offset: int) -> Scan | None:
    """Return the record that begins exactly at this offset, or None."""
    scan = next(iter(LogScanner(files, offset, check_crc=False)), None)
    return scan if scan is not None and scan.physical_offset == offset else None


def file_of_time(files: FileSequence, timestamp: int) -> int:
    """Return the start of the newest file whose first record was stored by this time, or else of
    the first file.
    """
    for start in range(files.end - files.file_size, files.first, -files.file_size):
        scan = first_record(files, start)
        if scan is not None and 0 < scan.store_timestamp <= timestamp:
            return start
    return files.first


def find_record(files: FileSequence, offset: int) -> Scan | None:
    """Return the first whole record that begins at or after an offset, or None."""
    minimum = offset
    while files.first <= offset < files.end:
        file_start = offset - (offset - files.first) % files.file_size
        file = files.file_at(offset)
        position = file.next_data(offset - file_start)
        if position is None or position >= files.file_size:
            offset = file_start + files.file_size
            continue
        data = file.read(position, _SEARCH_BYTES)
        found = _find_in(files, file_start + position, data, minimum)
        if found is not None:
            return found
        # Parts overlap, because a magic number may span two parts.
        step = len(data) - BLANK_BYTES_MIN
        offset = file_start + files.file_size if step <= 0 else file_start + position + step
    return None


def _find_in(files: FileSequence, base: int, data: bytes, minimum: int) -> Scan | None:
    for magic in _MAGIC_BYTES:
        at = data.find(magic)
        while at >= 0:
            start = base + at - 4
            if start >= minimum:
                scan = next(iter(LogScanner(files, start, check_crc=True)), None)
                if scan is not None:
                    return scan
            at = data.find(magic, at + 1)
    return None


def records_in(
    files: FileSequence, start: int, end: int, *, first_bytes: int = 0
) -> Iterator[Scan]:
    """Yield the records that lie between two offsets of the log, in order; blocks.

    Bytes that are damaged or unreadable are skipped, and no record needs to begin at `start`. As
    the size of a record may be damaged, the next one is searched from the begin of the last one.
    """
    at = max(start, files.first)
    while at < end:
        scanner = LogScanner(files, at, check_crc=False, end=end, first_bytes=first_bytes)
        last, begin, first_bytes = at, at, 0
        try:
            with suppress(CorruptStore):  # the damaged end of a file
                for scan in scanner:
                    last = scan.physical_offset
                    yield scan
            found = None if scanner.offset >= end else find_record(files, last + 1)
            at = end if found is None else found.physical_offset
        except DiskError:  # a shorter read may succeed
            at = scanner.offset if scanner.offset > begin else begin + SKIPPED_BYTES
