# SPDX-License-Identifier: Apache-2.0
"""Lowers the offsets of groups to the ends of their queues after messages have been lost.

A queue that has lost its last messages, with a disk or by a power failure, gives their offsets to
new messages. A group that had consumed the lost ones would skip as many new ones.

Call it only after a loss: otherwise, an offset may be behind the end of its queue because programs
may commit one before the messages arrive.

Compatibility: RocketMQ leaves such offsets as they are.
"""

from cometmq.broker.broker import Broker
from cometmq.broker.tables.offset_index import KEY_SEPARATOR


def lower_offsets(broker: Broker) -> None:
    """Lower the offsets of known topics that lie behind the ends of their queues."""
    topics, offsets = broker.tables.topics.table, broker.tables.offsets
    lowered: list[str] = []
    for key, queues in list(offsets.table.items()):
        topic, _, group = key.partition(KEY_SEPARATOR)
        if topic not in topics:
            continue
        for queue_id, offset in list(queues.items()):
            end = broker.store.reader.max_offset(topic, queue_id)
            if offset > end:
                offsets.commit(group, topic, queue_id, end)
                lowered.append(f"{group} in {topic}/{queue_id}: {offset} -> {end}")
    if lowered:
        broker.log.warning("offsets.lowered", count=len(lowered), first=lowered[0])
