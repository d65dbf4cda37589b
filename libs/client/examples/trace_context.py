# SPDX-License-Identifier: Apache-2.0
"""Continue a W3C trace across the queue; if OpenTelemetry is installed, its spans are used.

Start it with NAMESRV_ADDR=127.0.0.1:9876 python trace_context.py
"""

import asyncio

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


async def main() -> None:
    """Forward a traced message; the listener's own message belongs to the same trace."""
    arrived = asyncio.Event()
    async with Producer("shop", options=ProducerOptions(trace_context=True)) as producer:

        async def listener(messages: list[MessageExt]) -> None:
            for message in messages:
                if message.topic == "Orders":
                    await producer.send(Message("Invoices", message.body))
                else:
                    print(message.topic, message.properties["traceparent"])
                    arrived.set()

        options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET, trace_context=True)
        consumer = PushConsumer("billing", listener=listener, options=options)
        consumer.subscribe("Orders")
        consumer.subscribe("Invoices")
        async with consumer:
            order = Message("Orders", b"one book", properties={"traceparent": PARENT})
            await producer.send(order)
            await arrived.wait()


asyncio.run(main())
