# SPDX-License-Identifier: Apache-2.0
"""Read the records of a store's folder, and report the damaged ones instead of hiding them."""

from collections.abc import Callable, Iterator
from typing import NamedTuple
from zlib import crc32

from cometmq.remoting.message.record import MessageRecord
from cometmq.remoting.message.record_layout import CRC_MASK
from cometmq.store.disk import Disk
from cometmq.store.errors import DiskError
from cometmq.store.inspection.inspect import Damage, StoreView, open_view
from cometmq.store.queues.consume_queue import ConsumeQueue, entry_at
from cometmq.store.settings import StoreSettings
from cometmq.store.writing.marks import is_mark


class DamagedEntry(NamedTuple):
    """An entry of a consume queue that does not point to an intact record."""

    queue_offset: int
    physical_offset: int | None
    """None if the entry itself cannot be read."""
    is_printable: bool = False
    """Whether only the body does not match its CRC; then the record is yielded nevertheless."""


def dump_log(  # noqa: PLR0913  # what to yield, what to report, and the store
    root: str,
    start: int | None = None,
    *,
    topic: str | None = None,
    on_gone: Callable[[MessageRecord], None] | None = None,
    on_damage: Callable[[Damage], None] = lambda _damage: None,
    on_fault: Callable[[str], None] = lambda _fault: None,
    disk: Disk | None = None,
    settings: StoreSettings | None = None,
) -> Iterator[MessageRecord]:
    """Yield the records of the log, or of one topic, starting at a record boundary.

    If `on_gone` is given, a record of the topic that is in none of the topic's queues is passed to
    it instead of being yielded, for example after the topic was deleted and created again.
    `on_damage` is called with each range that holds no valid record, in log order; `on_fault` with
    a description of each file that is damaged as a whole.
    """
    view = open_view(root, disk=disk, settings=settings)
    queues = None if topic is None or on_gone is None else _TopicQueues(view, topic)
    reported = faults = 0

    def report() -> None:
        nonlocal reported, faults
        for damage in view.damages[reported:]:
            if damage.physical_offset < view.safe_end:
                on_damage(damage)
        for fault in view.faults[faults:]:
            on_fault(str(fault))
        reported, faults = len(view.damages), len(view.faults)

    for scan in view.records(start):
        report()
        view.parts.commit_log.set_end(view.files.end)
        record = view.read(scan.physical_offset)
        if record is None or is_mark(scan) or topic not in (None, record.topic):
            continue
        if queues is not None and on_gone is not None and queues.lack(record):
            on_gone(record)
        else:
            yield record
    report()
    end = view.last_end
    if end is not None and view.files.first <= end < min(view.known_end, view.files.end):
        position = (end - view.files.first) % view.files.file_size
        on_damage(Damage(view.files.file_at(end).path, position, end, view.known_end))


class _TopicQueues:
    """Recognises the records of a deleted topic whose name a newer topic has: its queues lack
    them.
    """

    def __init__(self, view: StoreView, topic: str) -> None:
        self._view = view
        view.measure_queues(view.files.end)
        found = (queue for queue in view.parts.queues.queues.values() if queue.topic == topic)
        self._queues = {queue.queue_id: queue for queue in found if queue.max_offset > 0}

    def lack(self, record: MessageRecord) -> bool:
        """Return whether the queues lack a record for which they should have an entry by now.

        If the topic has no messages in any queue, this is unknown, and the result is False.
        """
        if not self._queues:
            return False
        queue = self._queues.get(record.queue_id)
        at = record.physical_offset
        if queue is None:
            return at < self._view.safe_end
        if self._place(queue, record.queue_offset) == at:
            return False
        last = self._place(queue, queue.max_offset - 1)
        return at < self._view.safe_end or (last is not None and at < last)

    def _place(self, queue: ConsumeQueue, queue_offset: int) -> int | None:
        """Return the log offset in an entry of a queue, or None if there is no entry."""
        if not queue.min_offset <= queue_offset < queue.max_offset:
            return None
        try:
            entry = entry_at(queue, queue_offset)
        except DiskError as error:
            if not self._view.is_deletion(error):
                raise
            return None
        return None if entry is None else entry.physical_offset


def dump_queue(
    root: str,
    topic: str,
    queue_id: int,
    start: int = 0,
    *,
    on_damage: Callable[[DamagedEntry], None] = lambda _damage: None,
    disk: Disk | None = None,
    settings: StoreSettings | None = None,
) -> Iterator[MessageRecord]:
    """Yield the messages of one queue, starting at this queue offset.

    `on_damage` is called with each entry that does not point to an intact record.
    """
    view = open_view(root, disk=disk, settings=settings)
    log = view.parts.commit_log
    log.set_end(view.files.end)
    view.measure_queues(log.end)
    queue = view.parts.queues.get(topic, queue_id)
    if queue is None:
        return
    for queue_offset in range(max(start, queue.min_offset), queue.max_offset):
        found = _entry(view, queue, queue_offset)
        if found is None:
            continue
        if found.is_printable or found.record is None:
            on_damage(DamagedEntry(queue_offset, found.physical_offset, found.is_printable))
        if found.record is not None:
            yield found.record


class _Found(NamedTuple):
    physical_offset: int | None
    record: MessageRecord | None
    is_printable: bool = False


def _entry(view: StoreView, queue: ConsumeQueue, queue_offset: int) -> _Found | None:
    """Return a record, intact or not; None if a running broker has deleted it or is writing it."""
    try:
        entry = entry_at(queue, queue_offset)
    except DiskError as error:
        if not view.is_deletion(error):
            raise
        return None
    if entry is None:
        return _Found(None, None) if view.in_use_by is None else None
    at = entry.physical_offset
    is_damage = view.in_use_by is None or at < view.safe_end  # beyond it, one may be half written
    record = view.read(at)
    if record is None:
        is_gone = view.in_use_by is not None and not view.disk.exists(view.files.file_at(at).path)
        return _Found(at, None) if is_damage and not is_gone else None
    is_intact = crc32(record.body) & CRC_MASK == record.body_crc
    return _Found(at, record, is_damage and not is_intact)
