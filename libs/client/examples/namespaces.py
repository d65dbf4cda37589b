# SPDX-License-Identifier: Apache-2.0
"""Two tenants of one cluster use the same names without conflicts.

Start it with NAMESRV_ADDR=127.0.0.1:9876 python namespaces.py
"""

import asyncio
import uuid

from cometmq.client import (
    ConsumeFrom,
    LitePullConsumer,
    LitePullOptions,
    Message,
    Producer,
    ProducerOptions,
)

ORDER = f"order-{uuid.uuid4().hex[:8]}"
"""The key of this run's messages; the topic may hold others."""


async def main() -> None:
    """Send and receive messages on each tenant's `Orders` topic."""
    for tenant in ("acme", "globex"):
        async with Producer("shop", options=ProducerOptions(namespace=tenant)) as producer:
            body = f"order of {tenant}".encode()
            result = await producer.send(Message("Orders", body, keys=ORDER))
            print(result.queue)  # Orders, not acme%Orders

    for tenant in ("acme", "globex"):
        options = LitePullOptions(namespace=tenant, consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer = LitePullConsumer("audit", options=options)
        consumer.subscribe("Orders")
        async with consumer:
            async for message in consumer:
                if ORDER in message.keys:
                    print(tenant, message.topic, message.body.decode())
                    break


asyncio.run(main())
