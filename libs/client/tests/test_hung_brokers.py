# SPDX-License-Identifier: Apache-2.0
"""A broker that hangs does not delay the consumers of other brokers."""

import asyncio
import random

import pytest

from cometmq.client import ConsumeFrom, Message, MessageQueue, Producer, PushConsumer, PushOptions
from cometmq.client.testing import HANG, MemoryCluster, eventually
from cometmq.remoting.codes import RequestCode
from cometmq.testing.client.listening import Recorder

LONG_MS = 600_000


def consumer_with(cluster: MemoryCluster, listener: Recorder, *, timeout_ms: int) -> PushConsumer:
    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET, api_timeout_ms=timeout_ms)
    consumer = PushConsumer("cg", cluster.namesrv, listener=listener, options=options)
    consumer.subscribe("T")
    return consumer


async def send_to_each(cluster: MemoryCluster) -> None:
    async with Producer("pg", cluster.namesrv) as producer:
        cluster.create_topic("T", queue_count=1)
        for broker in cluster.brokers:
            message = Message("T", broker.name.encode())
            await producer.send(message, queue=MessageQueue("T", broker.name, 0))


async def test_queues_are_read_although_first_offsets_of_a_different_broker_are_unknown() -> None:
    async with MemoryCluster(("broker-a", "broker-b")) as cluster:
        await send_to_each(cluster)
        cluster.brokers[0].fail(RequestCode.QUERY_CONSUMER_OFFSET, HANG, times=100)
        consumer = consumer_with(cluster, seen := Recorder(), timeout_ms=LONG_MS)
        async with asyncio.TaskGroup() as tasks:
            starting = tasks.create_task(consumer.start())
            await eventually(lambda: seen.bodies == [b"broker-b"])
            assert not starting.done()
            starting.cancel()


async def test_members_are_those_of_a_broker_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "sample", lambda names, _: names)
    async with MemoryCluster(("broker-a", "broker-b")) as cluster:
        await send_to_each(cluster)
        cluster.brokers[0].fail(RequestCode.GET_CONSUMER_LIST_BY_GROUP, HANG, times=100)
        async with consumer_with(cluster, seen := Recorder(), timeout_ms=200):
            await eventually(lambda: sorted(seen.bodies) == [b"broker-a", b"broker-b"])
            members = [
                broker.requests[RequestCode.GET_CONSUMER_LIST_BY_GROUP]
                for broker in cluster.brokers
            ]
        assert all(members)
