# SPDX-License-Identifier: Apache-2.0
"""Refuses a folder of RocketMQ 5 whose messages or tables are partly in formats not read here.

Otherwise a broker would start without offsets, topics or messages, and write beside them.

Compatibility: formats and commands as seen with RocketMQ 5.5.0 (docs/compatibility.md). Its other
files (timer wheel, rocksdbstore, compaction) are not needed, and ignored.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from cometmq.remoting.bodies.dialect import decode_file
from cometmq.remoting.errors import CometError
from cometmq.store.disk import Disk
from cometmq.store.errors import ForeignStore
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
        if not disk.exists(path):
            return {}
        opened = disk.open(path)
        data = opened.read(0, opened.size())
        opened.close()
        found = decode_file(dict[str, Any], data).get(member) if word.encode() in data else None
    except CometError:  # the reader of the table reports it
        return {}
    return found if isinstance(found, dict) else {}


def _shown(names: Collection[str]) -> str:
    shown = sorted(names)
    more = len(shown) - NAMES_SHOWN_MAX
    return ", ".join(shown[:NAMES_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
