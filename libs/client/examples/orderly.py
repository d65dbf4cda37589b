# SPDX-License-Identifier: Apache-2.0
"""Consume the steps of each order one after the other, and wait when one fails.

Start it with NAMESRV_ADDR=127.0.0.1:9876 python orderly.py
"""

import asyncio
import uuid

from cometmq.client import (
    ConsumeFrom,
    Message,
    MessageExt,
    OrderlyResult,
    Producer,
    PushConsumer,
    PushOptions,
)

STEPS = (b"packed", b"sent", b"delivered")
ORDERS = tuple(f"order-{number}-{uuid.uuid4().hex[:8]}" for number in (17, 18))
"""The orders of this run; the topic may hold others."""


async def main() -> None:
    """Send the steps of two orders, and consume them in order."""
    seen: list[str] = []
    done = asyncio.Event()

    async def listener(messages: list[MessageExt]) -> OrderlyResult:
        for message in messages:
            order = next(iter(message.keys), "")
            if order not in ORDERS:
                continue
            if message.body == b"sent" and message.reconsume_times == 0:
                return OrderlyResult.suspend(50)  # once more; "delivered" waits
            seen.append(f"{order} {message.body.decode()}")
        if len(seen) == 2 * len(STEPS):
            done.set()
        return OrderlyResult.SUCCESS

    options = PushOptions(
        consume_from=ConsumeFrom.FIRST_OFFSET, orderly=True, max_reconsume_times=16
    )
    consumer = PushConsumer("delivery", listener=listener, options=options)
    consumer.subscribe("Steps")
    async with Producer("shop") as producer, consumer:
        for step in STEPS:
            for order in ORDERS:
                await producer.send_ordered(Message("Steps", step, keys=order), order)
        await done.wait()
    for line in sorted(seen, key=lambda text: text.split()[0]):
        print(line)


asyncio.run(main())
