# SPDX-License-Identifier: Apache-2.0
"""The reading half of a store: pulls, the ends of queues, and searches."""

from collections.abc import Sequence

from cometmq.store.lookups import Lookups
from cometmq.store.parts import Parts
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.pulls import Pulls
from cometmq.store.reads import Lookup
from cometmq.store.results import GetResult


class Reader(Lookups):
    """Reads one store; nothing here changes it."""

    def __init__(self, parts: Parts, pulls: Pulls) -> None:
        super().__init__(parts)
        self._pulls = pulls
        # Called for each pull, so without a method in between: see `Pulls.get`, `Pulls.find`.
        self.get_messages = pulls.get
        self.find_messages = pulls.find
        self.queue = parts.queues.get

    @property
    def bounds(self) -> tuple[int, int]:
        """The physical offsets between which readers can see the log."""
        return self._commit_log.min_offset, self._commit_log.confirm_offset

    def settled(self, topic: str, queue_id: int, offset: int, result: GetResult) -> GetResult:
        """Return the answer to a cold read of this offset, which was loaded on a worker thread."""
        queue = self._queues.get(topic, queue_id)
        if queue is None or not (result.damaged or result.doubts):
            return result
        return self._pulls.settled(queue, offset, result)

    def awaits_repair(self, queue: ConsumeQueue, queue_offsets: Sequence[int]) -> bool:
        """Have entries examined that do not fit their records; return whether their readers have to
        wait for that.
        """
        return self._pulls.suspects.first_awaited(queue, queue_offsets) is not None

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first offset of a queue; 0 if the queue does not exist."""
        queue = self._queues.get(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of a queue's next message; 0 if the queue does not exist."""
        queue = self._queues.get(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def earliest_store_time(self, topic: str, queue_id: int) -> Lookup[int]:
        """Find the store time of a queue's oldest message; -1 if the queue is empty."""
        return self.store_time(topic, queue_id, self.min_offset(topic, queue_id))

    def topics(self) -> set[str]:
        """Return the topics that have at least one queue."""
        return {topic for topic, _ in self._queues.queues}

    def queue_ids(self) -> list[tuple[str, int]]:
        """Return the topic and id of every queue."""
        return list(self._queues.queues)

    def queue_count(self, topic: str) -> int:
        """Return the highest queue id that has held messages of a topic, plus one; 0 if there is
        none.
        """
        return self._queues.counts.get(topic, 0)
