# SPDX-License-Identifier: Apache-2.0
"""The messages that share bytes with damaged ranges of the log, and are withheld from readers.

They are identified from the queue entries, because the damaged bytes cannot be trusted.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

from cometmq.store.log.damage import DamagedRange
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.queue_files import ENTRY, FILLER_SIZE

QUEUES_NAMED_MAX: Final = 20


class DamagedMessages(NamedTuple):
    """Messages of one queue that are withheld from readers, `first` to `last` inclusive."""

    topic: str
    queue_id: int
    first: int
    last: int

    def __str__(self) -> str:
        """Return, for example, `orders/2: 5-7`."""
        offsets = f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"
        return f"{self.topic}/{self.queue_id}: {offsets}"


def messages_in(
    queues: Iterable[ConsumeQueue], damage: DamagedRange, *, is_starting: bool = False
) -> list[DamagedMessages]:
    """Find the messages that share bytes with a damaged range; blocks.

    The queues are complete on the disk up to the last checkpoint. Records after it are examined
    only at startup, when no other thread uses the queues.
    """
    found = []
    for queue in queues:
        parts = [_offsets_between(queue, *damage)]
        if is_starting:
            parts.append(_unwritten_between(queue, *damage))
        found += [
            DamagedMessages(queue.topic, queue.queue_id, offsets[0], offsets[-1])
            for offsets in parts
            if offsets
        ]
    return sorted(found)


def _offsets_between(queue: ConsumeQueue, start: int, end: int) -> range:
    """Return the offsets of entries in the files whose records overlap a range of the log."""
    files = queue.files
    low, stop = queue.first_at(start), queue.written_offset
    if low > queue.min_offset:
        offset, size, _ = files.entry(low - 1)
        if size != FILLER_SIZE and offset + size > start:
            low -= 1
    high = low
    while high < stop and files.entry(high)[0] < end:
        high += 1
    return range(low, high)


def _unwritten_between(queue: ConsumeQueue, start: int, end: int) -> range:
    """Return the offsets of entries in memory whose records overlap a range of the log."""
    first, unwritten = queue.unwritten()
    entries = enumerate(ENTRY.iter_unpack(unwritten), first)
    found = [
        queue_offset
        for queue_offset, (offset, size, _) in entries
        if offset < end and offset + size > start and size != FILLER_SIZE
    ]
    return range(found[0], found[-1] + 1) if found else range(0)


def message_count(messages: list[DamagedMessages]) -> int:
    """Return the number of messages in all ranges together."""
    return sum(it.last - it.first + 1 for it in messages)


def described(messages: list[DamagedMessages]) -> str:
    """Return the messages as one line of bounded length."""
    text = ", ".join(map(str, messages[:QUEUES_NAMED_MAX]))
    left = len(messages) - QUEUES_NAMED_MAX
    return f"{text}, and {left} more queues" if left > 0 else text


Findings: TypeAlias = list[tuple[DamagedRange, list[DamagedMessages]]]
