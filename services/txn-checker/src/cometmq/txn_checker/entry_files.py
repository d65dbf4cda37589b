# SPDX-License-Identifier: Apache-2.0
"""A table on disk: numbered entries of one size in files of one size.

Each file is named after the offset of its first byte in the table. Entries without a file read as
zeros. A write reaches the page cache; it is durable once its file is synced.
"""

from collections.abc import Iterator

from cometmq.store.disk import Disk, DiskFile


class EntryFiles:
    def __init__(self, disk: Disk, folder: str, *, entry_bytes: int, entries_per_file: int) -> None:
        self._disk = disk
        self._folder = folder
        self._entry_bytes = entry_bytes
        self._file_bytes = entry_bytes * entries_per_file
        self._files: dict[int, DiskFile] = {}
        self.write_count = 0
        self._unsynced: dict[int, int] = {}  # start of a file -> number of its last write
        for name in disk.names(folder):
            if name.isdigit() and int(name) % self._file_bytes == 0:
                self._files[int(name)] = disk.open(f"{folder}/{name}")

    def read(self, index: int, count: int) -> bytes:
        parts = []
        for start, offset, size in self._pieces(index, count):
            file = self._files.get(start)
            parts.append(
                bytes(size) if file is None else file.read(offset, size).ljust(size, b"\0")
            )
        return b"".join(parts)

    def write(self, index: int, data: bytes) -> None:
        """Replace the entries from `index` on; raise DiskError if the disk refuses."""
        position = 0
        for start, offset, size in self._pieces(index, len(data) // self._entry_bytes):
            file = self._files.get(start) or self._create(start)
            file.write(offset, [data[position : position + size]])
            self.write_count += 1
            self._unsynced[start] = self.write_count
            position += size

    def unsynced(self) -> list[DiskFile]:
        """Return the files with writes not yet confirmed by `note_synced`."""
        return [self._files[start] for start in self._unsynced]

    def note_synced(self, write_count: int) -> None:
        """Record that the first `write_count` writes are durable."""
        for start in [start for start, last in self._unsynced.items() if last <= write_count]:
            del self._unsynced[start]

    def drop_below(self, index: int) -> None:
        """Delete the files that hold only entries below `index`."""
        for start in [
            start for start in self._files if start + self._file_bytes <= self._at(index)
        ]:
            self._remove(start)

    def clear(self) -> None:
        for start in list(self._files):
            self._remove(start)

    @property
    def size_bytes(self) -> int:
        return len(self._files) * self._file_bytes

    def _at(self, index: int) -> int:
        return index * self._entry_bytes

    def _pieces(self, index: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Split a range of entries at file boundaries: yield each file's start, the offset in the
        file, and the number of bytes.
        """
        position, end = self._at(index), self._at(index + count)
        while position < end:
            start = position - position % self._file_bytes
            size = min(end, start + self._file_bytes) - position
            yield start, position - start, size
            position += size

    def _create(self, start: int) -> DiskFile:
        path = self._path(start)
        file = self._disk.create(path, self._file_bytes, temporary=f"{self._folder}.new")
        self._files[start] = file
        return file

    def _remove(self, start: int) -> None:
        del self._files[start]
        self._unsynced.pop(start, None)
        self._disk.remove(self._path(start))

    def _path(self, start: int) -> str:
        return f"{self._folder}/{start:020d}"
