# SPDX-License-Identifier: Apache-2.0
"""Trace messages, and read what happened to one of them.

Start it with NAMESRV_ADDR=127.0.0.1:9876 python message_trace.py
"""

import asyncio
import uuid

from cometmq.client import (
    AdminClient,
    ConsumeFrom,
    Message,
    MessageExt,
    Producer,
    ProducerOptions,
    PushConsumer,
    PushOptions,
)
from cometmq.client.trace import decode_trace

ORDER = f"order-{uuid.uuid4().hex[:8]}"
"""The key of this run's messages; the topic may hold others."""


async def main() -> None:
    """Send and consume with `trace`, then look the message up in the trace topic."""
    consumed = asyncio.Event()

    async def listener(messages: list[MessageExt]) -> None:
        if ORDER in messages[0].keys:
            consumed.set()

    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET, trace=True)
    consumer = PushConsumer("billing", listener=listener, options=options)
    consumer.subscribe("Orders")
    async with consumer, Producer("shop", options=ProducerOptions(trace=True)) as producer:
        sent = await producer.send(Message("Orders", b"one book", keys=ORDER))
        await consumed.wait()

    # The clients are closed, so the broker has received their traces.
    async with AdminClient() as admin:
        for message in await admin.query_by_key("RMQ_SYS_TRACE_TOPIC", sent.message_id):
            for record in decode_trace(message.body):
                if record.message_id == sent.message_id:
                    print(record)


asyncio.run(main())
