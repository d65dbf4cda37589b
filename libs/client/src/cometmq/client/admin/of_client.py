# SPDX-License-Identifier: Apache-2.0
"""Admin calls that every producer and consumer offers, over its own connections.

Names are relative to the client's namespace; an `AdminClient` takes full names.
"""

from typing import NoReturn

import msgspec

from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker_messages import FOREVER_MS, KEY_COUNT_MAX
from cometmq.client.cluster.instance import ClientInstance
from cometmq.client.message import MessageExt
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.log import Log


class ClientAdmin:
    """Topics, offsets and stored messages within the namespace of one client."""

    def __init__(self, instance: ClientInstance, log: Log) -> None:
        self._admin = AdminClient.attached(instance, log)
        self._refreshes = instance.refreshes
        self._namespace = instance.namespace

    async def create_topic(
        self, topic: str, *, queue_count: int | None = None, is_forced: bool = False
    ) -> list[str]:
        """Create or change a topic on all masters; return their names.

        A new topic has 8 queues on each broker, unless `queue_count` is given. Raise
        InvalidArgument if an existing topic would have fewer queues than before, unless `is_forced`
        is set, because consumers would not see the messages in the removed queues.

        This client uses the new queues at once, other clients after their next route refresh.
        """
        topic = self._namespace.wrap(topic)
        names = await self._admin.create_topic(topic, queue_count=queue_count, is_forced=is_forced)
        self._refreshes.outdated(topic)
        return names

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return all queues of a topic that can be read."""
        found = await self._admin.queues(self._namespace.wrap(topic))
        return [self._namespace.unwrap_queue(queue) for queue in found]

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message of a queue."""
        return await self._admin.min_offset(self._namespace.wrap_queue(queue))

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message of a queue will get."""
        return await self._admin.max_offset(self._namespace.wrap_queue(queue))

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the message stored nearest to a timestamp.

        For a time after the newest message, this is the newest message's offset.
        """
        return await self._admin.search_offset(self._namespace.wrap_queue(queue), timestamp_ms)

    async def earliest_store_time(self, queue: MessageQueue) -> int | None:
        """Return when the oldest message of a queue was stored, in milliseconds, or None if the
        queue is empty.
        """
        return await self._admin.earliest_store_time(self._namespace.wrap_queue(queue))

    async def view_message(self, message_id: str, topic: str) -> MessageExt:
        """Return a message by its offset message id or its unique key; raise QueryNotFound if there
        is none.

        While a delayed message waits, its `queue` is a queue of SCHEDULE_TOPIC_XXXX.
        """
        found = await self._admin.view_message(message_id, self._namespace.wrap(topic))
        return self._seen(found)

    async def query_by_key(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = KEY_COUNT_MAX,
        begin_ms: int = 0,
        end_ms: int = FOREVER_MS,
    ) -> list[MessageExt]:
        """Return the newest messages with a key; see `AdminClient.query_by_key`."""
        found = await self._admin.query_by_key(
            self._namespace.wrap(topic),
            key,
            count_max=count_max,
            begin_ms=begin_ms,
            end_ms=end_ms,
        )
        return [self._seen(message) for message in found]

    def _seen(self, message: MessageExt) -> MessageExt:
        if not self._namespace:
            return message
        return msgspec.structs.replace(
            message,
            topic=self._namespace.unwrap(message.topic),
            queue=self._namespace.unwrap_queue(message.queue),
        )

    def __getattr__(self, name: str) -> NoReturn:
        """Raise an AttributeError that names the class with this method."""
        raise_unknown(self, name)


def raise_unknown(admin: object, name: str) -> NoReturn:
    """Raise the AttributeError for an attribute that a client's admin lacks."""
    text = f"the admin of a client has no attribute {name!r}"
    if not name.startswith("_") and hasattr(AdminClient, name):
        text = f"{text}, but an AdminClient has: AdminClient(namesrv)"
    raise AttributeError(text, name=name, obj=admin)
