# SPDX-License-Identifier: Apache-2.0
"""QUERY_MESSAGE (12), VIEW_MESSAGE_BY_ID (33) and QUERY_CONSUME_QUEUE (321): find messages by key
or offset id, and list the entries of a queue.
"""

from typing import Final

from cometmq.broker.broker import Broker
from cometmq.broker.handlers.deferred_answers import look_up
from cometmq.broker.handlers.stored_topics import readable, reader
from cometmq.broker.messages import stored_bytes
from cometmq.remoting import remarks
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.stats import ConsumeQueueEntries, ConsumeQueueEntry
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Call, Reply
from cometmq.remoting.commands.queries import (
    QueryConsumeQueue,
    QueryMessage,
    QueryMessageReply,
    ViewMessageById,
)
from cometmq.remoting.errors import ServerError
from cometmq.remoting.message.record import MessageRecord
from cometmq.store.queues.queue_files import ENTRY
from cometmq.store.reads import PAUSE, Lookup, Pause
from cometmq.store.results import QueryResult

ENTRIES_MAX: Final = 10_000
"""Maximum number of entries in one answer: 0.7 MB."""
STEP_ENTRIES: Final = 512  # 0.5 ms with their encoding


def query_message(broker: Broker, call: Call[QueryMessage]) -> None:
    """Answer with the messages of a topic that have the requested key."""
    header = call.header
    default = broker.settings.default_query_max_num
    lookup = broker.store.reader.query(
        header.topic,
        header.key,
        default if header.unique_key_query else header.max_num,
        header.begin_timestamp,
        header.end_timestamp,
    )
    look_up(broker, call, lookup, _found)


def _found(result: QueryResult) -> Reply:
    if not result.records:
        # like RocketMQ, omit the figures of the index if no message is found.
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

    look_up(broker, call, readable(broker, call, offset), viewed)


def query_consume_queue(broker: Broker, call: Call[QueryConsumeQueue]) -> None:
    """Answer with the entries of a queue and the group's subscription to its topic.

    Compatibility: an index outside the queue is not an error; the answer has a remark and no body.
    The same applies to a queue of the topic that has never had a message. The field `eval` is never
    set, because it is about extended queue entries, which this store does not write.
    """
    header = call.header
    may_read = reader(broker, call)
    if may_read is not None and not may_read(header.topic):
        raise ServerError(remarks.queue_not_exist(header.queue_id, header.topic))
    look_up(broker, call, _entries(broker, header), lambda reply: reply)


def _entries(broker: Broker, header: QueryConsumeQueue) -> Lookup[Reply]:
    yield PAUSE  # the plan of a read contains new entries, so it is made when the search has a turn
    topic, queue_id, index = header.topic, header.queue_id, header.index
    queue = broker.store.reader.queue(topic, queue_id)
    if queue is None and not _has_queue(broker, topic, queue_id):
        raise ServerError(remarks.queue_not_exist(queue_id, topic))
    if queue is None or not queue.min_offset <= index < queue.max_offset:
        return Reply(remark=remarks.queue_index_not_exist(index, queue_id, topic))
    body = ConsumeQueueEntries(max_queue_index=queue.max_offset, min_queue_index=queue.min_offset)
    if header.consumer_group is not None:
        _describe_filter(broker, body, header.consumer_group, topic)
    count = max(0, min(header.count, ENTRIES_MAX))
    data = yield from queue.plan(index, count).entries()
    return Reply(body=(yield from _listing(body, data)), remark=remarks.NOT_SET)


def _listing(around: ConsumeQueueEntries, data: bytes) -> Lookup[bytes]:
    """Encode an answer with the given entries of the queue.

    Only text waits between two steps: decoded entries would take three times the memory.
    """
    begin, found, end = encode_json(around).partition(b'"queueData":[')
    assert end.startswith(b"]")
    pieces: list[bytes] = []
    held_bytes = len(data)
    for start in range(0, len(data), STEP_ENTRIES * ENTRY.size):
        yield Pause(held_bytes)
        part = memoryview(data)[start : start + STEP_ENTRIES * ENTRY.size]
        entries = [
            ConsumeQueueEntry(physic_offset=offset, physic_size=size, tags_code=code)
            for offset, size, code in ENTRY.iter_unpack(part)
        ]
        pieces.append(encode_json(entries)[1:-1])
        held_bytes += len(pieces[-1])
    return b"".join((begin, found, b",".join(pieces), end))


def _has_queue(broker: Broker, topic: str, queue_id: int) -> bool:
    config = broker.tables.topics.get(topic)
    return config is not None and 0 <= queue_id < max(
        config.read_queue_nums, config.write_queue_nums
    )


def _describe_filter(broker: Broker, body: ConsumeQueueEntries, group: str, topic: str) -> None:
    body.subscription_data = broker.clients.consumers.subscription(group, topic)
    if body.subscription_data is None:
        body.filter_data = f"{group}@{topic} is not online!"
        return
    data = broker.tables.filters.get(topic, group)
    body.filter_data = "null" if data is None else encode_json(data).decode()
