# SPDX-License-Identifier: Apache-2.0

from unittest.mock import AsyncMock

from cometmq.operator.unconsumed import unconsumed
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.stats import ConsumeStats, OffsetPair

RETRIES = "%RETRY%G"


async def test_messages_count_that_the_group_has_yet_to_read():
    ends = {
        "T": ((10, 8), (10, 3), (5, 9)),  # of the second queue, messages before 6 are deleted
        RETRIES: ((2, 0),),  # the group has no offset here, so only a request for it tells
    }

    async def consume_stats(_group, topic):
        name = topic or "T"
        queues = (MessageQueue(name, "a", one) for one in range(len(ends[name])))
        pairs = (OffsetPair(broker_offset=end, consumer_offset=at) for end, at in ends[name])
        return ConsumeStats(offset_table=dict(zip(queues, pairs, strict=True)))

    async def min_offset(topic, queue_id):
        return 6 if (topic, queue_id) == ("T", 1) else 0

    master = AsyncMock(consume_stats=consume_stats, min_offset=min_offset)
    assert await unconsumed(master, "G") == {"T": 6, RETRIES: 2}
    ends["T"], ends[RETRIES] = ((10, 10),), ((2, 2),)
    assert await unconsumed(master, "G") == {}
