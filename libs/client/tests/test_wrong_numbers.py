# SPDX-License-Identifier: Apache-2.0
"""Every call refuses a bool, float or string where an int is required."""

import re
from typing import Any

import pytest

from cometmq.client import (
    AdminClient,
    ConsumeResult,
    InvalidArgument,
    Message,
    MessageQueue,
    OrderlyResult,
    Producer,
    PullConsumer,
    ScheduledPull,
    sync,
)
from cometmq.client.consume.queues.rebalance import AllocateByConsistentHash
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.testing.client.listening import QUEUE_0, Recorder, consumer_of, send, texts

ADDRESS = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"delay_level": True}, "a delay level must be a number from 0 (no delay) to 18, not True"),
        ({"delay_level": 0.0}, "to 18, not 0.0"),
        ({"delay_level": None}, "to 18, not None"),
        ({"flag": True}, "the flag of a message must be an int, not True"),
        ({"flag": 1 << 31}, "the flag of a message must be an int, not 2147483648: it has 32 bits"),
        ({"wait_store_ok": "false"}, "wait_store_ok must be True or False, not 'false'"),
        ({"tag": 0}, "a tag must be a string, not int"),
    ],
)
async def test_numbers_of_messages(cluster: MemoryCluster, fields: Any, text: str) -> None:
    message = Message("T", b"x", **fields)
    async with Producer("pg", cluster.namesrv) as producer:
        for call in (lambda: producer.send(message), lambda: producer.send_batch([message])):
            with pytest.raises(InvalidArgument, match=re.escape(text)):
                await call()


@pytest.mark.parametrize("queue_id", ["1", True, 1.0])
async def test_a_malformed_queue_does_not_reach_the_broker(
    cluster: MemoryCluster, queue_id: Any
) -> None:
    queue = MessageQueue("T", "broker-a", queue_id)
    async with (
        Producer("pg", cluster.namesrv) as producer,
        PullConsumer("cg", cluster.namesrv) as consumer,
        AdminClient(cluster.namesrv) as admin,
    ):
        for call in (
            lambda: producer.send(Message("T", b"x"), queue=queue),
            lambda: consumer.pull(queue, 0),
            lambda: admin.max_offset(queue),
        ):
            with pytest.raises(InvalidArgument, match="a whole number as queue_id, unlike"):
                await call()


async def test_a_negative_queue_does_not_reach_the_broker(cluster: MemoryCluster) -> None:
    queue = MessageQueue("T", "broker-a", -1)
    async with (
        Producer("pg", cluster.namesrv) as producer,
        PullConsumer("cg", cluster.namesrv) as consumer,
        AdminClient(cluster.namesrv) as admin,
    ):
        for call in (
            lambda: producer.send(Message("T", b"x"), queue=queue),
            lambda: producer.send_oneway(Message("T", b"x"), queue=queue),
            lambda: producer.send_batch([Message("T", b"x")], queue=queue),
            lambda: producer.request(Message("T", b"x"), queue=queue),
            lambda: producer.admin.max_offset(queue),
            lambda: consumer.pull(queue, 0),
            lambda: consumer.max_offset(queue),
            lambda: consumer.search_offset(queue, 0),
            lambda: admin.max_offset(queue),
        ):
            with pytest.raises(InvalidArgument, match=r"are numbered from 0: MessageQueue\("):
                await call()
        with pytest.raises(InvalidArgument, match="are numbered from 0"):
            consumer.update_offset(queue, 1)
    assert cluster.messages("T") == []


@pytest.mark.parametrize("value", [True, 1.5, "1"])
async def test_numbers_of_calls(cluster: MemoryCluster, value: Any) -> None:
    async def read() -> None:
        async for _ in admin.read(QUEUE_0, value, 5):
            pass

    async def dead_letters() -> None:
        async for _ in admin.dead_letters("g", begin_ms=value):
            pass

    await send(cluster, *texts(1))
    async with (
        PullConsumer("cg", cluster.namesrv) as consumer,
        AdminClient(cluster.namesrv) as admin,
    ):
        (message,) = (await consumer.pull(QUEUE_0, 0)).messages
        for call in (
            lambda: consumer.send_message_back(message, value),
            lambda: admin.set_order_queues("T", "broker-a", value),
            read,
            dead_letters,
        ):
            with pytest.raises(InvalidArgument, match=f"must be a whole number .* not {value!r}"):
                await call()
        with pytest.raises(InvalidArgument, match="a MessageExt that a consumer received, not 'm'"):
            await consumer.send_message_back("m")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [True, 1.5, "1"])
def test_numbers_of_results_and_constructors(value: Any) -> None:
    for call in (
        lambda: ConsumeResult(value),
        lambda: ConsumeResult(0, value),
        lambda: ConsumeResult.consumed(value),
        lambda: ConsumeResult.later(value),
        lambda: OrderlyResult.suspend(value),
        lambda: OrderlyResult.rollback(value),
        lambda: ScheduledPull("cg", ADDRESS, concurrency=value),
        lambda: sync.ScheduledPull("cg", ADDRESS, concurrency=value),
        lambda: AllocateByConsistentHash(value),
    ):
        with pytest.raises(InvalidArgument, match=f"must be a whole number .* not {value!r}"):
            call()


async def test_an_impossible_result_redelivers_the_messages(cluster: MemoryCluster) -> None:
    answers = [lambda: ConsumeResult(-1), lambda: ConsumeResult.SUCCESS]
    seen = Recorder(lambda _: answers.pop(0)())
    async with consumer_of(cluster, seen):
        await send(cluster, *texts(1))
        await eventually(lambda: seen.bodies == [b"0", b"0"])


async def test_timeouts_of_sends(cluster: MemoryCluster) -> None:
    seconds: Any = 2.5
    async with Producer("pg", cluster.namesrv) as producer:
        with pytest.raises(InvalidArgument, match=r"timeout_ms .* not 2\.5$"):
            await producer.send(Message("T", b"x"), timeout_ms=seconds)
