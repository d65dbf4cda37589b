# SPDX-License-Identifier: Apache-2.0
"""Control of a running consumer: concurrency, messages sent back, seeks."""

from functools import partial

import pytest

from cometmq.client import (
    ClientStateError,
    ConsumeFrom,
    InvalidArgument,
    LitePullConsumer,
    LitePullOptions,
    Message,
    MessageQueue,
    PushOptions,
)
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.testing.client.listening import QUEUE_0, Gated, Recorder, consumer_of, send, texts

QUEUES = [MessageQueue("T", "broker-a", queue_id) for queue_id in range(4)]


@pytest.mark.parametrize("orderly", [False, True])
async def test_the_number_of_calls_may_change(cluster: MemoryCluster, orderly: bool) -> None:
    gated = Gated()
    options = PushOptions(
        consume_from=ConsumeFrom.FIRST_OFFSET, concurrency=1, orderly=orderly, instance_name="a"
    )
    consumer = consumer_of(cluster, gated, options)
    async with consumer:
        for queue in QUEUES:
            await send(cluster, *texts(3), queue=queue)
        await eventually(lambda: gated.running == 1)
        consumer.resize(3)
        await eventually(lambda: gated.running == 3)
        consumer.resize(1)
        gated.gate.set()
        await eventually(lambda: consumer.stats().consumed_count == 12)
        assert gated.most == 3
        gated.gate.clear()
        for queue in QUEUES:
            await send(cluster, *texts(1), queue=queue)
        gated.most = 0
        await eventually(lambda: gated.running == 1)
        gated.gate.set()
        await eventually(lambda: consumer.stats().consumed_count == 16)
        assert gated.most == 1
        with pytest.raises(InvalidArgument, match="not 0"):
            consumer.resize(0)


async def test_a_message_is_given_back_by_hand(cluster: MemoryCluster) -> None:
    seen = Recorder()
    async with consumer_of(cluster, seen) as consumer:
        await send(cluster, Message("T", b"x"))
        await eventually(lambda: len(seen.messages) == 1)
        assert await consumer.send_message_back(seen.messages[0])
        await eventually(lambda: [m.reconsume_times for m in seen.messages] == [0, 1])
        assert await consumer.send_message_back(seen.messages[0], -1)
        text = "1 to 18, not 19: if the brokers' messageDelayLevel has more levels, raise delay_lev"
        with pytest.raises(InvalidArgument, match=text):
            await consumer.send_message_back(seen.messages[0], 19)
    assert [message.body for message in cluster.broker.dead] == [b"x"]


async def test_brokers_may_have_more_delay_levels(cluster: MemoryCluster) -> None:
    seen = Recorder()
    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET, delay_level_max=20)
    async with consumer_of(cluster, seen, options) as consumer:
        await send(cluster, Message("T", b"x"))
        await eventually(lambda: seen.messages)
        assert await consumer.send_message_back(seen.messages[0], 20)
        with pytest.raises(InvalidArgument, match="1 to 20, not 21"):
            await consumer.send_message_back(seen.messages[0], 21)


async def test_a_push_consumer_goes_back_in_time(cluster: MemoryCluster) -> None:
    seen = Recorder()
    async with consumer_of(cluster, seen) as consumer:
        await send(cluster, *texts(3))
        await eventually(lambda: len(seen.bodies) == 3)
        await consumer.reset_to_timestamp(0)
        await eventually(lambda: len(seen.bodies) == 6)
    assert seen.bodies == [b"0", b"1", b"2"] * 2


async def test_assigned_consumers_learn_of_new_queues(cluster: MemoryCluster) -> None:
    told: list[tuple[str, int]] = []
    options = LitePullOptions(queue_check_interval_ms=10)
    consumer = LitePullConsumer("cg", cluster.namesrv, options=options)
    consumer.assign([QUEUE_0])
    consumer.on_queues_changed("T", lambda topic, queues: told.append((topic, len(queues))))
    async with consumer:
        assert told == []
        for count in (5, 6):
            cluster.create_topic("T", queue_count=count)
            await eventually(partial(told.__contains__, ("T", count)))
        assert told == [("T", 5), ("T", 6)]


async def test_consumers_learn_of_a_topic_that_is_created(cluster: MemoryCluster) -> None:
    told: list[tuple[str, int]] = []
    options = LitePullOptions(queue_check_interval_ms=10)
    consumer = LitePullConsumer("cg", cluster.namesrv, options=options)
    consumer.assign([QUEUE_0])
    consumer.on_queues_changed("New", lambda topic, queues: told.append((topic, len(queues))))
    async with consumer:
        cluster.create_topic("New", queue_count=2)
        await eventually(lambda: told == [("New", 2)])


async def test_name_servers_may_change(cluster: MemoryCluster) -> None:
    async with MemoryCluster() as other:
        other.create_topic("Elsewhere", queue_count=1)
        consumer = LitePullConsumer("cg", cluster.namesrv)
        consumer.subscribe("T")
        assert not consumer.is_running
        async with consumer:
            assert consumer.is_running
            consumer.use_namesrv(other.namesrv)
            assert len(await consumer.queues_of("Elsewhere")) == 1
        with pytest.raises(ClientStateError):
            consumer.use_namesrv(other.namesrv)
