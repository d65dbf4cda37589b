# SPDX-License-Identifier: Apache-2.0
"""Send a request as a message, and receive its consumer's reply.

Start it with NAMESRV_ADDR=127.0.0.1:9876 python request_reply.py
"""

import asyncio
from contextlib import suppress

from cometmq.client import (
    ConsumeFrom,
    Message,
    MessageExt,
    NoReply,
    Producer,
    PushConsumer,
    PushOptions,
    RequesterGone,
    is_request,
)


async def main() -> None:
    """Run the requester and the replier in one process; they could also run on different
    machines.
    """
    async with Producer("price-service") as answers, Producer("shop") as shop:

        async def listener(messages: list[MessageExt]) -> None:
            for message in messages:
                if is_request(message):
                    # A reply that comes too late is no reason to consume the request again.
                    with suppress(RequesterGone):
                        await answers.reply(message, b"12.90 for " + message.body)

        options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer = PushConsumer("price-service", listener=listener, options=options)
        consumer.subscribe("Prices")
        async with consumer:
            reply = await shop.request(Message("Prices", b"one book"), timeout_ms=10_000)
            print(reply.body.decode())

        try:
            await shop.request(Message("NobodyListens", b"hello?"), timeout_ms=3_000)
        except NoReply as error:
            print(error)


asyncio.run(main())
