# SPDX-License-Identifier: Apache-2.0
"""Headers of requests about committed offsets, and about the first and next offsets of queues."""

from cometmq.remoting.integers import Int32, Int64
from cometmq.remoting.types import Header


class QueryConsumerOffset(Header, frozen=True):
    """Ask for a consumer group's committed offset in one queue."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffset(Header, frozen=True):
    """Commit a consumer group's offset in one queue."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64


class SearchOffsetByTimestamp(Header, frozen=True):
    """Ask for the offset of the message stored nearest to a time."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None


class GetMaxOffset(Header, frozen=True):
    """Ask for the offset that a queue's next message will get."""

    topic: str
    queue_id: Int32
    committed: bool = True


class GetMinOffset(Header, frozen=True):
    """Ask for the offset of a queue's oldest message."""

    topic: str
    queue_id: Int32


class OffsetReply(Header, frozen=True):
    """One queue offset."""

    offset: Int64


class QueryConsumerOffsetReply(OffsetReply, frozen=True):
    """The next queue offset that the group will consume."""


class SearchOffsetByTimestampReply(OffsetReply, frozen=True):
    """The offset found; 0 if the queue is empty."""


class GetMaxOffsetReply(OffsetReply, frozen=True):
    """The offset of the queue's next message."""


class GetMinOffsetReply(OffsetReply, frozen=True):
    """The offset of the queue's oldest message."""


class GetEarliestMsgStoretime(Header, frozen=True):
    """Ask when a queue's oldest message was stored."""

    topic: str
    queue_id: Int32


class GetEarliestMsgStoretimeReply(Header, frozen=True):
    """When the queue's oldest message was stored, in milliseconds since 1970; -1 if the queue is
    empty.
    """

    timestamp: Int64
