# SPDX-License-Identifier: Apache-2.0
"""Finds a broker that answers, for resending a message when another broker did not respond."""

import asyncio
import random
from collections.abc import Sequence

from cometmq.client import MessageQueue, Producer
from cometmq.client.errors import BrokerMissing, NoRoute
from cometmq.remoting.errors import CometError, Outage


async def answering_queue(producer: Producer, topic: str) -> MessageQueue:
    """Return a queue at the first broker that answers; if none does, raise the last error."""
    try:
        queues = await producer.queues(topic)
    except NoRoute:  # a send creates the topic at a broker of the default topic
        queues = await producer.queues(producer.options.default_topic)
        found = await _first_answering(producer, queues)
        return MessageQueue(topic, found.broker_name, 0)
    return await _first_answering(producer, queues)


async def _first_answering(producer: Producer, queues: Sequence[MessageQueue]) -> MessageQueue:
    shuffled = random.sample(queues, len(queues))  # spreads the messages that are sent again
    chosen = {queue.broker_name: queue for queue in shuffled}
    error: CometError = BrokerMissing("the topic has no queue to send to")
    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(_asked(producer, queue)) for queue in chosen.values()]
        for answer in asyncio.as_completed(asking):
            found = await answer
            if isinstance(found, MessageQueue):
                for task in asking:
                    task.cancel()
                return found
            error = found
    raise error


async def _asked(producer: Producer, queue: MessageQueue) -> MessageQueue | CometError:
    """Send a cheap request to the broker of a queue; return an error if it does not answer."""
    try:
        await producer.admin.max_offset(queue)
    except Outage as error:
        return error
    except CometError:  # a refusal is an answer, too
        pass
    return queue
