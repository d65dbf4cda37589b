# SPDX-License-Identifier: Apache-2.0
"""The folder of an open store: its lock, and the abort file that reveals an unclean stop.

A folder of RocketMQ 5 whose messages or tables are partly in formats not read here is refused: a
broker would start without offsets, topics or messages, and write beside them.

Compatibility: lock and abort file have RocketMQ's names, so its brokers and ours respect each
other's locks. Formats and commands of RocketMQ 5 are as seen with 5.5.0 (docs/compatibility.md).
Its other files (timer wheel, rocksdbstore, compaction) are not needed, and ignored.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from cometmq.remoting.bodies.dialect import decode_file
from cometmq.remoting.errors import CometError
from cometmq.store.disk import Disk, DiskLock, read_whole
from cometmq.store.errors import DiskError, ForeignStore
from cometmq.store.layout import Layout

NAMES_SHOWN_MAX: Final = 5
TABLES: Final = {
    "topics": "topics.json",
    "subscriptionGroups": "subscriptionGroup.json",
    "consumerOffsets": "consumerOffset.json",
}
"""The folders of RocksDB tables, and the files that take their place."""
_ROCKSDB: Final = "CURRENT"
_BATCH: Final = "BatchCQ"
_IDENTITY: Final = "brokerIdentity"
"""Not epochFileCheckpoint beside it, which members of our broker groups have, too."""


def refuse_foreign(disk: Disk, layout: Layout) -> None:
    """Raise ForeignStore, which names each kind of content that cannot be read."""
    if parts := list(foreign_parts(disk, layout)):
        raise ForeignStore(f"{layout.root}: {'. Also, '.join(parts)}")


def foreign_parts(disk: Disk, layout: Layout) -> Iterator[str]:
    """Yield what a folder has that cannot be read here, each with the way out."""
    yield from _rocksdb(disk, layout)
    batches = f"{layout.root}/batchconsumequeue"
    named = disk.names(batches) if disk.exists(batches) else ()  # the root may be a file
    batch = {*named, *_batch_topics(disk, layout)}
    mapped = _table(disk, layout, "topicQueueMapping.json", "topicQueueMappingInfoMap")
    kinds = {"queues of batches (BatchCQ)": batch, "static topics": set(mapped)}
    for kind, topics in kinds.items():
        if topics:
            yield (
                f"{kind} of RocketMQ 5 are not read: {_shown(topics)}; in RocketMQ 5, consume"
                " these topics to their end and delete them with mqadmin deleteTopic, then stop it"
            )
    if disk.exists(f"{layout.root}/{_IDENTITY}"):
        yield (
            f"a controller of RocketMQ 5 gave this copy its number ({_IDENTITY}); stop all brokers"
            f" of the group, remove {_IDENTITY} and epochFileCheckpoint from the copy that was its"
            " master, and give the other brokers empty folders"
        )


def _rocksdb(disk: Disk, layout: Layout) -> Iterator[str]:
    config, queues = layout.config, layout.consume_queue
    tables = [name for name in TABLES if disk.exists(f"{config}/{name}/{_ROCKSDB}")]
    if tables:
        exports = "; ".join(
            f"mqadmin rocksDBConfigToJson -p {config} -t {name} -e {config}/{TABLES[name]}"
            for name in tables
        )
        yield (
            f"{_shown(tables)} are in RocksDB (storeType=defaultRocksDB) and not read; stop the"
            f" broker of RocketMQ 5, run its {exports}, and remove {config}/{{{','.join(tables)}}}"
        )
    if disk.exists(f"{queues}/{_ROCKSDB}"):
        yield (
            f"the consume queues are in RocksDB and not read; remove {queues}, and they are made"
            " again from the log"
        )


def _batch_topics(disk: Disk, layout: Layout) -> Iterator[str]:
    for name, topic in _table(disk, layout, "topics.json", "topicConfigTable", _BATCH).items():
        attributes = topic.get("attributes") if isinstance(topic, dict) else None
        if isinstance(attributes, dict) and attributes.get("queue.type") == _BATCH:
            yield name


def _table(disk: Disk, layout: Layout, file: str, member: str, word: str = "") -> Mapping[str, Any]:
    """Return a table of a file that has a word; empty if there is none, or it is unreadable."""
    path = f"{layout.config}/{file}"
    try:
        data = read_whole(disk, path) or b""
        found = decode_file(dict[str, Any], data).get(member) if word.encode() in data else None
    except CometError:  # the reader of the table reports it
        return {}
    return found if isinstance(found, dict) else {}


def _shown(names: Collection[str]) -> str:
    shown = sorted(names)
    more = len(shown) - NAMES_SHOWN_MAX
    return ", ".join(shown[:NAMES_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")


class StoreFolder:
    """One process's claim on a store's folder."""

    __slots__ = ("_disk", "_layout", "_lock")

    def __init__(self, disk: Disk, layout: Layout) -> None:
        self._disk = disk
        self._layout = layout
        self._lock: DiskLock | None = None

    @property
    def is_claimed(self) -> bool:
        """Whether this process holds the lock."""
        return self._lock is not None

    def claim(self) -> None:
        """Lock the folder, creating it if necessary. Raise LockHeld or DiskError."""
        self._disk.make_folder(self._layout.root)
        self._lock = self._disk.lock(self._layout.lock)

    def release(self) -> None:
        """Release the lock."""
        assert self._lock is not None
        self._lock.release()
        self._lock = None

    def prepare(self) -> bool:
        """Create missing folders and remove temporary files.

        Return whether the last stop was clean.
        """
        disk, layout = self._disk, self._layout
        folders = layout.commit_log, layout.consume_queue, layout.index, layout.config
        for path in (*folders, layout.checksums):
            disk.make_folder(path)
        for path in layout.left_behind(disk.names):
            disk.remove(path)
        return not disk.exists(layout.abort)

    def has_rebooted(self, boot_id: str) -> bool:
        """Return whether the host may have crashed while a program had the store open.

        A crash of the host loses the page cache. RocketMQ leaves an empty abort file without a boot
        id, so the result is True after any unclean stop of RocketMQ.
        """
        disk, path = self._disk, self._layout.abort
        if not disk.exists(path):
            return False
        return not boot_id or disk.open(path).read(0, len(boot_id) + 1) != boot_id.encode()

    def mark_open(self, boot_id: str) -> None:
        """Create and sync the abort file, which reveals an unclean stop to the next startup."""
        disk, layout = self._disk, self._layout
        temporary = layout.temporary(layout.abort)
        file = disk.create(layout.abort, len(boot_id), temporary=temporary)
        try:
            file.write(0, [boot_id.encode()])
            file.sync()
        except DiskError as error:
            # A full disk must not prevent a start, because consumers can still read. Without the
            # boot id, the next start assumes that the host has crashed and verifies more checksums.
            if not error.is_space_missing:
                raise
        file.close()
        disk.sync_folder(layout.root)

    def mark_clean(self) -> None:
        """Remove the abort file, so that the next start skips most checks."""
        self._disk.remove(self._layout.abort)
