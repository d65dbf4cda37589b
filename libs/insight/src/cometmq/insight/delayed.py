# SPDX-License-Identifier: Apache-2.0
"""Delayed messages that wait, by level and by due time, on CometMQ's and RocketMQ's brokers."""

import math
import re
from typing import Final, NamedTuple

import msgspec

from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.message import MessageExt
from cometmq.client.transfer.pulled import EmptyAnswers
from cometmq.insight.model import DelayLevel, Unknown
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.errors import TopicNotExist
from cometmq.remoting.message.properties import PropertyKey, timed_ms
from cometmq.remoting.names import SCHEDULE_TOPIC

READ_MAX: Final = 20_000
"""The most messages of one level that are searched for messages of a topic."""
_DELAY: Final = re.compile(r"([0-9]{1,9})([smhd])")
_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Delayed(NamedTuple):
    """A delayed message that waits."""

    message: MessageExt
    """The message, without its body, because many messages may wait."""
    size: int
    """The length of its body in bytes."""
    due_ms: int | Unknown

    @property
    def level(self) -> int:
        """The number of its delay level."""
        return self.message.queue.queue_id + 1

    @property
    def topic(self) -> str:
        """The topic to which the message will be delivered; for a failed message, the retry topic
        of the group.
        """
        return self.message.properties.get(PropertyKey.REAL_TOPIC, "")

    @property
    def order(self) -> float:
        """The sort key by due time; messages with an unknown due time are last."""
        return math.inf if isinstance(self.due_ms, Unknown) else self.due_ms


class Queue(NamedTuple):
    """The first messages of one delay level."""

    messages: list[Delayed]
    """The messages, in the order in which the broker delivers them."""
    is_cut: bool
    """Whether more messages wait; if a topic is wanted, whether more may wait."""


def delay_ms(text: str) -> int | Unknown:
    """Return the delay of a level, such as `10s`."""
    found = _DELAY.fullmatch(text)
    if found is None:
        return Unknown("the broker's messageDelayLevel does not have this level")
    return int(found[1]) * _UNIT_MS[found[2]]


async def delay_texts(master: BrokerAdmin) -> list[str]:
    """Return the delays of a broker's levels, the first one first."""
    return (await master.config()).get("messageDelayLevel", "").split()


async def levels_at(master: BrokerAdmin) -> list[DelayLevel]:
    """Return the levels of a broker in which messages wait."""
    try:
        stats = (await master.topic_stats(SCHEDULE_TOPIC)).offset_table
    except TopicNotExist:  # the broker has never had a delayed message
        return []
    texts = await delay_texts(master)
    table = await master.delay_offsets()
    found = []
    for queue, ends in sorted(stats.items()):
        at = queue.queue_id
        waiting = table.waiting(at + 1, ends.min_offset, ends.max_offset)
        if waiting:
            text = texts[at] if 0 <= at < len(texts) else ""
            found.append(DelayLevel(master.name, at + 1, waiting, text))
    return found


async def waiting_at(
    master: BrokerAdmin, level: int, delay: int | Unknown, count_max: int, topic: str | None = None
) -> Queue:
    """Return the next messages of a level; with `topic`, those of the topic among the next
    READ_MAX.

    Recalled messages are left out.
    """
    place = (SCHEDULE_TOPIC, level - 1)
    table = await master.delay_offsets()
    offset = max(table.offset_table.get(level, 0), await master.min_offset(*place))
    end = await master.max_offset(*place)
    last = end if topic is None else min(end, offset + READ_MAX)
    found: list[Delayed] = []
    empty = EmptyAnswers(MessageQueue(SCHEDULE_TOPIC, master.name, level - 1))
    while offset < last and len(found) <= count_max:
        pulled = await master.pull(*place, offset)
        waiting = (
            _delayed(it, delay)
            for it in pulled.messages
            if not table.is_recalled(level, it.queue_offset, it.message_id)
        )
        found += [it for it in waiting if topic is None or it.topic == topic]
        if pulled.next_offset <= offset:
            break
        empty.check(pulled)
        offset = pulled.next_offset
    return Queue(found[:count_max], is_cut=len(found) > count_max or offset < end)


def _delayed(message: MessageExt, delay: int | Unknown) -> Delayed:
    size = len(message.body)
    return Delayed(msgspec.structs.replace(message, body=b""), size, _due(message, delay))


def _due(message: MessageExt, delay: int | Unknown) -> int | Unknown:
    """Return when a message is delivered: at its delivery time or, without one, after the level's
    delay.
    """
    own = timed_ms(message.properties)
    if own is not None:
        return own
    return delay if isinstance(delay, Unknown) else message.store_timestamp + delay
