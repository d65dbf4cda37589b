# SPDX-License-Identifier: Apache-2.0
"""Queues and name lists that many bodies share."""

import msgspec

from cometmq.remoting.integers import Int32


class MessageQueue(msgspec.Struct, frozen=True, order=True, gc=False, rename="camel"):
    """One queue of a topic at one broker; sorts by topic, broker and queue id as Java does."""

    topic: str
    broker_name: str
    queue_id: Int32


class TopicList(msgspec.Struct, gc=False, rename="camel"):
    """Names of topics; `broker_addr` is set only in the answer about system topics."""

    topic_list: list[str] = []
    broker_addr: str | None = None


class GroupList(msgspec.Struct, gc=False, rename="camel"):
    """Names of consumer groups."""

    group_list: list[str] = []


class ConsumerIdList(msgspec.Struct, gc=False, rename="camel"):
    """Client ids of the members of a consumer group."""

    consumer_id_list: list[str] = []
