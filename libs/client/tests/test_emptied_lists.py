# SPDX-License-Identifier: Apache-2.0
"""Applications may change the lists that they receive, because the client keeps its own."""

from typing import Any

import pytest

from cometmq.client import (
    ConsumeContext,
    ConsumeFrom,
    LitePullConsumer,
    LitePullOptions,
    MessageExt,
    PushOptions,
)
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.testing.client.listening import QUEUE_0, consumer_of, send, texts

FIRST = ConsumeFrom.FIRST_OFFSET


def emptied(messages: list[MessageExt]) -> list[bytes]:
    """Remove all messages from a list, as a program that handles them one by one may do."""
    bodies: list[bytes] = []
    while messages:
        bodies.append(messages.pop(0).body)
    return bodies


class EmptiesLists:
    """A hook that clears every list that it can."""

    def before_consume(self, context: ConsumeContext) -> None:
        if isinstance(context.messages, list):
            context.messages.clear()

    def after_consume(self, context: ConsumeContext) -> None:
        self.before_consume(context)


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_listener_may_empty_its_list(cluster: MemoryCluster, *, orderly: bool) -> None:
    options = PushOptions(
        consume_from=FIRST, orderly=orderly, batch_count_max=5, suspend_queue_ms=10
    )
    await send(cluster, *texts(20))
    bodies: list[bytes] = []

    async def listener(messages: list[MessageExt]) -> None:
        bodies.extend(emptied(messages))

    consumer = consumer_of(cluster, listener, options)
    consumer.add_hook(EmptiesLists())
    async with consumer:
        await eventually(lambda: consumer.stats().consumed_count == 20)
    assert sorted(bodies, key=int) == [b"%d" % number for number in range(20)]
    assert cluster.committed("cg", "T")[QUEUE_0] == 20


@pytest.mark.parametrize("way", ["poll", "batches"])
async def test_a_polled_list_may_be_emptied(cluster: MemoryCluster, way: str) -> None:
    await send(cluster, *texts(20))
    options = LitePullOptions(consume_from=FIRST, pull_count_max=5, queue_count_max=5)
    consumer: Any = LitePullConsumer("cg", cluster.namesrv, options=options)
    consumer.subscribe("T")
    consumer.add_hook(EmptiesLists())
    bodies: list[bytes] = []
    async with consumer:
        if way == "poll":
            while len(bodies) < 20:
                bodies += emptied(await consumer.poll())
        else:
            async for messages in consumer.batches():
                bodies += emptied(messages)
                if len(bodies) == 20:
                    break
    assert bodies == [b"%d" % number for number in range(20)]
    assert cluster.committed("cg", "T")[QUEUE_0] == 20
