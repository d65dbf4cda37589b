# SPDX-License-Identifier: Apache-2.0
"""Closing a producer while requests wait for their replies."""

import asyncio

import pytest

from cometmq.client import (
    ClientStateError,
    Message,
    MessageExt,
    Producer,
    ProducerOptions,
    PushConsumer,
)
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.testing.client.listening import FIRST

PATIENT = ProducerOptions(send_timeout_ms=60_000)


def _answers_slowly(cluster: MemoryCluster, producer: Producer) -> PushConsumer:
    async def answer(messages: list[MessageExt]) -> None:
        await asyncio.sleep(0.3)
        for message in messages:
            await producer.reply(message, b"re:" + message.body)

    consumer = PushConsumer("cg", cluster.namesrv, listener=answer, options=FIRST)
    consumer.subscribe("T")
    return consumer


@pytest.mark.parametrize("is_stored", [False, True])
async def test_close_waits_for_the_reply_to_a_request(
    cluster: MemoryCluster, is_stored: bool
) -> None:
    async with (
        Producer("answers", cluster.namesrv) as answers,
        _answers_slowly(cluster, answers),
        Producer("pg", cluster.namesrv, options=PATIENT) as producer,
        asyncio.TaskGroup() as group,
    ):
        request = group.create_task(producer.request(Message("T", b"ask"), 60_000))
        await asyncio.sleep(0)
        if is_stored:
            await eventually(lambda: len(cluster.messages("T")) == 1)
        await producer.close()
        assert request.done()
        assert request.result().body == b"re:ask"


async def test_close_fails_a_request_that_gets_no_reply(cluster: MemoryCluster) -> None:
    options = ProducerOptions(send_timeout_ms=200)
    producer = Producer("pg", cluster.namesrv, options=options)
    await producer.start()

    async def ask() -> None:
        with pytest.raises(ClientStateError, match="closed before the reply to the request"):
            await producer.request(Message("T", b"ask"), 60_000)

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(ask())
        await eventually(lambda: len(cluster.messages("T")) == 1)
        await producer.close()
