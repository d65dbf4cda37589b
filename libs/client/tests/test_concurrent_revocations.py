# SPDX-License-Identifier: Apache-2.0
"""Concurrent events: queues that are revoked during a seek, a reset or a close."""

import asyncio
from typing import Any

import pytest

from cometmq.client import (
    ConsumeFrom,
    InvalidArgument,
    LitePullConsumer,
    LitePullOptions,
    Message,
    MessageExt,
    MessageQueue,
    PushConsumer,
    PushOptions,
)
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.offsets import QueueOffsetTable
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.commands.callbacks import ResetConsumerClientOffset
from cometmq.testing.client.listening import QUEUE_0, Recorder, consumer_of, send, texts


def named(cluster: MemoryCluster, listener: Any, name: str, *, orderly: bool) -> PushConsumer:
    options = PushOptions(
        consume_from=ConsumeFrom.FIRST_OFFSET, orderly=orderly, instance_name=name
    )
    return consumer_of(cluster, listener, options)


def lite(cluster: MemoryCluster) -> LitePullConsumer:
    options = LitePullOptions(consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer = LitePullConsumer("cg", cluster.namesrv, options=options)
    consumer.subscribe("T")
    return consumer


@pytest.mark.parametrize("orderly", [False, True])
async def test_callbacks_cancelled_from_inside_do_not_block(
    cluster: MemoryCluster, orderly: bool
) -> None:
    """A callback that awaits a task it has cancelled raises CancelledError."""
    told: list[int] = []

    async def cancelled(queues: list[MessageQueue]) -> None:
        told.append(len(queues))
        raise asyncio.CancelledError

    first = named(cluster, Recorder(), "a", orderly=orderly)
    first.on_assigned(cancelled)
    first.on_revoked(cancelled)
    second = named(cluster, Recorder(), "b", orderly=orderly)
    async with first:
        async with second:
            await eventually(lambda: len(first.queues) == len(second.queues) == 2)
        # The consumer has the queues before it calls the callback.
        await eventually(lambda: told == [4, 2, 2])
    assert told == [4, 2, 2, 4]


async def test_a_queue_that_was_reset_stays_locked_until_the_call_before_has_ended(
    cluster: MemoryCluster,
) -> None:
    gate, begun = asyncio.Event(), asyncio.Event()
    last = MessageQueue("T", "broker-a", 3)

    async def slow(_: list[MessageExt]) -> None:
        begun.set()
        await gate.wait()

    seen = Recorder()
    await send(cluster, *texts(3), queue=last)
    first = named(cluster, slow, "a", orderly=True)
    second = named(cluster, seen, "b", orderly=True)
    async with first:
        await begun.wait()
        ((peer, _),) = cluster.broker.groups["cg"].values()
        peer.send(
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
            ResetConsumerClientOffset("T", "cg", timestamp=0, is_force=True),
            encode_json(QueueOffsetTable({last: 1})),
        )
        await eventually(lambda: cluster.committed("cg", "T").get(last) == 1)
        async with second:
            await eventually(lambda: last not in first.queues)
            count = cluster.broker.requests[RequestCode.LOCK_BATCH_MQ] + 2
            await eventually(lambda: cluster.broker.requests[RequestCode.LOCK_BATCH_MQ] >= count)
            assert cluster.broker.locks["cg", last] == first.client_id
            assert last not in second.queues
            gate.set()
            await eventually(lambda: seen.bodies == [b"1", b"2"])


async def test_a_queue_whose_call_is_slow_holds_no_other_queue_back(
    cluster: MemoryCluster,
) -> None:
    gate, begun = asyncio.Event(), asyncio.Event()
    idle, busy = (MessageQueue("T", "broker-a", queue_id) for queue_id in (2, 3))

    async def slow(_: list[MessageExt]) -> None:
        begun.set()
        await gate.wait()

    await send(cluster, *texts(1), queue=busy)
    first = named(cluster, slow, "a", orderly=True)
    second = named(cluster, Recorder(), "b", orderly=True)
    async with first:
        await begun.wait()
        async with second:
            await eventually(lambda: second.queues == [idle])
            gate.set()
            await eventually(lambda: second.queues == [idle, busy])


async def test_a_queue_that_goes_during_a_seek_is_not_read(cluster: MemoryCluster) -> None:
    """Otherwise two members would receive the same messages, and this one's offset would be
    lost.
    """
    await send(cluster, *texts(3))
    consumer = lite(cluster)
    async with consumer:
        work = consumer._work
        assert work is not None
        bounds = work.bounds.both

        async def slow_bounds(queue: MessageQueue) -> tuple[int, int]:
            found = await bounds(queue)
            await work.queues.drop([queue])
            return found

        work.bounds.both = slow_bounds  # type: ignore[method-assign]
        with pytest.raises(InvalidArgument, match="does not own the queue"):
            await consumer.seek(QUEUE_0, 2)
        assert QUEUE_0 not in consumer.queues


async def test_a_poll_that_waits_returns_at_the_end(cluster: MemoryCluster) -> None:
    consumer = lite(cluster)
    await consumer.start()
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        waiting = group.create_task(consumer.poll(timeout_ms=600_000))
        await asyncio.sleep(0)
        await consumer.close()
    assert waiting.result() == []


async def test_a_topic_that_is_unsubscribed_while_its_queues_are_taken_is_left(
    cluster: MemoryCluster,
) -> None:
    """Otherwise its queues would remain locked, and no other member could read them."""
    asked, go_on = asyncio.Event(), asyncio.Event()
    consumer = named(cluster, Recorder(), "a", orderly=True)
    cluster.create_topic("U")
    async with consumer:
        work = consumer._work
        assert work is not None
        first_offset = work.queues._first.find

        async def slow_first_offset(queue: MessageQueue) -> int:
            if queue.topic == "U":
                asked.set()
                await go_on.wait()
            return await first_offset(queue)

        work.queues._first.find = slow_first_offset  # type: ignore[method-assign]
        consumer.subscribe("U")
        await asked.wait()
        await consumer.unsubscribe("U")
        go_on.set()
        topics = {"T", "%RETRY%cg"}
        await eventually(lambda: {queue.topic for _, queue in cluster.broker.locks} == topics)
        assert {queue.topic for queue in consumer.queues} == {"T"}


@pytest.mark.parametrize("error", [StopIteration("no more"), SystemExit(1)])
@pytest.mark.parametrize("orderly", [False, True])
async def test_whatever_a_plain_function_raises_is_a_failure(
    cluster: MemoryCluster, error: BaseException, orderly: bool
) -> None:
    times: list[int] = []

    def listener(messages: list[MessageExt]) -> None:
        times.append(messages[0].reconsume_times)
        if len(times) == 1:
            raise error

    async with named(cluster, listener, "a", orderly=orderly):
        await send(cluster, Message("T", b"x"))
        await eventually(lambda: times == [0, 1])
