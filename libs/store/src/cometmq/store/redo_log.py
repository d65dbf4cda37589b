# SPDX-License-Identifier: Apache-2.0
"""A redo log: changes to tables, in order, kept until the tables themselves are on the disk.

Each file begins with a checkpoint: a record with the state to which the later records apply. A file
is deleted once the tables on disk include all its changes, so recovery begins with the oldest file.
A record's checksum covers its position, so what is left of a torn write is never read as a record.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from cometmq.store.disk import Disk, DiskFile

_HEAD: Final = Struct(">IIB")  # length of the payload, checksum, kind
_PLACE: Final = Struct(">QIB")  # covered by the checksum besides the payload
FILE_BYTES: Final = 8 << 20
_SEARCH_BYTES: Final = 64 << 10  # searched after an invalid record for one that proves damage
_PAGE_BYTES: Final = 4096


class Record(NamedTuple):
    """One change or checkpoint; the owner of the log defines the kinds and payloads."""

    kind: int
    payload: bytes


class Cut(NamedTuple):
    """The position after the last valid record of a log, if more bytes follow."""

    path: str
    position: int
    byte_count: int
    """Number of bytes from `position` to the last written byte of this file."""
    is_damage: bool
    """Whether an interrupted write cannot have left this: the record was written to its end,
    others follow, or the file is too short.
    """


class RedoLog:
    """Appends to the files of one log, and replays them; only the appending thread may use this
    object.
    """

    def __init__(self, disk: Disk, folder: str, *, file_bytes: int = FILE_BYTES) -> None:
        """Find the files; `replay` must run before anything is appended."""
        self._disk = disk
        self._folder = folder
        self._file_bytes = file_bytes
        self.payload_bytes_max = file_bytes - _HEAD.size
        """Maximum size of a record's payload, since a record never spans two files."""
        self._starts = sorted(int(name) for name in disk.names(folder) if name.isdigit())
        self._file: DiskFile | None = None
        self._position = 0  # append position in the last file
        self.cut: Cut | None = None
        """The place where the last `replay` or `records` ended, if bytes follow it."""

    @property
    def size_bytes(self) -> int:
        """Total size of all files, including their unwritten parts."""
        return len(self._starts) * self._file_bytes

    @property
    def starts(self) -> list[int]:
        """The start offsets of all files, oldest first."""
        return list(self._starts)

    @property
    def file(self) -> DiskFile | None:
        """The newest file; None if there are no files yet."""
        return self._file

    def replay(self) -> Iterator[Record]:
        """Yield the records up to the first incomplete one.

        Everything after it is deleted; appending continues at the end of the complete records.
        """
        yield from self.records()
        if self.cut is not None:  # no record after the cut can be complete
            self._drop_rest(int(self.cut.path.rpartition("/")[2]), self.cut.byte_count)

    def drop_rest(self) -> None:
        """Delete the record that `replay` has yielded last, and all after it; appending continues
        there. The owner of the log calls this instead of reading on, if it cannot use the record.
        """
        if self._file is not None:
            start = int(self._file.path.rpartition("/")[2])
            self._drop_rest(start, max(0, self._file.size() - self._position))

    def _drop_rest(self, start: int, byte_count: int) -> None:
        """Delete bytes at the append position of the file at `start`, and the files after it."""
        assert self._file is not None
        following = self._starts.index(start) + 1
        for later in self._starts[following:]:
            self._disk.remove(self._path(later))
        del self._starts[following:]
        self._file.write(self._position, [bytes(byte_count)])
        if self._file.size() < self._file_bytes:
            self._disk.resize(self._path(start), self._file_bytes)

    def records(self) -> Iterator[Record]:
        """Yield the records up to the first incomplete one, and change nothing on the disk."""
        self.cut = None
        for start in self._starts:
            self._file = self._disk.open(self._path(start))
            self._position = 0
            data = self._file.read(0, self._file_bytes)
            while (record := _record(data, start, self._position)) is not None:
                yield record
                self._position += _HEAD.size + len(record.payload)
            unused = data[self._position :]
            is_short = len(data) < self._file_bytes  # files are created with their full size
            # `rstrip` looks at each byte: 17 ms a file
            if is_short or unused != bytes(len(unused)):
                end = max(self._position, len(data.rstrip(b"\0")))
                is_damage = (
                    is_short
                    or self._has_later_records(start)
                    or _is_written(data[:end], start, self._position)
                    or _follows(data[:end], start, self._position)
                )
                count = end - self._position
                self.cut = Cut(self._path(start), self._position, count, is_damage)
                return

    def _has_later_records(self, start: int) -> bool:
        return any(
            _record(self._disk.open(self._path(later)).read(0, self._file_bytes), later, 0)
            for later in self._starts
            if later > start
        )

    def has_room(self, payload_bytes: int) -> bool:
        """Return whether a record fits into the newest file."""
        end = self._position + _HEAD.size + payload_bytes
        return self._file is not None and end <= self._file_bytes

    def append(self, kind: int, payload: bytes) -> None:
        """Append a record; if this raises DiskError, the record was not appended."""
        assert self._file is not None
        assert self._position + _HEAD.size + len(payload) <= self._file_bytes
        start = self._starts[-1]
        check = _check_sum(start + self._position, kind, payload)
        self._file.write(self._position, [_HEAD.pack(len(payload), check, kind), payload])
        self._position += _HEAD.size + len(payload)

    def begin_file(self, kind: int, payload: bytes) -> DiskFile:
        """Continue in a new file that begins with this record; return the file."""
        start = self._starts[-1] + self._file_bytes if self._starts else 0
        path = self._path(start)
        file = self._disk.create(path, self._file_bytes, temporary=f"{self._folder}.new")
        check = _check_sum(start, kind, payload)
        file.write(0, [_HEAD.pack(len(payload), check, kind), payload])
        self._starts.append(start)
        self._file = file
        self._position = _HEAD.size + len(payload)
        return file

    @property
    def file_start(self) -> int:
        """Return the start of the newest file."""
        return self._starts[-1]

    def drop_below(self, start: int) -> None:
        """Delete the files before the one that begins at `start`."""
        for old in [one for one in self._starts if one < start]:
            self._disk.remove(self._path(old))
            self._starts.remove(old)

    def forget_below(self, start: int) -> list[str]:
        """Stop using the files before the one that begins at `start`; return their paths.

        The caller deletes the files in this order, on any thread.
        """
        old = [one for one in self._starts if one < start]
        del self._starts[: len(old)]
        return [self._path(one) for one in old]

    def clear(self) -> None:
        """Delete all files; appending continues with `begin_file`."""
        for start in self._starts:
            self._disk.remove(self._path(start))
        self._starts.clear()
        self._file = None
        self._position = 0

    def _path(self, start: int) -> str:
        return f"{self._folder}/{start:020d}"


def _record(data: bytes, start: int, position: int) -> Record | None:
    """Return the record at a position of the file at `start`; None if no whole record is there."""
    if position + _HEAD.size > len(data):
        return None
    length, check, kind = _HEAD.unpack_from(data, position)
    if length > len(data) - position - _HEAD.size:
        return None
    payload = data[position + _HEAD.size : position + _HEAD.size + length]
    if check != _check_sum(start + position, kind, payload):
        return None
    return Record(kind, payload)


def _follows(data: bytes, start: int, position: int) -> bool:
    """Return whether a whole record begins somewhere after an unreadable position."""
    end = min(len(data), position + _SEARCH_BYTES)
    return any(_record(data, start, place) is not None for place in range(position + 1, end))


def _is_written(data: bytes, start: int, position: int) -> bool:
    """Return whether the unreadable record at a position was written to its end, the end of `data`.

    A kill leaves the beginning of a record; a crash of the host may also lose whole pages of it.
    """
    body = position + _HEAD.size
    if body > len(data):
        return False
    pages = range(position - position % _PAGE_BYTES, len(data), _PAGE_BYTES)
    if not all(any(data[max(page, position) : page + _PAGE_BYTES]) for page in pages):
        return False
    check: int
    length, check, kind = _HEAD.unpack_from(data, position)
    if length <= len(data) - body:
        return True
    return check == _check_sum(start + position, kind, data[body:])  # the length is damaged


def _check_sum(place: int, kind: int, payload: bytes) -> int:
    return crc32(payload, crc32(_PLACE.pack(place, len(payload), kind)))
