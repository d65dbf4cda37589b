# SPDX-License-Identifier: Apache-2.0
"""Find groups that read so far behind that they slow everybody down (off by default).

Compatibility: RocketMQ measures how far behind a pull reads; here the committed offset tells,
so that a group counts whether or not it pulls at the moment. Only connected groups count: one
that is away costs nothing.
"""

from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from cometmq.broker.consumers import ConsumerGroup
from cometmq.broker.offsets import Offsets
from cometmq.store.consume_queue import ConsumeQueue

CHECK_INTERVAL_MS: Final = 180_000


class QueueSource(Protocol):
    """What the measurement needs of a store."""

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a consume queue."""


def slow_groups(
    groups: Iterable[ConsumerGroup],
    offsets: Offsets,
    store: QueueSource,
    *,
    log_end: int,
    behind_bytes_max: int,
) -> Iterator[str]:
    """Yield the groups with a queue whose next message lies further behind than allowed."""
    for group in groups:
        behind = (
            log_end - position
            for topic in group.subscriptions
            for position in _positions(group.name, topic, offsets, store)
        )
        if any(size > behind_bytes_max for size in behind):
            yield group.name


def _positions(group: str, topic: str, offsets: Offsets, store: QueueSource) -> Iterator[int]:
    """Yield where in the log the group's next messages lie."""
    for queue_id, offset in offsets.queues(group, topic).items():
        queue = store.queue(topic, queue_id)
        entry = None if queue is None else queue.entry(offset)
        if entry is not None:
            yield entry.physical_offset
