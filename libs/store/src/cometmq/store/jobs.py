# SPDX-License-Identifier: Apache-2.0
"""Slow disk work as jobs: made on the loop, run on a worker thread, finished on the loop.

Invariants: a job holds copies or things that only jobs change, so `run` needs no lock; at most
one job is on its way at any time (syncs of the log aside, see `flush.py`).
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from cometmq.store.checkpoint import CheckpointFiles, Progress
from cometmq.store.consume_queue import ConsumeQueue
from cometmq.store.disk import Disk, DiskFile
from cometmq.store.file_sequence import FileSequence
from cometmq.store.flush import FlushJob
from cometmq.store.index_file import IndexFlush
from cometmq.store.layout import TEMPORARY_SUFFIX

PROBE_BYTES: Final = 64 * 1024


class Job(Protocol):
    """Work for a worker thread."""

    @property
    def name(self) -> str:
        """What it does, for metrics and logs."""

    def run(self) -> None:
        """Do the work; may block, may raise DiskError."""

    def done(self, error: Exception | None) -> None:
        """Take the outcome over, on the loop."""


class QueueWrite(NamedTuple):
    """Entries of one queue that the files lack."""

    queue: ConsumeQueue
    queue_offset: int
    entries: bytes


class CheckpointJob:
    """Bring everything up to one offset to the disk, then say so in the checkpoint."""

    name = "checkpoint"

    def __init__(
        self,
        *,
        disk: Disk,
        files: CheckpointFiles,
        flush: FlushJob,
        writes: Sequence[QueueWrite],
        index_flushes: Sequence[IndexFlush],
        progress: Progress,
        on_done: Callable[["CheckpointJob", Exception | None], None],
    ) -> None:
        """Hold what the loop has copied."""
        self._disk = disk
        self._files = files
        self._on_done = on_done
        self.flush = flush
        self.writes = writes
        self.index_flushes = index_flushes
        self.progress = progress

    def run(self) -> None:
        """Write and sync: log, queues, index; the checkpoint last."""
        self.flush.run()
        written: dict[str, DiskFile] = {}
        folders: set[str] = set()
        for queue, queue_offset, entries in self.writes:
            file_count = len(queue.files.files)
            for file in queue.write(queue_offset, entries):
                written[file.path] = file
            if len(queue.files.files) != file_count:
                folders.add(queue.files.folder)
        for file in written.values():
            file.sync()
        for folder in folders:
            self._disk.sync_folder(folder)
        for index_flush in self.index_flushes:
            index_flush.run()
        self._files.save(self.progress)

    def done(self, error: Exception | None) -> None:
        """Hand the outcome to the store."""
        self._on_done(self, error)


class ProbeJob:
    """Try whether the log can be written again, by overwriting what a failed write left."""

    name = "probe"

    def __init__(
        self,
        files: FileSequence,
        segments: Sequence[tuple[int, int]],
        on_done: Callable[[Exception | None], None],
    ) -> None:
        """`segments` are offset and length of what the failed write may have left."""
        self._files = files
        self._segments = segments
        self._on_done = on_done

    def run(self) -> None:
        """Write zeros and sync them."""
        files = self._files
        for offset, count in self._segments:
            if offset >= files.end:
                files.create_next()
            position = (offset - files.first) % files.file_size
            count = min(max(count, PROBE_BYTES), files.file_size - position)  # noqa: PLW2901
            file = files.file_at(offset)
            file.write(position, [bytes(count)])
            file.sync()

    def done(self, error: Exception | None) -> None:
        """Hand the outcome to the store."""
        self._on_done(error)


class CreateJob:
    """Make the next file of the log, under another name, before it is needed.

    The loop may make the file itself meanwhile and write messages to it, so only the loop may
    give this one its name.
    """

    name = "create-file"

    def __init__(
        self, disk: Disk, prepared: str, size: int, on_done: Callable[[Exception | None], None]
    ) -> None:
        """`prepared` is the path to make it at."""
        self._disk = disk
        self._prepared = prepared
        self._size = size
        self._on_done = on_done

    def run(self) -> None:
        """Make the file."""
        temporary = f"{self._prepared}{TEMPORARY_SUFFIX}"
        self._disk.create(self._prepared, self._size, temporary=temporary)

    def done(self, error: Exception | None) -> None:
        """Hand the outcome to the store."""
        self._on_done(error)


class RemoveJob:
    """Delete files and folders."""

    name = "remove"

    def __init__(
        self,
        disk: Disk,
        paths: Sequence[str],
        on_done: Callable[[Exception | None], None],
        *,
        pause: Callable[[], None] | None = None,
    ) -> None:
        """`pause` is called between two files, so that the disk can do other work."""
        self._disk = disk
        self._paths = paths
        self._on_done = on_done
        self._pause = pause

    def run(self) -> None:
        """Delete one after the other."""
        for path in self._paths:
            if self._disk.is_folder(path):
                self._disk.remove_tree(path)
            else:
                self._disk.remove(path)
            if self._pause is not None:
                self._pause()

    def done(self, error: Exception | None) -> None:
        """Hand the outcome to the store."""
        self._on_done(error)
