# SPDX-License-Identifier: Apache-2.0
"""Two tenants of one cluster use the same names without conflicts.

Start it with NAMESRV_ADDR=127.0.0.1:9876 python namespaces.py
"""

import asyncio

from cometmq.client import (
    ConsumeFrom,
    LitePullConsumer,
    LitePullOptions,
    Message,
    Producer,
    ProducerOptions,
)


async def main() -> None:
    """Send and receive messages on each tenant's topic Orders."""
    for tenant in ("acme", "globex"):
        async with Producer("shop", options=ProducerOptions(namespace=tenant)) as producer:
            result = await producer.send(Message("Orders", f"order of {tenant}".encode()))
            print(result.queue)  # Orders, not acme%Orders

    for tenant in ("acme", "globex"):
        options = LitePullOptions(namespace=tenant, consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer = LitePullConsumer("audit", options=options)
        consumer.subscribe("Orders")
        async with consumer:
            async for message in consumer:
                print(tenant, message.topic, message.body.decode())
                break


asyncio.run(main())
