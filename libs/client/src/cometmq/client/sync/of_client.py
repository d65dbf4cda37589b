# SPDX-License-Identifier: Apache-2.0
"""The blocking form of the admin calls that every producer and consumer offers."""

from typing import NoReturn

from cometmq.client.admin import of_client
from cometmq.client.admin.broker_messages import FOREVER_MS, KEY_COUNT_MAX
from cometmq.client.message import MessageExt
from cometmq.client.sync.loop import loop_thread
from cometmq.remoting.bodies.queues import MessageQueue


class ClientAdmin:
    """Topics, offsets and stored messages within the namespace of one client."""

    def __init__(self, inner: of_client.ClientAdmin) -> None:
        self._inner = inner

    def create_topic(
        self, topic: str, *, queue_count: int | None = None, is_forced: bool = False
    ) -> list[str]:
        """Create or change a topic on all masters; return their names.

        A new topic has 8 queues on each broker, unless `queue_count` is given. An existing topic
        gets fewer queues only if `is_forced` is set.
        """
        return loop_thread().run(
            self._inner.create_topic(topic, queue_count=queue_count, is_forced=is_forced)
        )

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return all queues of a topic that can be read."""
        return loop_thread().run(self._inner.queues(topic))

    def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message of a queue."""
        return loop_thread().run(self._inner.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message of a queue will get."""
        return loop_thread().run(self._inner.max_offset(queue))

    def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the message stored nearest to a timestamp.

        For a time after the newest message, this is the newest message's offset.
        """
        return loop_thread().run(self._inner.search_offset(queue, timestamp_ms))

    def earliest_store_time(self, queue: MessageQueue) -> int | None:
        """Return when the oldest message of a queue was stored, in milliseconds, or None if the
        queue is empty.
        """
        return loop_thread().run(self._inner.earliest_store_time(queue))

    def view_message(self, message_id: str, topic: str) -> MessageExt:
        """Return a message by its offset message id or its unique key; raise QueryNotFound if there
        is none.

        While a delayed message waits, its `queue` is a queue of SCHEDULE_TOPIC_XXXX.
        """
        return loop_thread().run(self._inner.view_message(message_id, topic))

    def query_by_key(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = KEY_COUNT_MAX,
        begin_ms: int = 0,
        end_ms: int = FOREVER_MS,
    ) -> list[MessageExt]:
        """Return the newest messages with a key; see `AdminClient.query_by_key`."""
        return loop_thread().run(
            self._inner.query_by_key(
                topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms
            )
        )

    def __getattr__(self, name: str) -> NoReturn:
        """Raise an AttributeError that names the class with this method."""
        of_client.raise_unknown(self, name)
