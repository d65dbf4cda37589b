# SPDX-License-Identifier: Apache-2.0
"""Look into a store's folder without a broker and without changing anything.

Works on folders that RocketMQ wrote as well. A store that is in use can be looked at too: what is
read is then what the files held at that moment.
"""

import os
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from cometmq.remoting.log import NO_LOG
from cometmq.remoting.message.record import MessageRecord, Scan
from cometmq.store.checkpoint import CHECKPOINT_BYTES, Checkpoint, Progress
from cometmq.store.disk import Disk, OsDisk
from cometmq.store.index_file import HEADER, IndexHeader
from cometmq.store.log_scanner import LogScanner, find_record
from cometmq.store.lookups import Lookups
from cometmq.store.parts import Parts, build_parts
from cometmq.store.reads import finish
from cometmq.store.settings import StoreSettings


class QueueSummary(NamedTuple):
    """One consume queue."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    file_count: int


class IndexSummary(NamedTuple):
    """One index file."""

    name: str
    begin_timestamp: int
    end_timestamp: int
    begin_offset: int
    end_offset: int
    entry_count: int


class Damage(NamedTuple):
    """A place of the log that holds no record although one follows."""

    path: str
    position: int
    physical_offset: int
    next_offset: int


class Inspection(NamedTuple):
    """A store at a glance."""

    root: str
    was_clean: bool
    min_offset: int
    max_offset: int
    record_count: int
    commit_log_file_count: int
    commit_log_file_size: int
    checkpoint: Checkpoint
    progress: Progress | None
    queues: list[QueueSummary]
    index_files: list[IndexSummary]
    damages: list[Damage]


class StoreView:
    """The files of a store, opened for reading."""

    def __init__(self, root: str, *, disk: Disk | None = None, settings: StoreSettings) -> None:
        """Load the files; their sizes are taken from what is there."""
        self.disk = disk if disk is not None else OsDisk(read_only=True)
        settings = msgspec.structs.replace(settings, store_path_root_dir=root)
        settings = _with_found_sizes(self.disk, settings)
        self.parts: Parts = build_parts(settings, disk=self.disk, clock_ms=lambda: 0, log=NO_LOG)
        self.files = self.parts.commit_log.files
        self.files.load()
        self.parts.queues.load()
        self.damages: list[Damage] = []
        self.record_count = 0

    def records(self, start: int | None = None, *, check_crc: bool = True) -> Iterator[Scan]:
        """Yield all records from a record border on, over damaged places; fill `damages`."""
        files = self.files
        offset = files.first if start is None else start
        while files.files:
            scanner = LogScanner(files, offset, check_crc=check_crc)
            for scan in scanner:
                self.record_count += 1
                yield scan
            self.parts.commit_log.end = scanner.offset
            follows = find_record(files, scanner.offset + 1)
            if follows is None:
                return
            position = (scanner.offset - files.first) % files.file_size
            path = files.file_at(scanner.offset).path
            self.damages.append(Damage(path, position, scanner.offset, follows.physical_offset))
            offset = follows.physical_offset

    def measure_queues(self, log_end: int) -> None:
        """Find where each queue begins, and its end before this place of the log."""
        for queue in self.parts.queues.queues.values():
            queue.measure(self.files.first, log_end)

    def read(self, physical_offset: int) -> MessageRecord | None:
        """Return one record with its body."""
        return finish(Lookups(self.parts).read_record(physical_offset))


def inspect_store(
    root: str, *, disk: Disk | None = None, settings: StoreSettings | None = None
) -> Inspection:
    """Read a whole store and say what it holds."""
    view = StoreView(root, disk=disk, settings=settings or StoreSettings())
    for _ in view.records():
        pass
    view.measure_queues(view.parts.commit_log.end)
    parts, layout = view.parts, view.parts.layout
    checkpoint, progress = _read_checkpoint(view)
    return Inspection(
        root=root,
        was_clean=not view.disk.exists(layout.abort),
        min_offset=parts.commit_log.min_offset,
        max_offset=parts.commit_log.end,
        record_count=view.record_count,
        commit_log_file_count=len(view.files.files),
        commit_log_file_size=view.files.file_size,
        checkpoint=checkpoint,
        progress=progress,
        queues=[
            QueueSummary(
                queue.topic,
                queue.queue_id,
                queue.min_offset,
                queue.max_offset,
                len(queue.files.files),
            )
            for _, queue in sorted(parts.queues.queues.items())
        ],
        index_files=_index_summaries(view),
        damages=view.damages,
    )


def dump_log(
    root: str,
    start: int | None = None,
    *,
    disk: Disk | None = None,
    settings: StoreSettings | None = None,
) -> Iterator[MessageRecord]:
    """Yield the records of the log from a record border on."""
    view = StoreView(root, disk=disk, settings=settings or StoreSettings())
    for scan in view.records(start):
        view.parts.commit_log.end = view.files.end
        record = view.read(scan.physical_offset)
        if record is not None:
            yield record


def dump_queue(
    root: str,
    topic: str,
    queue_id: int,
    start: int = 0,
    *,
    disk: Disk | None = None,
    settings: StoreSettings | None = None,
) -> Iterator[MessageRecord]:
    """Yield the messages of one queue from an offset on."""
    view = StoreView(root, disk=disk, settings=settings or StoreSettings())
    log = view.parts.commit_log
    log.end = view.files.end
    view.measure_queues(log.end)
    queue = view.parts.queues.get(topic, queue_id)
    if queue is None:
        return
    for queue_offset in range(max(start, queue.min_offset), queue.max_offset):
        entry = queue.entry(queue_offset)
        record = None if entry is None else view.read(entry.physical_offset)
        if record is not None:
            yield record


def _index_summaries(view: StoreView) -> list[IndexSummary]:
    """Read the headers alone: the shape of the files does not matter for that."""
    folder = view.parts.layout.index
    summaries = []
    for name in view.disk.names(folder):
        data = view.disk.open(f"{folder}/{name}").read(0, HEADER.size)
        header = IndexHeader(*HEADER.unpack(data.ljust(HEADER.size, b"\0")))
        summaries.append(IndexSummary(name, *header[:4], max(0, header.next_number - 1)))
    return summaries


def _with_found_sizes(disk: Disk, settings: StoreSettings) -> StoreSettings:
    """Take file sizes from the first files that are there."""
    root = os.path.expanduser(settings.store_path_root_dir)  # noqa: PTH111  # see disk.py
    log_folder = settings.store_path_commit_log or f"{root}/commitlog"
    changes: dict[str, object] = {"store_path_root_dir": root}
    names = [name for name in disk.names(log_folder) if name.isdigit()]
    if names:
        size = disk.open(f"{log_folder}/{names[0]}").size()
        changes["mapped_file_size_commit_log"] = size
    path = _any_queue_file(disk, f"{root}/consumequeue")
    if path is not None:
        changes["mapped_file_size_consume_queue"] = disk.open(path).size()
    return msgspec.structs.replace(settings, **changes)


def _any_queue_file(disk: Disk, folder: str) -> str | None:
    for topic in disk.names(folder):
        for queue_id in disk.names(f"{folder}/{topic}"):
            for name in disk.names(f"{folder}/{topic}/{queue_id}"):
                return f"{folder}/{topic}/{queue_id}/{name}"
    return None


def _read_checkpoint(view: StoreView) -> tuple[Checkpoint, Progress | None]:
    layout = view.parts.layout
    checkpoint, progress = Checkpoint(), None
    if view.disk.exists(layout.checkpoint):
        data = view.disk.open(layout.checkpoint).read(0, CHECKPOINT_BYTES)
        checkpoint = Checkpoint.decode(data)
    if view.disk.exists(layout.progress):
        progress = Progress.decode(view.disk.open(layout.progress).read(0, CHECKPOINT_BYTES))
    return checkpoint, progress
