# SPDX-License-Identifier: Apache-2.0
"""Headers of requests about committed offsets, and about the first and next offsets of queues."""

import msgspec

from cometmq.remoting.integers import Int32, Int64


class QueryConsumerOffset(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Ask for a consumer group's committed offset in one queue."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffset(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Commit a consumer group's offset in one queue."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64


class SearchOffsetByTimestamp(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Ask for the offset of the message stored nearest to a time."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None


class GetMaxOffset(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Ask for the offset that a queue's next message will get."""

    topic: str
    queue_id: Int32
    committed: bool = True


class GetMinOffset(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Ask for the offset of a queue's oldest message."""

    topic: str
    queue_id: Int32


class OffsetReply(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """One queue offset."""

    offset: Int64


class QueryConsumerOffsetReply(OffsetReply, frozen=True, gc=False, rename="camel"):
    """The next queue offset that the group will consume."""


class SearchOffsetByTimestampReply(OffsetReply, frozen=True, gc=False, rename="camel"):
    """The offset found; 0 if the queue is empty."""


class GetMaxOffsetReply(OffsetReply, frozen=True, gc=False, rename="camel"):
    """The offset of the queue's next message."""


class GetMinOffsetReply(OffsetReply, frozen=True, gc=False, rename="camel"):
    """The offset of the queue's oldest message."""


class GetEarliestMsgStoretime(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Ask when a queue's oldest message was stored."""

    topic: str
    queue_id: Int32


class GetEarliestMsgStoretimeReply(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """When the queue's oldest message was stored, in milliseconds since 1970; -1 if the queue is
    empty.
    """

    timestamp: Int64
