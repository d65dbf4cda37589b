# SPDX-License-Identifier: Apache-2.0
"""Messages that wait in queues that nobody reads, because their topic has fewer queues now.

Consumers read the first `readQueueNums` queues of a topic. If an operator lowers this number, the
messages in the other queues wait until the queues are added again. The group's offsets are kept.
"""

from cometmq.broker.broker import Broker
from cometmq.broker.tables.topics import QUEUE_NUMS_MAX


def stranded_queues(broker: Broker, group: str, topic: str) -> dict[int, int]:
    """Return the queues of a topic that nobody reads, each with the number of messages that the
    group has not consumed there; queues without such messages are left out.
    """
    config = broker.topics.table.get(topic)
    if config is None:
        return {}
    end = min(broker.store.queue_count(topic), QUEUE_NUMS_MAX)
    found = {}
    for queue_id in range(config.read_queue_nums, end):
        first = broker.store.min_offset(topic, queue_id)
        committed = broker.offsets.committed(group, topic, queue_id) or 0
        count = broker.store.max_offset(topic, queue_id) - max(first, committed)
        if count > 0:
            found[queue_id] = count
    return found
