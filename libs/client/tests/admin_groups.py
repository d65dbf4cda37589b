# SPDX-License-Identifier: Apache-2.0
"""A consumer of the group g, and messages to one queue."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from cometmq.client import (
    ConsumeFrom,
    ConsumeResult,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PushConsumer,
    PushOptions,
)
from cometmq.client.testing import MemoryCluster

QUEUE = MessageQueue("T", "broker-a", 1)


@asynccontextmanager
async def member(
    cluster: MemoryCluster, listen: Callable[[MessageExt], ConsumeResult], expression: str = "*"
) -> AsyncIterator[PushConsumer]:
    async def listener(messages: list[MessageExt]) -> ConsumeResult:
        return listen(messages[0])

    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET, max_reconsume_times=0)
    consumer = PushConsumer("g", cluster.namesrv, listener=listener, options=options)
    consumer.subscribe("T", expression)
    async with consumer:
        yield consumer


async def send(producer: Producer, count: int, **properties: str) -> list[str]:
    sent = [
        await producer.send(
            Message("T", b"%d" % number, tag="A", keys=f"k{number}", properties=properties),
            queue=QUEUE,
        )
        for number in range(count)
    ]
    return [result.message_id for result in sent]
