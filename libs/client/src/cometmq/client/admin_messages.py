# SPDX-License-Identifier: Apache-2.0
"""Administration of messages: found by id, key or place at all brokers."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from cometmq.client.admin_base import AdminBase
from cometmq.client.admin_broker import BrokerAdmin
from cometmq.client.admin_broker_messages import FOREVER_MS, KEY_COUNT_MAX
from cometmq.client.errors import BrokerMissing
from cometmq.client.message import MessageExt
from cometmq.remoting.errors import QueryNotFound, ServerError
from cometmq.remoting.message.ids import host_text, parse_offset_message_id

QUERY_TIMEOUT_MS: Final = 18_000


class MessageAdmin(AdminBase):
    """Finds messages."""

    async def view_message(self, message_id: str, topic: str) -> MessageExt:
        """Return a message by its offset message id or its unique key; QueryNotFound if absent."""
        # What is no offset message id, or not of this cluster, may be a unique key.
        with suppress(ValueError, ServerError, BrokerMissing):
            return await self._view_stored(message_id, topic)
        for message in await self._query(
            topic, lambda broker: broker.query(topic, message_id, is_unique_key=True)
        ):
            return message
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
        """Return messages by key, oldest first; an empty list if there are none."""
        return await self._query(
            topic,
            lambda broker: broker.query(
                topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms
            ),
        )

    async def _view_stored(self, message_id: str, topic: str) -> MessageExt:
        place = parse_offset_message_id(message_id)
        address = host_text(place.host)
        for data in (await self.route(topic)).broker_datas:
            if address in data.broker_addrs.values():
                broker = self.broker(address, name=data.broker_name)
                return await broker.message_at(place.physical_offset, topic=topic)
        raise BrokerMissing(f"no broker of the topic {topic} has the address {address}")

    async def _query(
        self, topic: str, ask: Callable[[BrokerAdmin], Awaitable[list[MessageExt]]]
    ) -> list[MessageExt]:
        found: list[MessageExt] = []
        for broker in await self._brokers_of(topic, timeout_ms=QUERY_TIMEOUT_MS):
            found += await ask(broker)
        return sorted(found, key=lambda message: message.store_timestamp)
