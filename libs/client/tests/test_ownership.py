# SPDX-License-Identifier: Apache-2.0
"""Assignment and revocation: the order of callbacks and commits."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from cometmq.client import (
    ClientStateError,
    ConsumeFrom,
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

QUEUES = [MessageQueue("T", "broker-a", queue_id) for queue_id in range(4)]


class Told:
    """Records a consumer's callbacks, and the commits before each of them."""

    def __init__(self, cluster: MemoryCluster, consumer: Any) -> None:
        self.events: list[tuple[str, list[int]]] = []
        self.committed: list[dict[MessageQueue, int]] = []
        self._cluster = cluster
        consumer.on_assigned(self._assigned)
        consumer.on_revoked(self._revoked)

    async def _assigned(self, queues: list[MessageQueue]) -> None:
        self.events.append(("assigned", [queue.queue_id for queue in queues]))

    def _revoked(self, queues: list[MessageQueue]) -> None:
        self.events.append(("revoked", [queue.queue_id for queue in queues]))
        self.committed.append(self._cluster.committed("cg", "T"))


def lite(cluster: MemoryCluster, **fields: Any) -> LitePullConsumer:
    options = LitePullOptions(consume_from=ConsumeFrom.FIRST_OFFSET, **fields)
    consumer = LitePullConsumer("cg", cluster.namesrv, options=options)
    consumer.subscribe("T")
    return consumer


# -- push -------------------------------------------------------------------------------------


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_push_consumer_reports_its_queues(cluster: MemoryCluster, orderly: bool) -> None:
    options = PushOptions(orderly=orderly, instance_name="a")
    consumer = consumer_of(cluster, Recorder(), options)
    told = Told(cluster, consumer)
    other = consumer_of(cluster, Recorder(), PushOptions(orderly=orderly, instance_name="b"))
    async with consumer:
        async with other:
            await eventually(lambda: told.events[1:] == [("revoked", [2, 3])])
            await eventually(lambda: len(other.queues) == 2)
        await eventually(lambda: len(told.events) == 3)
        with pytest.raises(ClientStateError, match="before the start"):
            consumer.on_revoked(lambda _: None)
    assert told.events == [
        ("assigned", [0, 1, 2, 3]),
        ("revoked", [2, 3]),
        ("assigned", [2, 3]),
        ("revoked", [0, 1, 2, 3]),
    ]


async def test_assignment_is_reported_before_the_first_message(cluster: MemoryCluster) -> None:
    order: list[str] = []
    await send(cluster, Message("T", b"x"))
    consumer = consumer_of(cluster, Recorder(lambda _: order.append("message")))

    @consumer.on_assigned
    async def assigned(_: list[MessageQueue]) -> None:
        await asyncio.sleep(0)
        order.append("told")

    async with consumer:
        await eventually(lambda: len(order) == 2)
    assert order == ["told", "message"]


async def test_consumed_offsets_are_committed_before_the_revocation(cluster: MemoryCluster) -> None:
    seen = Recorder()
    consumer = consumer_of(cluster, seen)
    told = Told(cluster, consumer)
    async with consumer:
        await send(cluster, *texts(5))
        await eventually(lambda: consumer.stats().consumed_count == 5)
    assert told.events[-1] == ("revoked", [0, 1, 2, 3])
    assert told.committed[-1][QUEUE_0] == 5


async def test_no_message_is_in_work_at_the_revocation(
    cluster: MemoryCluster,
) -> None:
    gate, begun, running = asyncio.Event(), asyncio.Event(), 0

    async def listener(_: list[MessageExt]) -> None:
        nonlocal running
        running += 1
        begun.set()
        await gate.wait()
        running -= 1

    consumer = consumer_of(cluster, listener)
    told = Told(cluster, consumer)
    async with consumer:
        await send(cluster, Message("T", b"x"))
        await begun.wait()
        await consumer.unsubscribe("T")
        assert consumer.queues == []
        assert told.events == [("assigned", [0, 1, 2, 3])]
        gate.set()
        await eventually(lambda: len(told.events) == 2)
        assert running == 0


# -- lite pull --------------------------------------------------------------------------------


async def test_a_lite_pull_consumer_may_seek_in_on_assigned(cluster: MemoryCluster) -> None:
    await send(cluster, *texts(5))
    consumer = lite(cluster)

    @consumer.on_assigned
    async def assigned(queues: list[MessageQueue]) -> None:
        for queue in queues:
            if queue == QUEUE_0:
                await consumer.seek(queue, 3)

    async with consumer:
        message = await consumer.next_message()
        assert message is not None
        assert message.body == b"3"


async def test_unsettled_polled_messages_reach_the_new_owner(cluster: MemoryCluster) -> None:
    """When a queue moves, polled messages that are not yet settled go to the new owner."""
    for queue in QUEUES:
        await send(cluster, *texts(10), queue=queue)
    first, second = lite(cluster, instance_name="a"), lite(cluster, instance_name="b")
    told = Told(cluster, first)
    got: list[tuple[MessageQueue, int]] = []
    async with first:
        for _ in range(25):
            message = await first.next_message()
            assert message is not None
            got.append((message.queue, message.queue_offset))
        polled = list(got)
        async with second:
            await eventually(lambda: ("revoked", [2, 3]) in told.events)
            (committed,) = told.committed
            for queue in QUEUES[2:]:  # the last message was being processed when its queue moved
                settled = sum(one == queue for one, _ in polled[:-1])
                assert committed.get(queue, 0) == settled
            await eventually(lambda: len(second.queues) == 2)
            for consumer in (first, second):
                while message := await consumer.next_message(300):
                    got.append((message.queue, message.queue_offset))
    assert {(queue, offset) for queue in QUEUES for offset in range(10)} == set(got)
    # The new owner may have asked for the offsets before the former owner committed them.
    repeated = [one for one, count in Counter(got).items() if count > 1]
    assert set(repeated) <= set(polled)
    assert len(got) == 40 + len(repeated)
    assert set(cluster.committed("cg", "T").values()) == {10}


async def test_a_lite_pull_consumer_is_reset_from_outside(cluster: MemoryCluster) -> None:
    await send(cluster, *texts(5))
    async with lite(cluster) as consumer:
        bodies = [(await consumer.next_message()).body for _ in range(5)]  # type: ignore[union-attr]
        ((peer, _),) = cluster.broker.groups["cg"].values()
        peer.send(
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
            ResetConsumerClientOffset("T", "cg", timestamp=0, is_force=True),
            encode_json(QueueOffsetTable({QUEUE_0: 3})),
        )
        while message := await consumer.next_message(500):
            bodies.append(message.body)
    assert bodies == [b"0", b"1", b"2", b"3", b"4", b"3", b"4"]
    assert cluster.committed("cg", "T")[QUEUE_0] == 5


async def test_lists_are_iterated_over(cluster: MemoryCluster) -> None:
    await send(cluster, *texts(10))
    async with lite(cluster, pull_count_max=4) as consumer:
        lists = []
        async for messages in consumer.batches():
            lists.append([message.body for message in messages])
            if sum(map(len, lists)) == 10:
                break
    assert [len(bodies) for bodies in lists] == [4, 4, 2]
    assert cluster.committed("cg", "T")[QUEUE_0] == 10


async def test_iterating_ends_after_the_message_in_work(cluster: MemoryCluster) -> None:
    await send(cluster, *texts(5))
    bodies = []
    async with lite(cluster) as consumer:
        async for message in consumer:
            bodies.append(message.body)
            if message.body == b"2":
                consumer.finish()
    assert bodies == [b"0", b"1", b"2"]
    assert cluster.committed("cg", "T")[QUEUE_0] == 3


async def test_iteration_ends_without_messages(cluster: MemoryCluster) -> None:
    async with lite(cluster, poll_timeout_ms=600_000) as consumer:
        asyncio.get_running_loop().call_later(0.05, consumer.finish)
        async with asyncio.timeout(60):
            assert [message async for message in consumer] == []


async def test_some_queues_are_committed_before_others(cluster: MemoryCluster) -> None:
    for queue in QUEUES[:2]:
        await send(cluster, Message("T", b"x"), queue=queue)
    async with lite(cluster) as consumer:
        for _ in range(2):
            assert await consumer.next_message()
        await consumer.commit([QUEUES[1]])
        committed = cluster.committed("cg", "T")
        assert (committed.get(QUEUES[0], 0), committed[QUEUES[1]]) == (0, 1)
        await consumer.commit()
        assert cluster.committed("cg", "T")[QUEUES[0]] == 1


@pytest.mark.parametrize("kind", [PushConsumer, LitePullConsumer])
async def test_a_topic_may_be_unsubscribed_while_its_queues_are_taken_at_the_start(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture, kind: type[Any]
) -> None:
    cluster.create_topic("U")
    more = {"listener": lambda _: None} if kind is PushConsumer else {}
    consumer = kind("cg", cluster.namesrv, **more)
    for topic in ("T", "U"):
        consumer.subscribe(topic)

    @consumer.on_assigned
    async def assigned(queues: list[MessageQueue]) -> None:
        if queues[0].topic == "U":
            await consumer.unsubscribe("U")

    async with consumer:
        await eventually(lambda: {queue.topic for queue in consumer.queues} == {"T"})
    assert "callback.failed" not in caplog.text
