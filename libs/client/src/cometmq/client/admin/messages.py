# SPDX-License-Identifier: Apache-2.0
"""Administration of messages: find them by id, key or position on all brokers."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

import msgspec

from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.broker_messages import FOREVER_MS, KEY_COUNT_MAX, PULL_COUNT_MAX
from cometmq.client.admin.scope import AdminBase
from cometmq.client.arguments import check_text, timestamp, whole
from cometmq.client.errors import BrokerMissing, InvalidArgument
from cometmq.client.message import MessageExt, check_received
from cometmq.client.transfer.pulled import EmptyAnswers, Pulled, PullStatus
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.running_info import ConsumeMessageDirectlyResult
from cometmq.remoting.errors import QueryNotFound, RemoteProtocolError, ServerError
from cometmq.remoting.message.ids import host_text, parse_offset_message_id
from cometmq.remoting.message.properties import PropertyKey
from cometmq.remoting.names import ALL_TAGS, SCHEDULE_TOPIC, TOOLS_GROUP
from cometmq.remoting.transport.addresses import is_same_address

QUERY_TIMEOUTS: Final = 6
"""A search by key may take this many times as long as another call: 18 s, as in RocketMQ."""
_UNIQUE_KEY_ADVICE: Final = (
    "for a unique key (the message_id of a message), use view_message(message_id, topic), or "
    "cometmq queryMsgByUniqueKey"
)


class MessageAdmin(AdminBase):
    """Finds messages on all brokers, and reads queues without committing anything."""

    @property
    def query_timeout_ms(self) -> int:
        """How long a search by key may take at one broker."""
        return QUERY_TIMEOUTS * self.options.api_timeout_ms

    async def view_message(self, message_id: str, topic: str) -> MessageExt:
        """Return a message by its offset message id or its unique key; raise QueryNotFound if there
        is none.

        While a delayed message waits, its `queue` is a queue of SCHEDULE_TOPIC_XXXX.
        """
        check_text(message_id, "message_id")
        named, others = _named_in(message_id, await self._brokers_of(topic))
        if found := await self._stored(message_id, named, topic):
            return _as_sent(found)
        for message in await self._query(
            topic, lambda broker: broker.query(topic, message_id, is_unique_key=True)
        ):
            return message
        hops = await self._query(
            topic, lambda broker: broker.query(SCHEDULE_TOPIC, message_id, is_unique_key=True)
        )
        for message in reversed(hops):  # a message with a delivery time waits in the last one
            if (waiting := _as_sent(message)).topic == topic:  # else a retry of a group
                return waiting
        if found := await self._stored(message_id, others, topic):
            return _as_sent(found)
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
        if not found and await self._stored(unique_key, await self._brokers_of(topic), topic):
            raise InvalidArgument(
                f"{unique_key} is an offset message id, not a unique key: use "
                "stored_message(offset_message_id) or view_message(message_id, topic)"
            )
        return found

    async def stored_message(self, offset_message_id: str) -> MessageExt:
        """Return the message with this offset message id.

        The id contains the address that its broker had when it stored the message. The broker may
        have another one now, and another copy may be the master: if no broker has the address,
        all are asked.
        Raise InvalidArgument for a malformed id, and BrokerMissing if no broker has the message.
        """
        try:
            place = parse_offset_message_id(offset_message_id)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"{error}; {_UNIQUE_KEY_ADVICE}") from error
        groups = await self.broker_groups()
        brokers = [group[min(group)] for group in groups.values() if group]
        named, others = _named_in(offset_message_id, brokers)
        for some in (named, others):
            if found := await self._stored(offset_message_id, some):
                return found
        for broker in named:
            return await broker.message_at(place.physical_offset)  # raises the broker's reason
        raise BrokerMissing(
            f"no broker registered with this name server has the address {host_text(place.host)}, "
            f"or the message; {_UNIQUE_KEY_ADVICE}"
        )

    async def consume_directly(
        self, group: str, client_id: str, message: MessageExt
    ) -> ConsumeMessageDirectlyResult:
        """Make one connected consumer process a stored message now."""
        check_received(message)
        broker = await self._holder_of(message)
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
        empty = EmptyAnswers(queue, is_filtered=expression != ALL_TAGS)
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
            empty.check(found)
            found.messages = [m for m in found.messages if m.queue_offset < end]
            yield found
            if found.status is PullStatus.NO_NEW or found.next_offset <= begin:
                return
            begin = found.next_offset

    async def _holder_of(self, message: MessageExt) -> BrokerAdmin:
        """Return the broker that stored a message, or that has its copy now."""
        groups = await self.broker_groups()
        group = groups.get(message.queue.broker_name, {})
        possible = [group] if group else groups.values()
        for broker in (member for members in possible for member in members.values()):
            if is_same_address(broker.address, message.store_host):
                return broker
        if group:
            return group[min(group)]  # its address has changed
        raise BrokerMissing(
            "no broker registered with this name server has the address " + message.store_host
        )

    async def _stored(
        self, message_id: str, brokers: Sequence[BrokerAdmin], topic: str | None = None
    ) -> MessageExt | None:
        """Return the message with an offset message id, or None if no broker has it.

        The id names a position in one broker's log; other brokers may have another message there.
        """
        if not _is_like_id(message_id):
            return None
        place = parse_offset_message_id(message_id)

        async def at_its_place(broker: BrokerAdmin) -> MessageExt:
            return await broker.message_at(place.physical_offset, topic=topic)

        # A RocketMQ broker answers with any bytes at the position, even if no message begins there.
        nothing = (ServerError, RemoteProtocolError)
        for _, found in await self.ask_each(brokers, at_its_place, skip=nothing):
            if parse_offset_message_id(found.offset_message_id) == place:
                return found
        return None

    async def _query(
        self, topic: str, ask: Callable[[BrokerAdmin], Awaitable[list[MessageExt]]]
    ) -> list[MessageExt]:
        answers = await self.ask_brokers_of(topic, ask, timeout_ms=self.query_timeout_ms)
        found = [message for _, some in answers for message in some]
        return sorted(found, key=lambda message: message.store_timestamp)


def _as_sent(message: MessageExt) -> MessageExt:
    """Return a waiting delayed message with the topic to which it was sent."""
    if message.topic != SCHEDULE_TOPIC:
        return message
    topic = message.properties.get(PropertyKey.REAL_TOPIC, message.topic)
    return msgspec.structs.replace(message, topic=topic)


def _named_in(
    message_id: str, brokers: Sequence[BrokerAdmin]
) -> tuple[list[BrokerAdmin], list[BrokerAdmin]]:
    """Return the brokers whose address is in an offset message id, and the others."""
    if not _is_like_id(message_id):
        return [], [*brokers]
    address = host_text(parse_offset_message_id(message_id).host)
    named = [it for it in brokers if is_same_address(it.address, address)]
    return named, [it for it in brokers if it not in named]


def _is_like_id(text: str) -> bool:
    """Return whether a string has the form that offset message ids and unique keys share."""
    try:
        parse_offset_message_id(text)
    except ValueError:
        return False
    return True
