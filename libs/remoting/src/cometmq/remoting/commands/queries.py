# SPDX-License-Identifier: Apache-2.0
"""Headers of reading messages by key, by id, and the entries of a consume queue."""

import msgspec

from cometmq.remoting.integers import Int32, Int64


class QueryMessage(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Find messages of a topic by key and store time.

    Compatibility: a query for a unique key says so in the ext field `_UNIQUE_KEY_QUERY`.
    """

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    unique_key_query: bool | None = msgspec.field(name="_UNIQUE_KEY_QUERY", default=None)


class QueryMessageReply(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """How far the index reaches."""

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


class ViewMessageById(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Read the record at a commit log offset."""

    offset: Int64
    topic: str | None = None


class QueryConsumeQueue(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Read entries of a consume queue, and how a group's filter judges them."""

    topic: str
    queue_id: Int32
    index: Int64
    count: Int32
    consumer_group: str | None = None
