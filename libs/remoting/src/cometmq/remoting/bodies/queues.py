# SPDX-License-Identifier: Apache-2.0
"""Message queues, and lists of topics, groups and client ids; many bodies contain them."""

import msgspec

from cometmq.remoting.integers import Int32


class MessageQueue(msgspec.Struct, frozen=True, order=True, gc=False, rename="camel"):
    """One queue of a topic on one broker; sorts by topic, broker and queue id, as in Java."""

    topic: str
    broker_name: str
    queue_id: Int32


class TopicList(msgspec.Struct, gc=False, rename="camel"):
    """Topic names; `broker_addr` is set only in the list of system topics."""

    topic_list: list[str] = []
    broker_addr: str | None = None


class GroupList(msgspec.Struct, gc=False, rename="camel"):
    """Consumer group names."""

    group_list: list[str] = []


class ConsumerIdList(msgspec.Struct, gc=False, rename="camel"):
    """The client ids of a consumer group's members."""

    consumer_id_list: list[str] = []
