# SPDX-License-Identifier: Apache-2.0
"""Consumes a topic as a member of a group, at a fixed rate; runs in the pods of a Deployment.

A pod gets the text of this module, so it imports only the client.
"""

import asyncio
import sys

from cometmq.client import MessageExt, PushConsumer, PushOptions, until_signal


async def main(topic: str, group: str, seconds_per_message: float) -> None:
    async def listener(messages: list[MessageExt]) -> None:
        await asyncio.sleep(seconds_per_message * len(messages))

    consumer = PushConsumer(group, listener=listener, options=PushOptions(concurrency=1))
    consumer.subscribe(topic)
    async with consumer:
        await until_signal()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
