# SPDX-License-Identifier: Apache-2.0
"""Clean-up requests, and small queries from tools.

Files are deleted later, by background jobs of the store: as in RocketMQ, the answer to a clean-up
only confirms that the request was accepted.

TRIM_QUEUE (30005) is CometMQ's own. Afterwards, consumers, queries and tools see the queue as if
retention had removed its first messages. The log, which all queues share, keeps their bytes until
its files expire.
"""

import asyncio
from typing import Final

from cometmq.broker.broker import Broker
from cometmq.broker.handlers.admin import refuse_on_slave
from cometmq.broker.handlers.deferred_answers import found
from cometmq.broker.handlers.topics import check_deleted
from cometmq.broker.names import check_topic
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.queues import TopicList
from cometmq.remoting.command import OK, Call, Reply
from cometmq.remoting.commands.admin import RegisterFilterServer, RegisterFilterServerReply
from cometmq.remoting.commands.table import NoHeader
from cometmq.remoting.commands.topics import TrimQueue, TrimQueueReply
from cometmq.remoting.errors import ServerError
from cometmq.remoting.names import (
    HALF_TOPIC,
    OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
    SYSTEM_TOPICS,
    is_system_topic,
)
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.queue_files import ENTRY, FILLER_SIZE
from cometmq.store.reads import Lookup
from cometmq.store.results import PutStatus

SAMPLES: Final = 16
SAMPLE_COUNT: Final = 1_000
"""Entries whose sizes are added up at each of 16 places of a long queue, in 1 ms."""

_REASONS: Final = {
    SCHEDULE_TOPIC: "delayed messages wait there for their delivery; recall them instead"
    " (cometmq message recall)",
    HALF_TOPIC: "open transactions are there; resolve them instead (cometmq txn)",
    OP_HALF_TOPIC: "it says which transactions have ended",
}


def clean_expired_consume_queue(broker: Broker, _call: Call[NoHeader]) -> Reply:
    """Drop queue entries and files that point to messages no longer in the log.

    Compatibility: RocketMQ deletes a queue that has no messages left, so its offsets restart at 0
    even though consumers have committed higher ones. Here the queue keeps its last file and its
    offsets.
    """
    broker.store.upkeep.cleaner.ask_trim()
    return OK


async def clean_unused_topic(broker: Broker, call: Call[NoHeader]) -> Reply:
    """Delete the queues of topics that are not configured on this broker; stop at a deletion that
    does not reach all in-sync copies.

    A slave deletes nothing: it gets deletions with its master's log, and may have messages of a
    topic whose configuration has not arrived yet.
    """
    for topic in sorted(broker.store.reader.topics()):
        if not broker.role.is_master:  # perhaps only since the last deletion
            break
        if topic in broker.tables.topics.table or is_system_topic(topic):
            continue
        broker.log.info("topic.cleaned", topic=topic, peer=call.peer.address)
        stored = broker.driver.delete_topic(topic)
        if broker.settings.auto_delete_unused_stats:
            broker.stats.forget_topic(topic)
        check_deleted(broker, (await stored).status)
        await asyncio.sleep(0)  # an outcome that is known at once suspends nothing
    return OK


def delete_expired_commitlog(broker: Broker, _call: Call[NoHeader]) -> Reply:
    """Delete expired files now, regardless of the configured hour."""
    broker.store.upkeep.cleaner.ask()
    return OK


def get_system_topic_list(broker: Broker, _call: Call[NoHeader]) -> Reply:
    topics = SYSTEM_TOPICS | broker.tables.topics.reserved
    return Reply(body=encode_json(TopicList(topic_list=sorted(topics))))


def register_filter_server(
    broker: Broker, _call: Call[RegisterFilterServer]
) -> RegisterFilterServerReply:
    """Answer with the broker's name and id; RocketMQ 4.9 no longer has filter servers."""
    return RegisterFilterServerReply(
        broker_name=broker.settings.broker_name, broker_id=broker.role.state.broker_id
    )


async def trim_queue(broker: Broker, call: Call[TrimQueue]) -> TrimQueueReply:
    """Delete the messages before an offset; answer once all in-sync copies have the deletion."""
    header = call.header
    topic, queue_id, offset = header.topic, header.queue_id, header.offset
    refuse_on_slave(broker)
    _check_trimmable(broker, topic)
    queue = broker.store.reader.queue(topic, queue_id)
    if queue is None:
        raise ServerError(f"queue {queue_id} of {topic} has no messages on this broker")
    first, end = queue.min_offset, queue.max_offset
    if not 0 <= offset <= end:
        raise ServerError(
            f"offset={offset}: queue {queue_id} of {topic} has the offsets {first} to {end};"
            f" {end} deletes all messages"
        )
    size = await found(broker, _size(queue, first, offset))
    reply = TrimQueueReply(min_offset=first, message_count=max(0, offset - first), size=size)
    if header.dry_run:
        return reply
    if broker.store.reader.queue(topic, queue_id) is not queue:
        raise ServerError(f"{topic} was deleted meanwhile")
    stored = await broker.driver.trim_queue(topic, queue_id, offset)
    _check_stored(broker, stored.status)
    broker.log.info(
        "queue.trimmed", topic=topic, queue_id=queue_id, offset=offset, count=reply.message_count,
        by=call.peer.address,
    )  # fmt: skip
    return reply


def _check_trimmable(broker: Broker, topic: str) -> None:
    check_topic(topic)
    if topic in _REASONS:
        raise ServerError(f"{topic} cannot be trimmed: {_REASONS[topic]}")
    if broker.tables.topics.is_reserved(topic):
        raise ServerError(f"{topic} cannot be trimmed: it is a topic of the brokers' own")


def _check_stored(broker: Broker, mark: PutStatus) -> None:
    if mark in {PutStatus.PUT_OK, PutStatus.SLAVE_NOT_AVAILABLE}:
        return
    if mark.is_stored:
        raise ServerError(f"the deletion has not reached all copies ({mark.name}): repeat it")
    refusals = ", ".join(broker.store.stats().refusals)
    raise ServerError(f"nothing was deleted, because the store takes no writes ({refusals})")


def _size(queue: ConsumeQueue, first: int, end: int) -> Lookup[int]:
    """Return the total size of the messages in a range of a queue; estimate it for a long range."""
    total = count = 0
    step = max(SAMPLE_COUNT, -(-(end - first) // SAMPLES))
    for start in range(first, end, step):
        data = yield from queue.plan(start, min(SAMPLE_COUNT, end - start)).entries()
        sizes = [size for _, size, _ in ENTRY.iter_unpack(data) if size != FILLER_SIZE]
        total += sum(sizes)
        count += len(sizes)
    return total * max(0, end - first) // max(1, count) if count < end - first else total
