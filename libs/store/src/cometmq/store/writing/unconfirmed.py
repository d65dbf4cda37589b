# SPDX-License-Identifier: Apache-2.0
"""Commits that are in the log, but beyond the offset up to which readers may see the log.

A master whose replicas lag keeps the queue entries and the keys of such commits, and publishes each
commit as a whole, in log order.
"""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.writing.append import Batch


class _Held(NamedTuple):
    batch: Batch
    counts: list[tuple[ConsumeQueue, int]]


class Unconfirmed:
    """The commits that readers may not see yet, oldest first."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: deque[_Held] = deque()

    def __bool__(self) -> bool:
        return bool(self._held)

    def add(self, batch: Batch) -> None:
        """Hold back a commit whose records have just been written."""
        counts = [(queue, queue.hold()) for queue in batch.touched]
        batch.segments = []  # the records are already in the log
        self._held.append(_Held(batch, counts))

    def take(self, offset: int | None) -> Iterator[Batch]:
        """Yield the commits that end at or below an offset, after publishing the entries of
        each.
        """
        held = self._held
        while held and (offset is None or held[0].batch.end <= offset):
            batch, counts = held.popleft()
            for queue, count in counts:
                queue.publish_held(count)
            yield batch

    def forget(self, queue: ConsumeQueue) -> None:
        """Drop the entries of a queue that is being deleted."""
        for number, (batch, counts) in enumerate(self._held):
            batch.touched = [other for other in batch.touched if other is not queue]
            kept = [entry for entry in counts if entry[0] is not queue]
            self._held[number] = _Held(batch, kept)

    def drop(self) -> None:
        """Forget all commits; their records are later dispatched from the log or truncated."""
        for _, counts in self._held:
            for queue, _ in counts:
                queue.drop_held()
        self._held.clear()
