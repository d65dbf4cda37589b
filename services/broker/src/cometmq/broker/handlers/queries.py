# SPDX-License-Identifier: Apache-2.0
"""QUERY_MESSAGE (12) and VIEW_MESSAGE_BY_ID (33): messages by key and by offset id."""

from cometmq.broker.broker import Broker
from cometmq.broker.handlers.late import look_up
from cometmq.broker.messages import stored_bytes
from cometmq.remoting import remarks
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Call, Reply
from cometmq.remoting.commands.queries import QueryMessage, QueryMessageReply, ViewMessageById
from cometmq.remoting.errors import ServerError
from cometmq.remoting.message.record import MessageRecord
from cometmq.store.results import QueryResult


def query_message(broker: Broker, call: Call[QueryMessage]) -> None:
    """Answer with the messages of a topic that hold a key."""
    header = call.header
    default = broker.settings.default_query_max_num
    lookup = broker.store.query(
        header.topic,
        header.key,
        default if header.unique_key_query else header.max_num,
        header.begin_timestamp,
        header.end_timestamp,
    )
    look_up(broker, call, lookup, _found)


def _found(result: QueryResult) -> Reply:
    if not result.records:
        # Where nothing is found, RocketMQ leaves its own figures out too.
        nothing = QueryMessageReply(0, 0)
        return Reply(ResponseCode.QUERY_NOT_FOUND, nothing, remark=remarks.QUERY_MESSAGE_NOT_FOUND)
    header = QueryMessageReply(
        result.index_last_update_timestamp, result.index_last_update_physical_offset
    )
    return Reply(header=header, body=[stored_bytes(record) for record in result.records])


def view_message_by_id(broker: Broker, call: Call[ViewMessageById]) -> None:
    """Answer with the record at a commit log offset."""
    offset = call.header.offset

    def viewed(record: MessageRecord | None) -> Reply:
        if record is None:
            raise ServerError(remarks.message_not_found(offset))
        return Reply(body=stored_bytes(record))

    look_up(broker, call, broker.store.read_record(offset), viewed)
