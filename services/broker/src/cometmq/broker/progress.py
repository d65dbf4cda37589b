# SPDX-License-Identifier: Apache-2.0
"""The progress of consumer groups in their topics and queues, for metrics and admin tools."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from cometmq.broker.broker import Broker
from cometmq.broker.tables.topics import QUEUE_NUMS_MAX
from cometmq.remoting.names import retry_topic
from cometmq.remoting.progress import unread


class QueueProgress(NamedTuple):
    """The progress of a group in one queue; `end` is exclusive."""

    queue_id: int
    committed: int | None
    first: int
    end: int

    @property
    def lag(self) -> int:
        """Return how many messages the group has yet to read."""
        return unread(self.committed, self.first, self.end)


def consumed_topics(broker: Broker, group: str) -> list[str]:
    """Return the topics in which a group has offsets, and always its retry topic."""
    topics = {*broker.tables.offsets.index.topics_of(group), retry_topic(group)}
    return present_topics(broker, group, sorted(topics))


def present_topics(broker: Broker, group: str, topics: Iterable[str]) -> list[str]:
    """Return the given topics that exist and to which the group, if connected, subscribes."""
    online = broker.clients.consumers.group(group)
    subscribed = online.subscriptions.keys() if online is not None else ()
    return [
        name
        for name in topics
        if name in broker.tables.topics.table and (not subscribed or name in subscribed)
    ]


def progress_in(broker: Broker, group: str, topic: str) -> Iterator[QueueProgress]:
    """Yield a group's progress in each queue that its members read, and in stranded queues."""
    config = broker.tables.topics.table.get(topic)
    count = 0 if config is None else config.read_queue_nums
    yield from queues_of(broker, group, topic, range(count))
    yield from stranded_queues(broker, group, topic)


def stranded_queues(broker: Broker, group: str, topic: str) -> Sequence[QueueProgress]:
    """Return a group's stranded queues: those with unread messages that no consumer reads any more.

    Consumers read the first `readQueueNums` queues of a topic. If an operator lowers this number,
    messages in the queues above it wait until it is raised again.
    """
    config = broker.tables.topics.table.get(topic)
    if config is None:
        return ()
    end = min(broker.store.reader.queue_count(topic), QUEUE_NUMS_MAX)
    outside = range(config.read_queue_nums, end)
    return [queue for queue in queues_of(broker, group, topic, outside) if queue.lag]


def queues_of(
    broker: Broker, group: str, topic: str, queue_ids: Iterable[int]
) -> Iterator[QueueProgress]:
    """Yield a group's progress in the given queues of a topic."""
    store, committed = broker.store, broker.tables.offsets.committed
    for queue_id in queue_ids:
        yield QueueProgress(
            queue_id,
            committed(group, topic, queue_id),
            store.reader.min_offset(topic, queue_id),
            store.reader.max_offset(topic, queue_id),
        )
