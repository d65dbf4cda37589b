# SPDX-License-Identifier: Apache-2.0
"""The redo log: all changes to the tables since they were last synced.

Each file begins with a checkpoint, the state when the file was created; the records after it follow
in order. A file is deleted once the tables on disk include all its changes, so recovery begins with
the oldest file. A record's checksum covers its position, so that the leftovers of a torn write are
never mistaken for a record.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from cometmq.store.disk import Disk, DiskFile

_HEAD: Final = Struct(">IIB")  # length of the payload, checksum, kind
_PLACE: Final = Struct(">QIB")  # covered by the checksum besides the payload
FILE_BYTES: Final = 8 << 20


class Record(NamedTuple):
    kind: int
    payload: bytes


class RedoLog:
    def __init__(self, disk: Disk, folder: str, *, file_bytes: int = FILE_BYTES) -> None:
        """Find the files; `replay` must run before anything is appended."""
        self._disk = disk
        self._folder = folder
        self._file_bytes = file_bytes
        self._starts = sorted(int(name) for name in disk.names(folder) if name.isdigit())
        self._file: DiskFile | None = None
        self._position = 0  # in the last file

    @property
    def size_bytes(self) -> int:
        return len(self._starts) * self._file_bytes

    def replay(self) -> Iterator[Record]:
        """Yield the records up to the first incomplete one.

        Everything after it is deleted; appending continues at the end of the complete records.
        """
        for position, start in enumerate(self._starts):
            self._file = self._disk.open(self._path(start))
            self._position = 0
            data = self._file.read(0, self._file_bytes)
            while (record := self._record(data, start)) is not None:
                yield record
            if data[self._position :].strip(b"\0"):  # torn: no record after it can be complete
                for later in self._starts[position + 1 :]:
                    self._disk.remove(self._path(later))
                del self._starts[position + 1 :]
                rest = bytes(self._file_bytes - self._position)
                self._file.write(self._position, [rest])
                return

    def has_room(self, payload_bytes: int) -> bool:
        """Return whether the open file has room for a record."""
        end = self._position + _HEAD.size + payload_bytes
        return self._file is not None and end <= self._file_bytes

    def append(self, kind: int, payload: bytes) -> None:
        """Append a record; if this raises DiskError, the record is not in the log."""
        assert self._file is not None
        assert self.has_room(len(payload))
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
        return self._starts[-1]

    def drop_below(self, start: int) -> None:
        """Delete the files before the one that begins at this offset."""
        for old in [one for one in self._starts if one < start]:
            self._disk.remove(self._path(old))
            self._starts.remove(old)

    def clear(self) -> None:
        for start in self._starts:
            self._disk.remove(self._path(start))
        self._starts.clear()
        self._file = None
        self._position = 0

    def _record(self, data: bytes, start: int) -> Record | None:
        position = self._position
        if position + _HEAD.size > len(data):
            return None
        length, check, kind = _HEAD.unpack_from(data, position)
        payload = data[position + _HEAD.size : position + _HEAD.size + length]
        if len(payload) != length or check != _check_sum(start + position, kind, payload):
            return None
        self._position = position + _HEAD.size + length
        return Record(kind, payload)

    def _path(self, start: int) -> str:
        return f"{self._folder}/{start:020d}"


def _check_sum(place: int, kind: int, payload: bytes) -> int:
    return crc32(payload, crc32(_PLACE.pack(place, len(payload), kind)))
