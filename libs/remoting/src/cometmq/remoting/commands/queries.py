# SPDX-License-Identifier: Apache-2.0
"""Headers of queries for messages, by key or by id, and for consume queue entries."""

import msgspec

from cometmq.remoting.integers import Int32, Int64
from cometmq.remoting.types import Header


class QueryMessage(Header, frozen=True):
    """Find messages of a topic by key and store time.

    Compatibility: the ext field `_UNIQUE_KEY_QUERY` marks a query for a unique key.
    """

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    unique_key_query: bool | None = msgspec.field(name="_UNIQUE_KEY_QUERY", default=None)


class QueryMessageReply(Header, frozen=True):
    """The newest store time and offset that the index covers."""

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


class ViewMessageById(Header, frozen=True):
    """Read the record at a commit log offset."""

    offset: Int64
    topic: str | None = None


class QueryConsumeQueue(Header, frozen=True):
    """Read consume queue entries, and whether each one passes a group's filter."""

    topic: str
    queue_id: Int32
    index: Int64
    count: Int32
    consumer_group: str | None = None
