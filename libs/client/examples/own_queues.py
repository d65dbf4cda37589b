# SPDX-License-Identifier: Apache-2.0
"""Keep state per owned queue, and store it before the queue is revoked.

Start it with NAMESRV_ADDR=127.0.0.1:9876 python own_queues.py
"""

import asyncio
import uuid

from cometmq.client import (
    ConsumeFrom,
    LitePullConsumer,
    LitePullOptions,
    Message,
    MessageQueue,
    Producer,
)

VISIT = f"visit-{uuid.uuid4().hex[:8]}"
"""The key of this run's messages; the topic may hold others."""


async def main() -> None:
    """Count the messages of each queue."""
    counts: dict[MessageQueue, int] = {}
    options = LitePullOptions(consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer = LitePullConsumer("counting", options=options)
    consumer.subscribe("Clicks")

    @consumer.on_assigned
    async def assigned(queues: list[MessageQueue]) -> None:
        counts.update(dict.fromkeys(queues, 0))  # here a program would load the stored counts

    @consumer.on_revoked
    async def revoked(queues: list[MessageQueue]) -> None:
        total = sum(counts.pop(queue) for queue in queues)  # and here store it for the next owner
        print(f"{len(queues)} queues left with {total} messages")

    async with Producer("shop") as producer:
        for number in range(20):
            await producer.send(Message("Clicks", b"%d" % number, keys=VISIT))
    async with consumer:
        async for messages in consumer.batches():
            counts[messages[0].queue] += sum(VISIT in message.keys for message in messages)
            if sum(counts.values()) == 20:
                consumer.finish()


asyncio.run(main())
