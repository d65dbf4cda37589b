# SPDX-License-Identifier: Apache-2.0
"""Messages of every kind whose parts all have a mark, and the arguments with which pages show
them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cometmq.client import AdminClient, Message, Producer, TransactionProducer, TransactionState
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.names import dead_letter_topic, retry_topic

from .suites import Suite

READERS: Final = {
    "/messages", "/message", "/topic/analysis", "/dead-letters/group", "/dead-letters/edit",
    "/delayed/level", "/transactions", "/transactions/one",
}  # fmt: skip
"""The pages that show a part of a message to those who may read it."""


async def marked_messages(
    suite: Suite, admin: AdminClient, topic: str, mark: str
) -> Sequence[Mapping[str, str]]:
    """Store a message, a dead letter, a delayed message and an open transaction.

    Return arguments with which every page and every form is asked for one of them.
    """
    group = topic.lower()
    dead = dead_letter_topic(group)
    for name in (topic, dead, retry_topic(group)):
        await admin.create_topic(name, queue_count=1)
    await admin.create_group(SubscriptionGroupConfig(group_name=group))

    async def unknown(*_args: Any) -> TransactionState:
        return TransactionState.UNKNOWN

    body = mark.encode()
    parts: dict[str, Any] = {"tag": mark, "keys": (mark,), "properties": {mark: mark}}
    halves = TransactionProducer(f"{group}-halves", suite.namesrv, execute=unknown, check=unknown)
    async with Producer(f"{group}-makers", namesrv=suite.namesrv) as producer, halves:
        sent = await producer.send(Message(topic, body, **parts))
        await producer.send(Message(dead, body, **parts))
        await producer.send(Message(topic, body, delay_level=15, **parts))
        await halves.send_in_transaction(Message(topic, body, **parts))
    ((broker, master),) = (await admin.masters()).items()
    message = await admin.view_message(sent.message_id, topic)
    (letter,) = [it async for it in admin.dead_letters(group)]
    *_, half = [it async for it in master.open_transactions()]
    common = {"topic": topic, "group": group, "broker": broker, "level": "15"}
    return [
        {},
        {**common, "name": topic, "id": message.offset_message_id},
        {**common, "name": group, "id": letter.offset_message_id},
        {**common, "name": broker, "id": f"{half.broker}:{half.offset}"},
    ]
