# SPDX-License-Identifier: Apache-2.0
"""Closing: every caller waits for the same drain, and a listener cannot close its consumer."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from cometmq.client import (
    ClientStateError,
    ConsumeFrom,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    PushOptions,
)
from cometmq.client import sync as blocking
from cometmq.client.sync.loop import loop_thread
from cometmq.client.testing import MemoryCluster, eventually

FIRST = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET)


async def test_every_close_waits_for_the_running_listener(cluster: MemoryCluster) -> None:
    began, may_end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def listener(_: list[MessageExt]) -> None:
        began.set()
        await may_end.wait()
        ended.set()

    async with Producer("pg", cluster.namesrv) as producer:
        await producer.send(Message("T", b"x"))
    consumer = PushConsumer("g", cluster.namesrv, listener=listener, options=FIRST)
    consumer.subscribe("T")
    async with asyncio.TaskGroup() as group, consumer:
        await began.wait()
        group.create_task(consumer.close())
        await eventually(lambda: not consumer.is_running)
        second = group.create_task(consumer.close())
        await asyncio.sleep(0.05)
        assert not second.done()
        may_end.set()
        await second
        assert ended.is_set()
    await consumer.close()


async def test_a_listener_cannot_close_its_consumer(cluster: MemoryCluster) -> None:
    refusals: list[str] = []
    later: list[asyncio.Task[None]] = []

    async def listener(_: list[MessageExt]) -> None:
        try:
            await consumer.close()
        except ClientStateError as error:
            refusals.append(str(error))
        later.append(group.create_task(consumer.close()))

    async with Producer("pg", cluster.namesrv) as producer:
        await producer.send(Message("T", b"x"))
    consumer = PushConsumer("g", cluster.namesrv, listener=listener, options=FIRST)
    consumer.subscribe("T")
    async with asyncio.TaskGroup() as group, consumer:
        await eventually(lambda: later)
        async with asyncio.timeout(5):
            await later[0]  # a task of its own may close
    assert "called by the listener" in refusals[0]
    assert sum(cluster.committed("g", "T").values()) == 1


@pytest.fixture
def served() -> Iterator[MemoryCluster]:
    cluster = MemoryCluster()
    cluster.create_topic("T")
    loop_thread().run(cluster.start())
    yield cluster
    loop_thread().run(cluster.stop())


def test_a_plain_listener_cannot_close_its_consumer(served: MemoryCluster) -> None:
    refusals: list[str] = []
    done = threading.Event()

    def listener(_: list[MessageExt]) -> None:
        with pytest.raises(ClientStateError) as caught:
            consumer.close()
        refusals.append(str(caught.value))
        done.set()

    with blocking.Producer("pg", served.namesrv) as producer:
        producer.send(Message("T", b"x"))
    consumer = blocking.PushConsumer("g", served.namesrv, listener=listener, options=FIRST)
    consumer.subscribe("T")
    with consumer:
        assert done.wait(10)
    assert "called by the listener" in refusals[0]
