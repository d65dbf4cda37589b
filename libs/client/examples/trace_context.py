# SPDX-License-Identifier: Apache-2.0
"""Continue a W3C trace across the queue; if OpenTelemetry is installed, its spans are used.

Start it with NAMESRV_ADDR=127.0.0.1:9876 python trace_context.py
"""

import asyncio
import uuid

from cometmq.client import (
    ConsumeFrom,
    Message,
    MessageExt,
    Producer,
    ProducerOptions,
    PushConsumer,
    PushOptions,
)

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

ORDER = f"order-{uuid.uuid4().hex[:8]}"
"""The key of this run's messages; the topic may hold others."""


async def main() -> None:
    """Forward a traced message; the listener's own message belongs to the same trace."""
    arrived = asyncio.Event()
    async with Producer("shop", options=ProducerOptions(trace_context=True)) as producer:

        async def listener(messages: list[MessageExt]) -> None:
            for message in messages:
                if ORDER not in message.keys:
                    continue
                if message.topic == "Orders":
                    await producer.send(Message("Invoices", message.body, keys=ORDER))
                else:
                    print(message.topic, message.properties["traceparent"])
                    arrived.set()

        options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET, trace_context=True)
        consumer = PushConsumer("billing", listener=listener, options=options)
        consumer.subscribe("Orders")
        consumer.subscribe("Invoices")
        async with consumer:
            trace = {"traceparent": PARENT}
            await producer.send(Message("Orders", b"one book", keys=ORDER, properties=trace))
            await arrived.wait()


asyncio.run(main())
