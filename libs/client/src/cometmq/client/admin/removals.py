# SPDX-License-Identifier: Apache-2.0
"""Removals: trims delete the messages of a topic before an offset or a time, and a plan shows the
loss first; recalls keep delayed messages from being delivered.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.errors import ClientError, InvalidArgument
from cometmq.client.message import MessageExt
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.errors import RequestCodeNotSupported
from cometmq.remoting.message.properties import PropertyKey, timed_ms
from cometmq.remoting.names import DLQ_REPLAY_GROUP, SCHEDULE_TOPIC, is_system_topic
from cometmq.remoting.progress import position


class Before(msgspec.Struct, frozen=True):
    """The end of a trim: an offset or a time; without either, the end of each queue."""

    offset: int | None = None
    timestamp_ms: int | None = None
    offsets: Mapping[MessageQueue, int] | None = None
    """The offsets of an earlier plan, for these queues only."""


class QueueTrim(msgspec.Struct, frozen=True):
    """The part of a queue that a trim deletes."""

    queue: MessageQueue
    first: int
    """The first offset of the queue before the trim."""
    before: int
    """The first offset of the queue after the trim."""
    messages: int
    size: int
    """Size of the messages in bytes, estimated if there are many."""


class Trim(msgspec.Struct, frozen=True):
    """The part of a topic that a trim deletes."""

    topic: str
    queues: Sequence[QueueTrim]
    unread: Mapping[str, int]
    """Number of these messages that each group with offsets in the topic has not read."""

    @property
    def messages(self) -> int:
        """The number of messages to delete."""
        return sum(it.messages for it in self.queues)

    @property
    def size(self) -> int:
        """The size of the messages to delete, in bytes."""
        return sum(it.size for it in self.queues)


async def plan_trim(
    admin: AdminClient, topic: str, before: Before, queue: MessageQueue | None = None
) -> Trim:
    """Return what a trim of all queues of a topic, or only of `queue`, would delete.

    Raise InvalidArgument if an offset is given for several queues, because their offsets are
    independent of each other.
    """
    if is_system_topic(topic):
        raise ClientError(f"{topic} cannot be trimmed: brokers need its messages")
    masters = await admin.masters_to_change_of(topic)
    bounds: dict[MessageQueue, tuple[int, int]] = {}
    for _, stats in await admin.ask_all(masters, lambda it: it.topic_stats(topic)):
        found = stats.offset_table.items()
        bounds |= {name: (it.min_offset, it.max_offset) for name, it in found}
    chosen = [it for it in sorted(bounds) if queue in (None, it)]
    if before.offsets is not None:
        chosen = [it for it in chosen if it in before.offsets]
    if before.offset is not None and len(chosen) > 1:
        names = ", ".join(f"{it.broker_name}:{it.queue_id}" for it in chosen)
        raise InvalidArgument(
            f"an offset belongs to one queue, and {topic} has {len(chosen)}: choose one of {names}"
        )
    by_name = {broker.name: broker for broker in masters}
    trims: list[QueueTrim] = []
    for name in chosen:
        first, end = bounds[name]
        if end:  # otherwise the queue has never had a message
            trims.append(await _plan(by_name[name.broker_name], name, before, first, end))
    return Trim(topic, trims, await _unread(admin, masters, trims))


async def _plan(
    master: BrokerAdmin, queue: MessageQueue, before: Before, first: int, end: int
) -> QueueTrim:
    offset = end if before.offset is None else before.offset
    if before.offsets is not None:
        offset = before.offsets[queue]
    elif before.timestamp_ms is not None:
        offset = await master.first_offset_since(queue.topic, queue.queue_id, before.timestamp_ms)
    offset = max(offset, first)
    if offset > end:
        raise InvalidArgument(
            f"the offset {offset} is outside queue {queue.queue_id} of {queue.topic} at"
            f" {queue.broker_name}: give one from {first} to {end}"
        )
    try:
        found = await master.trim_queue(queue.topic, queue.queue_id, offset, is_dry_run=True)
    except RequestCodeNotSupported as error:
        raise ClientError(
            f"{queue.broker_name} cannot delete messages of a queue: only brokers of CometMQ can"
        ) from error
    return QueueTrim(queue, found.min_offset, offset, found.message_count, found.size)


async def _unread(
    admin: AdminClient, masters: Sequence[BrokerAdmin], trims: Sequence[QueueTrim]
) -> dict[str, int]:
    unread: dict[str, int] = {}
    answers = await admin.ask_all(masters, lambda it: it.consumer_offsets())
    tables = {broker.name: table.offset_table for broker, table in answers}
    topics = {trim.queue.topic for trim in trims}
    for table in tables.values():
        for key in table:
            topic, _, group = key.partition("@")
            if topic in topics and group != DLQ_REPLAY_GROUP:
                unread[group] = 0
    for group in unread:
        for trim in trims:
            offsets = tables[trim.queue.broker_name].get(f"{trim.queue.topic}@{group}", {})
            committed = offsets.get(trim.queue.queue_id)
            reached = trim.first if committed is None else position(committed, trim.first)
            unread[group] += max(0, trim.before - reached)
    return unread


async def carry_out(admin: AdminClient, trim: Trim) -> None:
    """Delete the messages of a plan, one queue after another."""
    masters = {broker.name: broker for broker in await admin.masters_to_change_of(trim.topic)}
    wanted: dict[str, list[QueueTrim]] = {}
    for it in trim.queues:
        if it.messages:
            wanted.setdefault(it.queue.broker_name, []).append(it)

    async def change(broker: BrokerAdmin) -> None:
        for it in wanted[broker.name]:
            await broker.trim_queue(trim.topic, it.queue.queue_id, it.before)

    await admin.change_each(
        [masters[name] for name in wanted], change, f"delete messages of {trim.topic}"
    )


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
