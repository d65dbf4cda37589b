# SPDX-License-Identifier: Apache-2.0
"""No turn of the loop is long because a route has many queues or brokers."""

import asyncio
from typing import Any, Final

import pytest

from cometmq.client import LitePullConsumer, PushConsumer
from cometmq.client.consume.queues.offsets import COMMITTED_AT_ONCE, RemoteOffsets
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.client.turns import BEGUN_PER_TURN, for_each
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.errors import RequestTimeout, ServerError
from cometmq.remoting.transport.tasks import CANCELLED_PER_TURN, TaskSet, cancel_in_turns

QUEUE_COUNT: Final = 4_096
TURN_S_MAX: Final = 0.1
"""Twice to four times what a turn takes, with the broker in the same loop; it was 0.5 s and more
before queues were opened, stored and left in parts."""


@pytest.mark.load
@pytest.mark.parametrize("kind", [PushConsumer, LitePullConsumer])
async def test_a_consumer_of_many_queues_holds_the_loop_shortly(
    cluster: MemoryCluster, kind: Any, turns_s: list[float]
) -> None:
    cluster.create_topic("Wide", queue_count=QUEUE_COUNT)
    more = {"listener": print} if kind is PushConsumer else {}
    consumer = kind("cg", cluster.namesrv, **more)
    consumer.subscribe("Wide")
    async with consumer:
        await eventually(lambda: len(consumer.queues) == QUEUE_COUNT)
        consumer._work.member.wake()
        await asyncio.sleep(0.2)
    assert max(turns_s) < TURN_S_MAX


async def test_calls_begin_in_parts() -> None:
    begun = 0

    async def call(_: int) -> None:
        nonlocal begun
        begun += 1
        await asyncio.Event().wait()

    work = TaskSet().spawn(for_each(range(1_000), call, running_max=1_000), name="calls")
    before = most = 0
    while before < 1_000:
        await asyncio.sleep(0)
        most, before = max(most, begun - before), begun
    work.cancel()
    await asyncio.wait([work])
    assert most == BEGUN_PER_TURN


async def test_tasks_end_in_parts_even_if_the_caller_is_cancelled() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    running = TaskSet()
    tasks = [running.spawn(wait(), name="wait") for _ in range(1_000)]
    await asyncio.sleep(0)
    work = running.spawn(cancel_in_turns(tasks), name="cancel")
    await asyncio.sleep(0)
    assert sum(task.cancelling() for task in tasks) == CANCELLED_PER_TURN
    work.cancel()
    await asyncio.wait([*tasks, work])
    assert all(task.cancelled() for task in tasks)


async def test_queues_are_left_in_parts(cluster: MemoryCluster) -> None:
    cluster.create_topic("Wide", queue_count=1_000)
    consumer = PushConsumer("cg", cluster.namesrv, listener=print)
    consumer.subscribe("Wide")
    async with consumer:
        await eventually(lambda: len(consumer.queues) == 1_000)
        owned = consumer._work.queues  # type: ignore[union-attr]
        tasks = [*owned._tasks.values()]
        leaving = TaskSet().spawn(owned.leave("Wide"), name="leave")
        most = before = 0
        while not leaving.done():
            await asyncio.sleep(0)
            count = sum(task.cancelling() > 0 for task in tasks)
            most, before = max(most, count - before), count
        assert before == 1_000
        assert most == CANCELLED_PER_TURN


@pytest.mark.parametrize("error", [RequestTimeout("late"), ServerError("no")])
async def test_a_hung_broker_is_not_waited_for_again_and_again(error: Exception) -> None:
    """The other brokers get their offsets, and a broker that refuses one may take others."""
    offsets = RemoteOffsets(None, "cg")  # type: ignore[arg-type]
    asked: list[str] = []

    async def save(queue: MessageQueue) -> None:
        asked.append(queue.broker_name)
        await asyncio.sleep(0)
        if queue.broker_name == "a":
            raise error

    queues = [MessageQueue("T", name, number) for name in "ab" for number in range(400)]
    with pytest.raises(type(error)):
        await offsets._all(save, queues)
    assert asked.count("b") == 400
    if isinstance(error, ServerError):
        assert asked.count("a") == 400
    else:
        assert asked.count("a") <= COMMITTED_AT_ONCE
