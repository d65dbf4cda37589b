# SPDX-License-Identifier: Apache-2.0
"""Shut down on a signal: finish the current message, commit, leave the group.

Start it with NAMESRV_ADDR=127.0.0.1:9876 python drain_on_signal.py
"""

import asyncio
import os
import signal
import uuid

from cometmq.client import (
    ConsumeFrom,
    LitePullConsumer,
    LitePullOptions,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    PushOptions,
    on_signal,
    until_signal,
)

PARCEL = f"parcel-{uuid.uuid4().hex[:8]}"
"""The key of this run's messages; the topic may hold others."""


async def push() -> None:
    """Wait for the signal; leaving `async with` waits for the listener and commits."""

    async def listener(messages: list[MessageExt]) -> None:
        if PARCEL in messages[0].keys:
            os.kill(os.getpid(), signal.SIGTERM)  # as a container's runtime would
            await asyncio.sleep(0.1)
            print("finished", messages[0].body.decode())

    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer = PushConsumer("packing", listener=listener, options=options)
    consumer.subscribe("Parcels")
    async with consumer:
        await until_signal()
    print("left")


async def pull() -> None:
    """Iterate until the signal; the loop ends after the current message."""
    options = LitePullOptions(consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer = LitePullConsumer("labelling", options=options)
    consumer.subscribe("Parcels")
    async with consumer:
        with on_signal(consumer.finish):
            async for message in consumer:
                if PARCEL in message.keys:
                    os.kill(os.getpid(), signal.SIGTERM)
                    await asyncio.sleep(0.1)
                    print("finished", message.body.decode())
    print("left")


async def main() -> None:
    """Send one parcel, and consume it both ways."""
    async with Producer("shop") as producer:
        await producer.send(Message("Parcels", b"one book", keys=PARCEL))
    await push()
    await pull()


asyncio.run(main())
