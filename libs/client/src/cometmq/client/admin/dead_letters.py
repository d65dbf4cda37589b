# SPDX-License-Identifier: Apache-2.0
"""Administration of dead letters: read and resend them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.groups import check_known
from cometmq.client.admin.messages import MessageAdmin
from cometmq.client.admin.scope import AdminBase
from cometmq.client.admin.topics import TopicAdmin
from cometmq.client.arguments import timestamp
from cometmq.client.clock import TimeLimit
from cometmq.client.cluster.routes import route_of, unsendable
from cometmq.client.errors import InvalidArgument, NoRetries
from cometmq.client.message import (
    DamagedMessage,
    MessageExt,
    SendResult,
    UnreadableMessage,
    check_group,
    check_named,
    check_received,
    check_topic,
)
from cometmq.client.namespace import unique_ids
from cometmq.client.settings import producer_options
from cometmq.client.transfer.outgoing import Prepared, properties_text
from cometmq.client.transfer.pulled import damage_text
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.heartbeat import Heartbeat, ProducerData
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.commands.clients import UnregisterClient
from cometmq.remoting.errors import NO_ANSWER, CometError
from cometmq.remoting.message.properties import PropertyKey
from cometmq.remoting.names import (
    DLQ_PREFIX,
    DLQ_REPLAY_GROUP,
    RETRY_PREFIX,
    dead_letter_topic,
    groups_with,
    retry_topic,
)
from cometmq.remoting.transport.tasks import TaskSet

if TYPE_CHECKING:
    from cometmq.client.transfer.sender import MessageSender

SENDER_GROUP: Final = "ReSendMsgById"
"""The producer group that resends stored messages."""
_LEFT_OUT: Final = frozenset(
    {
        PropertyKey.TRANSACTION_PREPARED,
        PropertyKey.TRANSACTION_CHECK_TIMES,
        PropertyKey.MIN_OFFSET,
        PropertyKey.MAX_OFFSET,
        PropertyKey.DELAY,
        PropertyKey.RETRY_TOPIC,
        PropertyKey.REAL_TOPIC,
        PropertyKey.REAL_QUEUE_ID,
        PropertyKey.RECONSUME_TIME,
        PropertyKey.MAX_RECONSUME_TIMES,
        PropertyKey.CONSUME_START_TIME,
        PropertyKey.TIMER_DELAY_SEC,
        PropertyKey.TIMER_DELAY_MS,
        PropertyKey.TIMER_DELIVER_MS,
    }
)
"""Properties that describe the first delivery and must not be copied."""


def origin_topic(message: MessageExt) -> str:
    """Return the topic that a message was originally sent to."""
    found = message.properties
    return (
        found.get(PropertyKey.RETRY_TOPIC)
        or found.get(PropertyKey.DLQ_ORIGIN_TOPIC)
        or message.topic
    )


def origin_message_id(message: MessageExt) -> str:
    """Return the id that a message had when it was sent."""
    return message.properties.get(PropertyKey.ORIGIN_MESSAGE_ID) or message.message_id


def _replay_target(group: str, topic: str | None) -> str:
    if topic is not None:
        check_topic(topic)
        return topic
    check_group(group)
    return retry_topic(group)


class DeadLetterAdmin(MessageAdmin, TopicAdmin):
    """Reads dead letters, and sends them again."""

    _message_sender: "MessageSender | None" = None
    _replay_targets: frozenset[str] = frozenset()
    """Topics that `check_replay` has accepted."""

    async def dead_letter_groups(self) -> list[str]:
        """Return the groups that have a dead-letter topic."""
        topics = await self.topics()
        return sorted(groups_with(DLQ_PREFIX, topics))

    async def dead_letters(
        self, group: str, *, begin_ms: int | None = None, end_ms: int | None = None
    ) -> AsyncIterator[MessageExt]:
        """Read the dead letters of a group, oldest first in each queue, without changing anything.

        Messages that become dead letters during the read are not included. Raise InvalidArgument
        if no broker knows the group.
        """
        check_named(group, "group")
        for name, moment_ms in (("begin_ms", begin_ms), ("end_ms", end_ms)):
            if moment_ms is not None:
                timestamp(moment_ms, name=name)
        topic = dead_letter_topic(group)
        if await self.namesrv.route(topic) is None:  # brokers create it for the first dead letter
            await check_known(self, group)
            return
        for queue in await self.queues(topic):
            master = await self._master_of(queue)
            try:
                async for message in self._dead_letters_of(master, queue, begin_ms):
                    if begin_ms is not None and message.store_timestamp < begin_ms:
                        continue
                    if end_ms is None or message.store_timestamp < end_ms:
                        yield message
            except NO_ANSWER as error:
                self.unreachable(master, error)

    async def _dead_letters_of(
        self, master: BrokerAdmin, queue: MessageQueue, begin_ms: int | None
    ) -> AsyncIterator[MessageExt]:
        place = (queue.topic, queue.queue_id)
        begin, end = await master.min_offset(*place), await master.max_offset(*place)
        if begin_ms is not None:
            begin = await master.search_offset(*place, begin_ms)
        async for pulled in self.read(queue, begin, end):
            for message in pulled.messages:
                yield message

    async def check_replay(self, group: str, *, topic: str | None = None) -> None:
        """Raise NoRoute if no broker has the topic to which dead letters are sent, or none accepts
        messages for it, and NoRetries if brokers would turn them into dead letters again.
        """
        target = _replay_target(group, topic)
        route = route_of(target, await self.route(target))
        if not route.publish_queues:
            raise unsendable(route)
        await self._check_retries(target)

    async def _check_retries(self, target: str) -> None:
        """Raise NoRetries if `target` is the retry topic of a group without retries.

        As in RocketMQ, brokers move messages that are sent to such a topic to the dead-letter
        topic.
        """
        if not target.startswith(RETRY_PREFIX):
            return
        receiver = target.removeprefix(RETRY_PREFIX)
        masters = (await self.masters()).values()
        for broker, groups in await self.ask_each(masters, lambda it: it.groups()):
            if receiver in groups and groups[receiver].retry_max_times <= 0:
                raise NoRetries(receiver, groups[receiver].retry_max_times, broker.name)

    async def replay(
        self, message: MessageExt, group: str, *, topic: str | None = None
    ) -> SendResult:
        """Send a dead letter again with its keys, properties and original id.

        By default, only the group that gave up on it receives it, with the full number of attempts.
        With `topic`, all groups that consume that topic receive it. Raise NoRetries, without
        sending, if brokers would turn it into a dead letter again (`check_replay`).
        """
        check_received(message)
        kept = {PropertyKey.ORIGIN_MESSAGE_ID: origin_message_id(message)}
        if topic is None:
            kept[PropertyKey.RETRY_TOPIC] = origin_topic(message)
        target = _replay_target(group, topic)
        if target not in self._replay_targets:  # once per target, not per message
            await self._check_retries(target)
            self._replay_targets |= {target}
        return await self._send_anew(message, target, kept)

    async def resend(self, message: MessageExt, *, topic: str | None = None) -> SendResult:
        """Send a stored message again with its keys, properties and unique key."""
        check_received(message)
        if topic is not None:
            check_topic(topic)
        return await self._send_anew(message, topic or message.topic, {})

    async def _send_anew(
        self, message: MessageExt, topic: str, kept: dict[PropertyKey, str]
    ) -> SendResult:
        if isinstance(message, UnreadableMessage):
            raise InvalidArgument(f"the body of {message.message_id} is broken")
        if isinstance(message, DamagedMessage):  # a new record would have a CRC that matches
            raise InvalidArgument(f"the message is not sent again: {damage_text(message)}")
        await self.route(topic)  # raises NoRoute where a send would create the topic
        properties = {k: v for k, v in message.properties.items() if k not in _LEFT_OUT}
        properties |= {key.value: text for key, text in kept.items()}
        properties[PropertyKey.WAIT.value] = "true"
        prepared = Prepared(
            topic=topic,
            body=message.body,
            properties=properties_text(properties),
            message_id=message.message_id,
            flag=message.flag,
        )
        limit = TimeLimit.from_now(self.options.api_timeout_ms)
        return await self._sender().send(prepared, limit)

    def _sender(self) -> "MessageSender":
        if self._message_sender is None:
            # 0.2 MB of a console, which seldom sends
            from cometmq.client.transfer.sender import MessageSender  # noqa: PLC0415

            options = producer_options(self.options)
            self._message_sender = MessageSender(
                self._running(), SENDER_GROUP, options, ids=unique_ids(self.options)
            )
        return self._message_sender


RENEW_S: Final = 30.0
"""Pause between two heartbeats; brokers forget a client after 120 s."""


@asynccontextmanager
async def announced(admin: AdminBase, group: str) -> AsyncIterator[None]:
    """Let other programs see that this one replays the group's dead letters.

    A broker that does not take the heartbeat cannot tell the others; the replay goes on.
    """
    await _announce(admin, group)
    tasks = TaskSet()
    tasks.spawn(_renew(admin, group), name="replay-announced", is_endless=True)
    try:
        yield
    finally:
        await tasks.close()
        header = UnregisterClient(admin.client_id, producer_group=_name(group))
        for master in await _masters(admin, group):
            with suppress(CometError):
                await master.invoke(Code.UNREGISTER_CLIENT, header)


async def running_replays(admin: AdminBase, group: str) -> list[str]:
    """Return the client ids of programs that replay the group's dead letters, as far as known."""
    found: set[str] = set()
    for master in await _masters(admin, group):
        with suppress(CometError):  # as if nobody is in the group
            members = await master.producer_connections(_name(group))
            found |= {it.client_id for it in members.connection_set}
    return sorted(found)


def _name(group: str) -> str:
    return f"{DLQ_REPLAY_GROUP}-{group}"


async def _announce(admin: AdminBase, group: str) -> None:
    beat = Heartbeat(client_id=admin.client_id, producer_data_set=[ProducerData(_name(group))])
    for master in await _masters(admin, group):
        with suppress(CometError):
            await master.invoke(Code.HEART_BEAT, None, encode_json(beat))


async def _renew(admin: AdminBase, group: str) -> None:
    while True:
        await asyncio.sleep(RENEW_S)
        await _announce(admin, group)


async def _masters(admin: AdminBase, group: str) -> list[BrokerAdmin]:
    try:
        return await admin.masters_of(dead_letter_topic(group))
    except CometError:
        return []
