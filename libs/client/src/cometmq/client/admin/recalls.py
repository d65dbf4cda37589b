# SPDX-License-Identifier: Apache-2.0
"""Recalls: find delayed messages that still wait, and keep them from being delivered."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.errors import ClientError
from cometmq.client.message import MessageExt
from cometmq.remoting.errors import RequestCodeNotSupported
from cometmq.remoting.message.properties import PropertyKey, timed_ms
from cometmq.remoting.names import SCHEDULE_TOPIC


class NotWaiting(ClientError):
    """No delayed message with this id waits."""


class Waiting(NamedTuple):
    """A message that waits in a delay level of a broker."""

    master: BrokerAdmin
    message: MessageExt
    is_recalled: bool
    """Whether the message was recalled; when it is due, the broker drops it."""

    @property
    def level(self) -> int:
        """The number of the delay level."""
        return self.message.queue.queue_id + 1

    def facts(self) -> dict[str, Any]:
        """Return the fields that a preview shows, by name."""
        return {
            "message_id": self.message.message_id,
            "topic": self.message.properties.get(PropertyKey.REAL_TOPIC, ""),
            "broker": self.message.queue.broker_name,
            "delay_level": self.level,
            "due_ms": timed_ms(self.message.properties),
            "stored_ms": self.message.store_timestamp,
        }


async def find_waiting(
    admin: AdminClient, masters: Sequence[BrokerAdmin], topic: str, message_id: str
) -> list[Waiting]:
    """Return the waiting messages with an id, recalled ones too; raise NotWaiting if there is none.

    A message that was resent waits once per send.
    """

    async def ask(master: BrokerAdmin) -> list[Waiting]:
        found = await master.query(SCHEDULE_TOPIC, message_id, is_unique_key=True)
        found = [it for it in found if it.properties.get(PropertyKey.REAL_TOPIC) == topic]
        if not found:
            return []
        table = await master.delay_offsets()
        places = [(it, it.queue.queue_id + 1, it.queue_offset) for it in found]
        return [
            Waiting(master, it, table.is_recalled(level, offset, message_id))
            for it, level, offset in places
            if offset >= table.offset_table.get(level, 0)
        ]

    answers = await admin.ask_each(masters, ask)
    waiting = [it for _, found in answers for it in found]
    if not waiting:
        raise NotWaiting(
            f"no delayed message of the topic {topic} with the id {message_id} waits: it was"
            " delivered, or the id is wrong"
        )
    return waiting


async def recall(master: BrokerAdmin, topic: str, message_id: str) -> None:
    """Recall all messages with an id that wait at a broker."""
    try:
        await master.recall(topic, message_id)
    except RequestCodeNotSupported as error:
        raise ClientError(
            f"{master.name} is a RocketMQ broker: it cannot recall the messages of its delay"
            " levels; nothing has changed"
        ) from error
