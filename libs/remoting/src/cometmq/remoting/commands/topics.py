# SPDX-License-Identifier: Apache-2.0
"""Headers for the administration of a broker's topics and consumer groups."""

from cometmq.remoting.integers import Int32, Int64
from cometmq.remoting.types import Header


class UpdateAndCreateTopic(Header, frozen=True):
    """Create or change a topic."""

    topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    default_topic: str | None = None
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 | None = None
    order: bool = False
    attributes: str | None = None
    force: bool | None = None


class GetTopicStatsInfo(Header, frozen=True):
    """Ask for the offsets and last store times of a topic's queues."""

    topic: str


class DeleteTopicInBroker(Header, frozen=True):
    """Delete a topic from a broker."""

    topic: str


class TrimQueue(Header, frozen=True):
    """Delete the messages of a queue before an offset, or, as a dry run, only count them."""

    topic: str
    queue_id: Int32
    offset: Int64
    dry_run: bool = False


class TrimQueueReply(Header, frozen=True):
    """The messages that a trim has deleted, or would delete."""

    min_offset: Int64
    """The queue's first offset before the trim."""
    message_count: Int64
    size: Int64
    """The size of the messages in bytes; that of many messages is estimated."""


class GetTopicConfig(Header, frozen=True):
    """Ask for the settings of one topic (5.x)."""

    topic: str


class DeleteSubscriptiongroup(Header, frozen=True):
    """Delete a consumer group and, optionally, its offsets."""

    group_name: str
    remove_offset: bool = False
    clean_offset: bool | None = None
    """RocketMQ 5's name of `remove_offset`."""

    @property
    def removes_offsets(self) -> bool:
        """Whether the group's offsets are deleted, too."""
        return self.remove_offset or bool(self.clean_offset)


class GetSubscriptiongroupConfig(Header, frozen=True):
    """Ask for the settings of one consumer group (5.x)."""

    group: str
