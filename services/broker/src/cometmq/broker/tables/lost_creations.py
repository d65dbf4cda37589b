# SPDX-License-Identifier: Apache-2.0
"""Finds the topics of messages that wait in the broker, whose creation a crash may have lost.

A crash of the host loses what the journal got last. A topic of stored messages is found by its
queues; one whose messages all wait, in a delay level or as half messages, has no queues yet.
"""

from collections.abc import Iterator
from heapq import merge
from itertools import islice
from typing import Final

from cometmq.broker.tables.topics import QUEUE_NUMS_MAX
from cometmq.remoting.integers import whole
from cometmq.remoting.message.properties import PropertyKey
from cometmq.remoting.names import HALF_TOPIC, SCHEDULE_TOPIC
from cometmq.store.message_store import MessageStore
from cometmq.store.queues.consume_queue import ConsumeQueue, QueueEntry, entries_from
from cometmq.store.queues.queue_files import FILLER_SIZE
from cometmq.store.reads import finish

MESSAGES_MAX: Final = 50_000
"""The newest messages, which are read in about two seconds. The journal is synced twice a second,
so a crash loses only the creations of its last moments.
"""
_STEP: Final = 1_024  # entries that are in memory at a time


def waiting_topics(
    store: MessageStore, since: int | None, *, count_max: int = MESSAGES_MAX
) -> dict[str, int]:
    """Return the topics of delayed and half messages at or after an offset of the log, with the
    number of queues that they need; blocks.
    """
    if since is None:
        return {}
    reader, deleted = store.reader, store.deletion_ends()
    queues = [
        queue
        for topic, queue_id in reader.queue_ids()
        if topic in (SCHEDULE_TOPIC, HALF_TOPIC) and (queue := reader.queue(topic, queue_id))
    ]
    found: dict[str, int] = {}
    entries = merge(*(_newest(queue, since) for queue in queues), reverse=True)
    for entry in islice(entries, count_max):
        record = finish(reader.read_record(entry.physical_offset))
        if record is None:
            continue
        topic = record.properties.get(PropertyKey.REAL_TOPIC, "")
        queue_id = whole(record.properties.get(PropertyKey.REAL_QUEUE_ID, ""))
        if queue_id is None or entry.physical_offset < deleted.get(topic, 0):
            continue
        found[topic] = max(found.get(topic, 0), min(queue_id + 1, QUEUE_NUMS_MAX))
    return found


def _newest(queue: ConsumeQueue, since: int) -> Iterator[QueueEntry]:
    """Yield the entries of the records at or after an offset of the log, newest first."""
    end = queue.max_offset
    while end > queue.min_offset:
        begin = max(queue.min_offset, end - _STEP)
        for fields in reversed(entries_from(queue, begin, end - begin)):
            entry = QueueEntry(*fields)
            if entry.size in {0, FILLER_SIZE}:
                continue
            if entry.physical_offset < since:
                return
            yield entry
        end = begin
