# SPDX-License-Identifier: Apache-2.0
"""Headers about committed offsets and the first and next offsets of queues."""

import msgspec

from cometmq.remoting.integers import Int32, Int64


class QueryConsumerOffset(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Ask for the committed offset of one consumer group in one queue."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffset(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Commit the offset of one consumer group in one queue."""

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
    """Ask for the offset that the next message of a queue will get."""

    topic: str
    queue_id: Int32
    committed: bool = True


class GetMinOffset(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Ask for the offset of the oldest message of a queue."""

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
    """Ask when the oldest message of a queue was stored."""

    topic: str
    queue_id: Int32


class GetEarliestMsgStoretimeReply(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Milliseconds since 1970; -1 if the queue is empty."""

    timestamp: Int64
