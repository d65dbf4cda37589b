# SPDX-License-Identifier: Apache-2.0
"""Read the dead letters of a group.

Start it with NAMESRV_ADDR=127.0.0.1:9876 python dead_letters.py
"""

import asyncio
import uuid

from cometmq.client import (
    ConsumeFrom,
    ConsumeResult,
    LitePullConsumer,
    LitePullOptions,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    PushOptions,
)

ORDER = f"order-{uuid.uuid4().hex[:8]}"
"""The key of this run's messages; the topic may hold others."""


async def main() -> None:
    """Make a dead letter, then read it from the group's dead-letter topic."""
    given_up = asyncio.Event()

    async def listener(messages: list[MessageExt]) -> ConsumeResult:
        if ORDER not in messages[0].keys:
            return ConsumeResult.SUCCESS
        given_up.set()
        return ConsumeResult.DEAD_LETTER

    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer = PushConsumer("billing", listener=listener, options=options)
    consumer.subscribe("Bills")
    async with Producer("shop") as producer, consumer:
        await producer.send(Message("Bills", b"no address", keys=ORDER))
        await given_up.wait()

    dead = LitePullConsumer(
        "undertaker", options=LitePullOptions(consume_from=ConsumeFrom.FIRST_OFFSET)
    )
    dead.subscribe("%DLQ%billing")
    async with dead:
        async for message in dead:
            if ORDER in message.keys:
                print(message.properties["RETRY_TOPIC"], ORDER, message.body.decode())
                break


asyncio.run(main())
