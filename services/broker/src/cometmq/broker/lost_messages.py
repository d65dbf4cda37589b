# SPDX-License-Identifier: Apache-2.0
"""Lowers the offsets of groups to the ends of their queues after messages have been lost.

A queue that has lost its last messages, with a disk or by a power failure, gives their offsets to
new messages. A group that had consumed the lost ones would skip as many new ones.

The same happens if a slave that has copied offsets, but not yet the messages before them, is
started as a master. A file in its store, the mark, shows that it was a slave.

Offsets are lowered only in these two cases. Otherwise a program may have committed an offset beyond
the end of its queue on purpose.

Compatibility: RocketMQ leaves such offsets as they are.
"""

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from cometmq.broker.broker import Broker
from cometmq.broker.storing.disk_jobs import Workers
from cometmq.broker.tables.offsets import KEY_SEPARATOR
from cometmq.runtime.files import sync_folder

_COPIED: Final = "copied"
"""The file in the config folder that marks the store of a slave."""


async def fit_offsets(broker: Broker, workers: Workers) -> None:
    """At the start of a broker outside a broker group: mark the store of a slave; lower the offsets
    of a master if its store is marked or has lost messages.
    """
    mark = _mark_of(broker)
    if not broker.role.is_master:
        await workers.config.submit(partial(_set, mark))
        return
    is_copy = await workers.config.submit(mark.exists)
    if is_copy or broker.tables.has_lost_messages:
        lower_offsets(broker)
    saver = broker.tables.saver
    if is_copy:
        saver.request_if_dirty(broker.tables.offsets)
        await saver.drain()
        if saver.is_healthy:
            with suppress(OSError):  # the next start lowers offsets again
                await workers.config.submit(mark.unlink)


def _mark_of(broker: Broker) -> Path:
    return Path(broker.settings.store_path_root_dir).expanduser() / "config" / _COPIED


def _set(mark: Path) -> None:
    if mark.exists():
        return
    with suppress(OSError):  # a slave with a full disk still serves reads
        mark.touch()
        sync_folder(mark.parent)


def lower_offsets(broker: Broker) -> None:
    """Lower the offsets of known topics that are beyond the ends of their queues to these ends."""
    topics, offsets = broker.tables.topics.table, broker.tables.offsets
    lowered: list[str] = []
    for key, queues in list(offsets.table.items()):
        topic, _, group = key.partition(KEY_SEPARATOR)
        if topic not in topics:
            continue
        for queue_id, offset in list(queues.items()):
            end = broker.store.reader.max_offset(topic, queue_id)
            if offset > end:
                offsets.commit(group, topic, queue_id, end)
                lowered.append(f"{group} in {topic}/{queue_id}: {offset} -> {end}")
    if lowered:
        broker.log.warning("offsets.lowered", count=len(lowered), first=lowered[0])
