# SPDX-License-Identifier: Apache-2.0
"""Read any queue at any offset, and pull shared queues at intervals.

Start it with NAMESRV_ADDR=127.0.0.1:9876 python pull_by_hand.py
"""

import asyncio
import uuid

from cometmq.client import Message, MessageQueue, Producer, PullConsumer, ScheduledPull

METER = f"meter-{uuid.uuid4().hex[:8]}"
"""The key of this run's messages; the topic may hold others."""


async def look_back(topic: str) -> None:
    """Read the newest message of each queue again; the group's offsets are left unchanged."""
    async with PullConsumer("looking") as consumer:
        for queue in await consumer.queues_of(topic):
            end = await consumer.max_offset(queue)
            if end > await consumer.min_offset(queue):
                found = await consumer.pull(queue, end - 1)
                print("newest", found.messages[-1].body)


async def copy(topic: str, count: int) -> None:
    """Pull our share of the queues every 100 ms until everything has been seen."""
    seen = 0
    done = asyncio.Event()

    async def pull(consumer: PullConsumer, queue: MessageQueue) -> int:
        nonlocal seen
        offset = await consumer.fetch_offset(queue) or 0
        found = await consumer.pull(queue, offset)
        seen += sum(METER in message.keys for message in found.messages)
        consumer.update_offset(queue, found.next_offset)
        if seen == count:
            done.set()
        return 100

    scheduled = ScheduledPull("copying")
    scheduled.register(topic, pull)
    async with scheduled:
        await done.wait()
    print("copied", seen)


async def main() -> None:
    """Send ten messages to one queue, and read them both ways."""
    async with Producer("shop") as producer:
        await producer.send(Message("Readings", b"0", keys=METER))
        queue = (await producer.queues("Readings"))[0]
        for number in range(1, 10):
            reading = Message("Readings", b"%d" % number, keys=METER)
            await producer.send(reading, queue=queue)
    await look_back("Readings")
    await copy("Readings", 10)


asyncio.run(main())
