# SPDX-License-Identifier: Apache-2.0
"""Notes on topics: attributes, and queues and brokers that clients may not use."""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from cometmq.client.admin import AdminClient
from cometmq.client.errors import NoRoute
from cometmq.insight.changes.topics import AlterTopic
from cometmq.insight.words import counted
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.route import QueueData, TopicRoute
from cometmq.remoting.bodies.stats import TopicOffset
from cometmq.remoting.bodies.topic_config import TopicConfig
from cometmq.remoting.errors import TopicNotExist
from cometmq.remoting.message.flags import Perm
from cometmq.remoting.visible import command


class UnreadQueues(msgspec.Struct, frozen=True):
    """A topic's queues, on one broker, that producers write to but consumers do not read."""

    broker: str
    first: int
    end: int

    def has(self, queue: MessageQueue) -> bool:
        """Return whether a queue is in this range."""
        return queue.broker_name == self.broker and self.first <= queue.queue_id < self.end

    def __str__(self) -> str:
        queues = f"{self.broker}:{self.first}"
        if self.end - self.first > 1:
            queues += f" to {self.broker}:{self.end - 1}"
        return queues


def attribute_notes(configs: Mapping[str, TopicConfig]) -> list[str]:
    """Return a line with the attributes of a topic for each broker on which it has some."""
    return [
        f"attributes at {name}: {config.attributes_text}"
        for name, config in configs.items()
        if config.attributes
    ]


async def unread_notes(
    admin: AdminClient, topics: Iterable[str], waiting: Mapping[MessageQueue, int] | None = None
) -> list[str]:
    """Return a line for each topic with queues that consumers do not read, or may not read.

    `waiting` are the queues with messages that a group has not consumed, and their number: brokers
    also report queues that the topic no longer has.
    """
    waiting = waiting or {}
    notes: list[str] = []
    for topic in sorted(set(topics)):
        try:
            route = await admin.route(topic)
            places = [data for data in route.queue_datas if data.perm & Perm.READ]
            ends = _ends(topic, waiting)
            unread = [
                it
                for data in places
                if (it := _unread(data.broker_name, data, ends.get(data.broker_name, 0)))
            ]
            offsets = await admin.topic_stats(topic) if unread else {}
        except (NoRoute, TopicNotExist):
            continue  # deleted meanwhile, or only the offsets of the group are left
        if unread:
            notes.append(_unread_note(topic, unread, offsets, waiting))
        notes += unreadable_notes(topic, route)
    return notes


def closed_notes(topic: str, route: TopicRoute) -> list[str]:
    """Return a line about the brokers to which producers may not send messages of a topic."""
    return _denied_notes(
        topic, route, Perm.WRITE, "producers may not send to it at {}",
        "if wipeWritePerm has removed the permission of a broker, addWritePerm",
    )  # fmt: skip


def unreadable_notes(topic: str, route: TopicRoute) -> list[str]:
    """Return a line about the brokers on which consumers may not read a topic, if there are any.

    Such a broker accepts heartbeats, and clients skip its queues, so nothing else reveals the
    problem.
    """
    return _denied_notes(
        topic, route, Perm.READ,
        "consumers may not read its queues at {}, and get none of their messages",
        "if the setting brokerPermission of a broker forbids it, change that",
    )  # fmt: skip


def _denied_notes(
    topic: str, route: TopicRoute, needed: Perm, what: str, otherwise: str
) -> list[str]:
    names = sorted(it.broker_name for it in route.queue_datas if not it.perm & needed)
    remedy = AlterTopic(topic=topic, perm="rw", brokers=tuple(names)).command()
    text = what.format(", ".join(names))
    return [f"{topic}: {text}; to allow it: {remedy} (or, {otherwise})"] if names else []


def _unread_note(
    topic: str,
    unread: Collection[UnreadQueues],
    offsets: Mapping[MessageQueue, TopicOffset],
    waiting: Mapping[MessageQueue, int],
) -> str:
    counts = {queue: it.max_offset - it.min_offset for queue, it in offsets.items()}
    counts |= {queue: n for queue, n in waiting.items() if queue.topic == topic}
    total = sum(n for queue, n in counts.items() if any(it.has(queue) for it in unread))
    held = "messages sent there wait"
    if total:
        held = f"{counted(total, 'message')} {'wait' if total > 1 else 'waits'} there"
    options = ("--read-queues", str(max(it.end for it in unread)))
    return (
        f"{topic}: no consumer reads {', '.join(map(str, unread))}, so {held};"
        f" to have them read: {command('topic alter', topic, options=options)}"
    )


def _ends(topic: str, waiting: Mapping[MessageQueue, int]) -> dict[str, int]:
    """Return, by broker, one more than the number of the highest queue with waiting messages."""
    ends: dict[str, int] = {}
    for queue, count in waiting.items():
        if count and queue.topic == topic:
            ends[queue.broker_name] = max(queue.queue_id + 1, ends.get(queue.broker_name, 0))
    return ends


def _unread(broker: str, config: QueueData, used_count: int = 0) -> UnreadQueues | None:
    """Return the queues that are written or have waiting messages, but are not read."""
    end = max(config.write_queue_nums, used_count)
    if end <= config.read_queue_nums:
        return None
    return UnreadQueues(broker, config.read_queue_nums, end)
