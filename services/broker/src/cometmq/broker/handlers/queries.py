# SPDX-License-Identifier: Apache-2.0
"""QUERY_MESSAGE (12) and VIEW_MESSAGE_BY_ID (33): messages by key and by offset id."""

from cometmq.broker.broker import Broker
from cometmq.remoting import remarks
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Call, Reply
from cometmq.remoting.commands.queries import QueryMessage, QueryMessageReply, ViewMessageById
from cometmq.remoting.errors import ServerError
from cometmq.store.results import QueryResult


def query_message(broker: Broker, call: Call[QueryMessage]) -> Reply | None:
    """Answer with the messages of a topic that hold a key; looked up off the loop."""
    header = call.header
    settings = broker.settings
    count_max = settings.default_query_max_num if header.unique_key_query else header.max_num
    broker.driver.read(
        lambda: broker.store.query(
            header.topic,
            header.key,
            min(count_max, settings.max_msgs_num_batch),
            header.begin_timestamp,
            header.end_timestamp,
        ),
        lambda result: call.answer(_found(result)),
    )
    return None


def _found(result: QueryResult) -> Reply:
    header = QueryMessageReply(
        result.index_last_update_timestamp, result.index_last_update_physical_offset
    )
    if not result.records:
        return Reply(ResponseCode.QUERY_NOT_FOUND, header, remark=remarks.QUERY_MESSAGE_NOT_FOUND)
    return Reply(header=header, body=result.records)


def view_message_by_id(broker: Broker, call: Call[ViewMessageById]) -> Reply:
    """Answer with the record at a commit log offset."""
    record = broker.store.read_raw(call.header.offset)
    if record is None:
        raise ServerError(remarks.message_not_found(call.header.offset))
    return Reply(body=record)
