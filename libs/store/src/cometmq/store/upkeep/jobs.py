# SPDX-License-Identifier: Apache-2.0
"""Slow disk work as jobs: created on the loop, run on a worker thread, completed on the loop.

Invariants: a job holds copies, or objects that only jobs change, so `run` needs no lock. Only one
job runs at a time, apart from syncs and writeback of the log (`flush.py`).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeVar

from cometmq.store.disk import Descriptor, Disk, DiskFile
from cometmq.store.errors import DiskError
from cometmq.store.log.file_sequence import FileSequence
from cometmq.store.os_disk import open_folder, opened

PROBE_BYTES: Final = 64 * 1024

T = TypeVar("T")


class Job(Protocol):
    """Work that may block, for a worker thread."""

    @property
    def name(self) -> str:
        """The job's name in metrics and logs."""

    def run(self) -> object:
        """Do the work; may block and may raise DiskError."""

    def done(self, error: Exception | None) -> None:
        """Apply the outcome on the loop."""


class Step(NamedTuple):
    """A job that is one call."""

    name: str
    run: Callable[[], object]
    done: Callable[[Exception | None], None]


def with_result(
    name: str, work: Callable[[], T], take: Callable[[T | None, Exception | None], None]
) -> Step:
    """Return a job that passes the result of `work` to `take`; None after an error."""
    results: list[T] = []
    return Step(
        name,
        lambda: results.append(work()),
        lambda error: take(results[0] if results else None, error),
    )


@dataclass(slots=True, kw_only=True)
class FlushJob:
    """Syncs the log up to an offset: call `run` on a worker thread, then `flush_done`."""

    disk: Disk
    files: Sequence[DiskFile]
    folder: str | None
    """The folder of the files, if it contains a new one."""
    start: int
    offset: int
    file_end: int
    deletions: int
    """The version of the notes of deleted topics that the job brings to the disk."""
    refused: DiskError | None = None
    """Why a file could not be opened; if set, `run` fails with this error."""

    def run(self) -> None:
        """Sync the files, then the folder."""
        self._check()
        for file in self.files:
            file.sync()
        if self.folder is not None:
            self.disk.sync_folder(self.folder)

    def descriptors(self) -> tuple[list[Descriptor], Descriptor | None]:
        """Return open files and the folder for code that syncs them itself; raise DiskError.

        Only for files of the operating system.
        """
        self._check()
        folder = None if self.folder is None else open_folder(self.folder)
        return opened(self.files), folder

    def _check(self) -> None:
        if self.refused is not None:
            raise self.refused

    def path(self, index: int) -> str:
        """Return the path of a file, or of the folder if `index` is the number of files."""
        return self.files[index].path if index < len(self.files) else self.folder or ""


def probe(files: FileSequence, segments: Sequence[tuple[int, int]]) -> None:
    """Test whether the log is writable: overwrite the ranges of a failed write with zeros, and
    sync.

    A segment is the offset and the length of a range.
    """
    for offset, count in segments:
        if offset >= files.end:
            files.create_next()
        position = (offset - files.first) % files.file_size
        count = min(max(count, PROBE_BYTES), files.file_size - position)  # noqa: PLW2901
        file = files.file_at(offset)
        file.write(position, [bytes(count)])
        file.sync()


def remove(disk: Disk, paths: Iterable[str], checksums: Sequence[str], folder: str) -> None:
    """Delete files and folders one after the other.

    The files of `checksums`, all in `folder`, are deleted durably before the others, so a crash of
    the host cannot leave them without their log files.
    """
    for path in checksums:
        disk.remove(path)
    if checksums:
        disk.sync_folder(folder)
    for path in paths:
        if disk.is_folder(path):
            disk.remove_tree(path)
        else:
            disk.remove(path)
