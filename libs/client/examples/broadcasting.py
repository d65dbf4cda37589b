# SPDX-License-Identifier: Apache-2.0
"""Deliver every message to every member; each member keeps its offsets in a file.

Start it with NAMESRV_ADDR=127.0.0.1:9876 python broadcasting.py
"""

import asyncio
import tempfile
import uuid

from cometmq.client import (
    ConsumeFrom,
    Message,
    MessageExt,
    MessageModel,
    Producer,
    PushConsumer,
    PushOptions,
)

CHANGE = f"change-{uuid.uuid4().hex[:8]}"
"""The key of this run's messages; the topic may hold others."""


async def main() -> None:
    """Notify two caches of a changed price."""
    told: asyncio.Queue[str] = asyncio.Queue()

    def cache(name: str, folder: str) -> PushConsumer:
        async def listener(messages: list[MessageExt]) -> None:
            for message in messages:
                if CHANGE in message.keys:
                    await told.put(f"{name} drops {message.body.decode()}")

        options = PushOptions(
            message_model=MessageModel.BROADCASTING,
            consume_from=ConsumeFrom.FIRST_OFFSET,
            instance_name=name,  # part of the path of the file
            offsets_dir=folder,
        )
        consumer = PushConsumer("caches", listener=listener, options=options)
        consumer.subscribe("Prices")
        return consumer

    with tempfile.TemporaryDirectory() as folder:
        async with cache("one", folder), cache("two", folder), Producer("shop") as producer:
            await producer.send(Message("Prices", b"book", keys=CHANGE))
            print(*sorted([await told.get(), await told.get()]), sep="\n")


asyncio.run(main())
