# SPDX-License-Identifier: Apache-2.0
"""Finds topics whose creation a crash of the host may have lost, by their waiting messages.

Such a crash loses the newest changes in the journal. A lost topic with stored messages is found by
its queues. If all its messages wait, in a delay level or as half messages, it has no queues yet, so
the properties of waiting messages are read.
"""

from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Final

from cometmq.broker.tables.topics import QUEUE_NUMS_MAX
from cometmq.remoting.integers import whole
from cometmq.remoting.message.properties import PropertyKey, property_value
from cometmq.remoting.message.record import ScanStatus, scan_record
from cometmq.remoting.names import HALF_TOPIC, SCHEDULE_TOPIC
from cometmq.store.message_store import MessageStore
from cometmq.store.queues.consume_queue import ConsumeQueue, QueueEntry, entries_from
from cometmq.store.queues.queue_files import FILLER_SIZE
from cometmq.store.reads import finish

MESSAGES_MAX: Final = 50_000
"""Maximum number of messages that are read, in half a second, the newest first. The journal is
synced twice a second, so older messages do not matter.
"""
SPAN_BYTES_MAX: Final = 256 << 10
"""Maximum number of bytes of one read; a read for each message took three times as long."""
GAP_BYTES_MAX: Final = 16 << 10  # between two of them, of records that are not needed
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
    entries = islice(merge(*(_newest(queue, since) for queue in queues), reverse=True), count_max)
    for span in _spans(entries, store.commit_log.files.file_size):
        for entry, properties in _properties(store, span):
            topic = property_value(properties, PropertyKey.REAL_TOPIC) or ""
            queue_id = whole(property_value(properties, PropertyKey.REAL_QUEUE_ID) or "")
            if queue_id is None or entry.physical_offset < deleted.get(topic, 0):
                continue
            found[topic] = max(found.get(topic, 0), min(queue_id + 1, QUEUE_NUMS_MAX))
    return found


def _spans(entries: Iterable[QueueEntry], file_size: int) -> Iterator[Sequence[QueueEntry]]:
    """Divide entries, newest first, into groups whose records are read together."""
    span: list[QueueEntry] = []
    for entry in entries:
        if span and not _are_near(entry, span, file_size):
            yield span
            span = []
        span.append(entry)
    if span:
        yield span


def _are_near(entry: QueueEntry, span: Sequence[QueueEntry], file_size: int) -> bool:
    begin, end = entry.physical_offset, span[0].physical_offset
    return (
        end - begin <= SPAN_BYTES_MAX
        and span[-1].physical_offset - begin - entry.size <= GAP_BYTES_MAX
        and end // file_size == begin // file_size
    )


def _properties(
    store: MessageStore, span: Sequence[QueueEntry]
) -> Iterator[tuple[QueueEntry, str]]:
    """Yield the properties of the records that can be read; blocks."""
    first = span[-1].physical_offset
    size = span[0].physical_offset + span[0].size - first
    data = finish(store.reader.read_span(first, size))
    if data is None:
        for entry in span if len(span) > 1 else ():  # one of them is damaged
            yield from _properties(store, [entry])
        return
    for entry in span:
        scan = scan_record(data, entry.physical_offset - first)
        if scan.status is ScanStatus.RECORD and scan.physical_offset == entry.physical_offset:
            yield entry, str(scan.properties, "utf-8", "replace")


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
