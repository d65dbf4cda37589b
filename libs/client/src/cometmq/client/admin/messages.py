# SPDX-License-Identifier: Apache-2.0
"""Administration of messages: find them by id, key or position on all brokers."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Final

import msgspec

from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.broker_messages import (
    FOREVER_MS,
    KEY_COUNT_MAX,
    PULL_COUNT_MAX,
)
from cometmq.client.admin.scope import AdminBase
from cometmq.client.arguments import check_text, timestamp, whole
from cometmq.client.errors import BrokerMissing, InvalidArgument
from cometmq.client.message import MessageExt, check_received
from cometmq.client.transfer.puller import Pulled, PullStatus
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.running_info import ConsumeMessageDirectlyResult
from cometmq.remoting.errors import QueryNotFound, ServerError
from cometmq.remoting.message.ids import host_text, parse_offset_message_id
from cometmq.remoting.message.properties import PropertyKey
from cometmq.remoting.names import ALL_TAGS, SCHEDULE_TOPIC, TOOLS_GROUP

QUERY_TIMEOUT_MS: Final = 18_000
_UNIQUE_KEY_ADVICE: Final = (
    "for a unique key (the message_id of a message), use view_message(message_id, topic), or "
    "cometmq queryMsgByUniqueKey"
)


class MessageAdmin(AdminBase):
    """Finds messages."""

    async def view_message(self, message_id: str, topic: str) -> MessageExt:
        """Return a message by its offset message id or its unique key; raise QueryNotFound if there
        is none.

        While a delayed message waits, its `queue` is a queue of SCHEDULE_TOPIC_XXXX.
        """
        check_text(message_id, "message_id")
        # An id that is not an offset message id of this cluster may still be a unique key.
        with suppress(ValueError, ServerError, BrokerMissing):
            return _as_sent(await self._view_stored(message_id, topic))
        for message in await self._query(
            topic, lambda broker: broker.query(topic, message_id, is_unique_key=True)
        ):
            return message
        for message in await self._query(
            topic, lambda broker: broker.query(SCHEDULE_TOPIC, message_id, is_unique_key=True)
        ):
            if (waiting := _as_sent(message)).topic == topic:  # else a retry of a group
                return waiting
        raise QueryNotFound(f"no message of the topic {topic} has the id {message_id}")

    async def query_by_key(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = KEY_COUNT_MAX,
        begin_ms: int = 0,
        end_ms: int = FOREVER_MS,
    ) -> list[MessageExt]:
        """Return the newest messages with a key, oldest first, or an empty list.

        Each broker returns at most `count_max` messages, and never more than its setting
        `maxMsgsNumBatch` (64 by default); for older ones, set `end_ms`. Raise InvalidArgument if
        `key` is the id of a message instead.
        """
        check_text(key, "key")
        whole(count_max, "count_max", low=1)
        timestamp(begin_ms, name="begin_ms")
        timestamp(end_ms, name="end_ms")
        found = await self._query(
            topic,
            lambda broker: broker.query(
                topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms
            ),
        )
        if not found and _is_like_id(key) and await self.query_by_unique_key(topic, key):
            raise InvalidArgument(
                f"{key} is the unique key of a message (its message_id), not one of its keys: use "
                "query_by_unique_key(topic, unique_key) or view_message(message_id, topic)"
            )
        return found

    async def query_by_unique_key(self, topic: str, unique_key: str) -> list[MessageExt]:
        """Return the messages with a unique key, oldest first.

        A message that was resent appears once per send. Raise InvalidArgument if `unique_key` is an
        offset message id instead.
        """
        check_text(unique_key, "unique_key")
        found = await self._query(
            topic, lambda broker: broker.query(topic, unique_key, is_unique_key=True)
        )
        if not found and await self._broker_of(unique_key, topic) is not None:
            raise InvalidArgument(
                f"{unique_key} is an offset message id, not a unique key: use "
                "stored_message(offset_message_id) or view_message(message_id, topic)"
            )
        return found

    async def stored_message(self, offset_message_id: str) -> MessageExt:
        """Return the message with this offset message id, which contains its broker's address.

        Raise InvalidArgument for a malformed id, and BrokerMissing if no broker has the address in
        the id.
        """
        try:
            place = parse_offset_message_id(offset_message_id)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"{error}; {_UNIQUE_KEY_ADVICE}") from error
        try:
            broker = await self._broker_at(host_text(place.host))
        except BrokerMissing as error:
            raise BrokerMissing(f"{error}; {_UNIQUE_KEY_ADVICE}") from error
        return await broker.message_at(place.physical_offset)

    async def consume_directly(
        self, group: str, client_id: str, message: MessageExt
    ) -> ConsumeMessageDirectlyResult:
        """Make one connected consumer process a stored message now."""
        check_received(message)
        broker = await self._broker_at(message.store_host)
        return await broker.consume_directly(group, client_id, message.offset_message_id)

    async def read(
        self,
        queue: MessageQueue,
        begin: int,
        end: int,
        *,
        expression: str = ALL_TAGS,
        group: str = TOOLS_GROUP,
    ) -> AsyncIterator[Pulled]:
        """Yield the messages of a queue from `begin` up to, but not including, `end`; commit
        nothing.

        Each `Pulled` is the answer to one request. It contains at most 32 messages, and none if
        the filter rejects them all. Messages that are deleted during the read are skipped.
        """
        whole(begin, "begin")
        whole(end, "end")
        master = await self._master_of(queue)
        while begin < end:
            count_max = min(PULL_COUNT_MAX, end - begin)
            found = await master.pull(
                queue.topic,
                queue.queue_id,
                begin,
                count_max=count_max,
                expression=expression,
                group=group,
            )
            found.messages = [m for m in found.messages if m.queue_offset < end]
            yield found
            if found.status is PullStatus.NO_NEW or found.next_offset <= begin:
                return
            begin = found.next_offset

    async def _broker_at(self, address: str) -> BrokerAdmin:
        for name, data in (await self.cluster()).broker_addr_table.items():
            if address in data.broker_addrs.values():
                return self.broker(address, name=name)
        raise BrokerMissing(f"no broker registered with this name server has the address {address}")

    async def _view_stored(self, message_id: str, topic: str) -> MessageExt:
        broker = await self._broker_of(message_id, topic)
        if broker is None:
            raise BrokerMissing(f"no broker of the topic {topic} has the address in {message_id}")
        place = parse_offset_message_id(message_id)
        return await broker.message_at(place.physical_offset, topic=topic)

    async def _broker_of(self, message_id: str, topic: str) -> BrokerAdmin | None:
        """Return which of a topic's brokers assigned an offset message id, or None if none of them
        did.
        """
        if not _is_like_id(message_id):
            return None
        address = host_text(parse_offset_message_id(message_id).host)
        for data in (await self.route(topic)).broker_datas:
            if address in data.broker_addrs.values():
                return self.broker(address, name=data.broker_name)
        return None

    async def _query(
        self, topic: str, ask: Callable[[BrokerAdmin], Awaitable[list[MessageExt]]]
    ) -> list[MessageExt]:
        answers = await self.ask_brokers_of(topic, ask, timeout_ms=QUERY_TIMEOUT_MS)
        found = [message for _, some in answers for message in some]
        return sorted(found, key=lambda message: message.store_timestamp)


def _as_sent(message: MessageExt) -> MessageExt:
    """Return a waiting delayed message with the topic to which it was sent."""
    if message.topic != SCHEDULE_TOPIC:
        return message
    topic = message.properties.get(PropertyKey.REAL_TOPIC, message.topic)
    return msgspec.structs.replace(message, topic=topic)


def _is_like_id(text: str) -> bool:
    """Return whether a string has the form that offset message ids and unique keys share."""
    try:
        parse_offset_message_id(text)
    except ValueError:
        return False
    return True
