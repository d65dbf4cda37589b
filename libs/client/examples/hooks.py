# SPDX-License-Identifier: Apache-2.0
"""Observe every send, and refuse some.

Start it with NAMESRV_ADDR=127.0.0.1:9876 python hooks.py
"""

import asyncio

from cometmq.client import InvalidArgument, Message, Producer, SendContext


class Timing:
    """Prints how long each attempt to send took."""

    def before_send(self, context: SendContext) -> None:
        """Do nothing."""

    def after_send(self, context: SendContext) -> None:
        """Print the result or the error."""
        took_ms = context.end_ms - context.begin_ms
        print(context.queue, context.error or context.result, took_ms)


class OnlyKnownTopics:
    """Forbids topics that are not on a list."""

    def check(self, context: SendContext) -> None:
        """Raise to refuse the message."""
        if context.queue.topic not in {"Orders", "Notices"}:
            raise InvalidArgument(f"nobody may send to {context.queue.topic}")


async def main() -> None:
    """Send to a topic on the list, and to one that is not."""
    producer = Producer("shop")
    producer.add_hook(Timing())
    producer.add_forbidden_hook(OnlyKnownTopics())
    async with producer:
        await producer.send(Message("Orders", b"one book"))
        try:
            await producer.send(Message("Secrets", b"psst"))
        except InvalidArgument as error:
            print(error)


asyncio.run(main())
