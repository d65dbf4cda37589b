# SPDX-License-Identifier: Apache-2.0
"""Pull consumers: reads of any queue and offset, manual offsets, shares, scheduled pulls."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from cometmq.client import (
    BrokerMissing,
    ClientStateError,
    InvalidArgument,
    Message,
    MessageQueue,
    NoRoute,
    PullConsumer,
    PullOptions,
    PullStatus,
    ScheduledPull,
)
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.remoting.bodies.dialect import decode_json
from cometmq.remoting.bodies.offsets import ConsumerStatus
from cometmq.remoting.bodies.running_info import ConsumerRunningInfo
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.commands.callbacks import (
    GetConsumerRunningInfo,
    GetConsumerStatusFromClient,
)
from cometmq.remoting.errors import ServerError
from cometmq.testing.client.listening import QUEUE_0, send, texts


async def test_a_queue_is_read_from_any_offset(cluster: MemoryCluster) -> None:
    await send(cluster, *texts(10))
    async with PullConsumer("pull", cluster.namesrv) as consumer:
        found = await consumer.pull(QUEUE_0, 3, count_max=4)
        assert found.status is PullStatus.FOUND
        assert [message.body for message in found.messages] == [b"3", b"4", b"5", b"6"]
        assert (found.next_offset, found.min_offset, found.max_offset) == (7, 0, 10)
        at_end = await consumer.pull(QUEUE_0, 10)
        assert (at_end.status, at_end.messages, at_end.next_offset) == (PullStatus.NO_NEW, [], 10)
        outside = await consumer.pull(QUEUE_0, 99)
        assert (outside.status, outside.next_offset) == (PullStatus.OFFSET_ILLEGAL, 10)


async def test_a_pull_filters_by_tag(cluster: MemoryCluster) -> None:
    await send(cluster, *[Message("T", tag.encode(), tag=tag) for tag in "ABAB"])
    async with PullConsumer("pull", cluster.namesrv) as consumer:
        found = await consumer.pull(QUEUE_0, 0, expression="B")
        assert [message.body for message in found.messages] == [b"B", b"B"]
        nothing = await consumer.pull(QUEUE_0, 0, expression="C")
        assert (nothing.status, nothing.next_offset) == (PullStatus.NO_MATCHED, 4)


async def test_a_waiting_pull_gets_the_first_message(cluster: MemoryCluster) -> None:
    async with PullConsumer("pull", cluster.namesrv) as consumer, asyncio.TaskGroup() as group:
        waiting = group.create_task(consumer.pull_block_if_not_found(QUEUE_0, 0))
        await eventually(lambda: cluster.broker.held_count)
        await send(cluster, Message("T", b"x"))
    assert [message.body for message in waiting.result().messages] == [b"x"]


async def test_offsets_are_kept_by_hand(cluster: MemoryCluster) -> None:
    await send(cluster, *texts(7))
    async with PullConsumer("pull", cluster.namesrv) as consumer:
        assert await consumer.fetch_offset(QUEUE_0) == 0
        consumer.update_offset(QUEUE_0, 7)
        assert await consumer.fetch_offset(QUEUE_0) == 7
        assert await consumer.fetch_offset(QUEUE_0, from_store=True) == 0
        await consumer.commit()
        assert await consumer.fetch_offset(QUEUE_0, from_store=True) == 7
        consumer.update_offset(QUEUE_0, 5)  # applications may seek backwards
    assert cluster.committed("pull", "T") == {QUEUE_0: 5}


async def test_a_topic_that_is_gone_keeps_no_other_offset_from_its_broker(
    cluster: MemoryCluster,
) -> None:
    await send(cluster, *texts(7))
    async with PullConsumer("pull", cluster.namesrv) as consumer:
        await consumer.queues_of("T")
        consumer.update_offset(MessageQueue("Gone", "broker-z", 0), 3)
        consumer.update_offset(QUEUE_0, 7)
        with pytest.raises(BrokerMissing, match="broker-z"):
            await consumer.commit()
        assert cluster.committed("pull", "T") == {QUEUE_0: 7}


async def test_offsets_are_stored_at_intervals(cluster: MemoryCluster) -> None:
    await send(cluster, *texts(7))
    options = PullOptions(persist_offset_interval_ms=10)
    async with PullConsumer("pull", cluster.namesrv, options=options) as consumer:
        consumer.update_offset(QUEUE_0, 7)
        await eventually(lambda: cluster.committed("pull", "T") == {QUEUE_0: 7})


async def test_bounds_of_queues(cluster: MemoryCluster) -> None:
    await send(cluster, *texts(4))
    cluster.broker.queues.expire("T", 0, 1)
    stored = cluster.messages("T")[0].store_timestamp
    async with PullConsumer("pull", cluster.namesrv) as consumer:
        assert len(await consumer.queues_of("T")) == 4
        assert await consumer.min_offset(QUEUE_0) == 1
        assert await consumer.max_offset(QUEUE_0) == 4
        assert await consumer.search_offset(QUEUE_0, stored) == 1


async def test_a_topic_that_was_deleted_is_missing_although_its_route_is_known(
    cluster: MemoryCluster,
) -> None:
    async with PullConsumer("pull", cluster.namesrv) as consumer:
        await consumer.pull(QUEUE_0, 0)
        cluster.broker.queues.delete("T")
        with pytest.raises(NoRoute, match="broker-a has no topic T, and does not create it"):
            await consumer.pull(QUEUE_0, 0)


async def test_members_share_the_queues_of_registered_topics(cluster: MemoryCluster) -> None:
    told: list[tuple[str, int]] = []
    first = PullConsumer("pull", cluster.namesrv)
    second = PullConsumer("pull", cluster.namesrv)

    @first.on_assigned
    async def assigned(queues: list[MessageQueue]) -> None:
        told.append(("assigned", len(queues)))

    @first.on_revoked
    def revoked(queues: list[MessageQueue]) -> None:
        told.append(("revoked", len(queues)))

    first.register("T")
    second.register("T")
    async with first:
        assert len(await first.queues_in_balance("T")) == 4
        assert await first.queues_in_balance("Other") == []
        async with second:
            await eventually(lambda: told[-1] == ("revoked", 2))
            mine, theirs = await first.queues_in_balance("T"), await second.queues_in_balance("T")
            assert len(mine) == len(theirs) == 2
            assert not set(mine) & set(theirs)
        await eventually(lambda: told[-1] == ("assigned", 2))
    assert told == [("assigned", 4), ("revoked", 2), ("assigned", 2), ("revoked", 4)]


async def test_a_returned_message_is_redelivered_or_dead(cluster: MemoryCluster) -> None:
    await send(cluster, *texts(2))
    async with PullConsumer("pull", cluster.namesrv) as consumer:
        first, second = (await consumer.pull(QUEUE_0, 0)).messages
        assert await consumer.send_message_back(first)
        assert await consumer.send_message_back(second, -1)
        with pytest.raises(InvalidArgument, match="1 to 18, not 99"):
            await consumer.send_message_back(first, 99)
    (again,) = cluster.messages("%RETRY%pull")
    assert (again.body, again.reconsume_times) == (b"0", 1)
    assert [message.body for message in cluster.broker.dead] == [b"1"]


async def test_running_info_of_a_pull_consumer(cluster: MemoryCluster) -> None:
    consumer = PullConsumer("pull", cluster.namesrv)
    consumer.register("T")
    async with consumer:
        ((peer, data),) = cluster.broker.groups["pull"].values()
        assert data.consume_type == "CONSUME_ACTIVELY"
        header = GetConsumerRunningInfo("pull", consumer.client_id)
        answer = await peer.invoke(
            RequestCode.GET_CONSUMER_RUNNING_INFO, header, b"", timeout_ms=60_000
        )
    info = decode_json(ConsumerRunningInfo, answer.body)
    assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
    assert info.mq_table == {}


async def test_a_pull_consumer_tells_how_far_it_is(cluster: MemoryCluster) -> None:
    consumer = PullConsumer("pull", cluster.namesrv)
    consumer.register("T")
    async with consumer:
        ((peer, _),) = cluster.broker.groups["pull"].values()
        consumer.update_offset(QUEUE_0, 7)
        consumer.update_offset(MessageQueue("U", "broker-a", 0), 3)
        header = GetConsumerStatusFromClient("T", "pull")
        code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        answer = await peer.invoke(code, header, b"", timeout_ms=60_000)
    assert decode_json(ConsumerStatus, answer.body).message_queue_table == {QUEUE_0: 7}


async def test_refusals_go_to_the_caller(cluster: MemoryCluster) -> None:
    async with PullConsumer("pull", cluster.namesrv) as consumer:
        cluster.broker.fail(RequestCode.PULL_MESSAGE, ServerError("no"))
        with pytest.raises(ServerError, match="no"):
            await consumer.pull(QUEUE_0, 0)


# -- calls at intervals -----------------------------------------------------------------------


async def consume(consumer: PullConsumer, queue: MessageQueue, seen: list[bytes]) -> int:
    offset = await consumer.fetch_offset(queue) or 0
    found = await consumer.pull(queue, offset)
    seen += [message.body for message in found.messages]
    consumer.update_offset(queue, found.next_offset)
    return 10


async def test_our_queues_are_pulled_again_and_again(cluster: MemoryCluster) -> None:
    seen: list[bytes] = []
    scheduled = ScheduledPull("pull", cluster.namesrv)
    scheduled.register("T", lambda consumer, queue: consume(consumer, queue, seen))
    with pytest.raises(ClientStateError, match="already has a callback"):
        scheduled.register("T", lambda consumer, queue: consume(consumer, queue, seen))
    async with scheduled:
        for queue_id in range(4):
            await send(cluster, *texts(3), queue=MessageQueue("T", "broker-a", queue_id))
        await eventually(lambda: len(seen) == 12)
    assert set(cluster.committed("pull", "T").values()) == {3}


async def test_calls_begin_when_the_consumer_has_started(cluster: MemoryCluster) -> None:
    seen: list[bool] = []

    async def callback(consumer: PullConsumer, _: MessageQueue) -> int:
        seen.append(consumer.is_running)
        return 10

    scheduled = ScheduledPull("pull", cluster.namesrv)
    scheduled.register("T", callback)
    async with scheduled:
        await eventually(lambda: len(seen) >= 8)
    assert all(seen)


async def test_a_failing_call_is_made_again_and_calls_are_bounded(cluster: MemoryCluster) -> None:
    running = most = failed = 0

    async def callback(_: PullConsumer, __: MessageQueue) -> int:
        nonlocal running, most, failed
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        failed += 1
        if failed < 3:
            raise ValueError("bad")
        return 1

    scheduled = ScheduledPull("pull", cluster.namesrv, concurrency=2)
    scheduled.register("T", callback)
    async with scheduled:
        await eventually(lambda: failed > 20)
    assert most <= 2


async def test_a_call_that_answers_nonsense_or_is_cancelled_from_inside_is_made_again(
    cluster: MemoryCluster,
) -> None:
    calls: Counter[int] = Counter()

    async def callback(_: PullConsumer, queue: MessageQueue) -> Any:
        calls[queue.queue_id] += 1
        if queue.queue_id == 0:
            return "soon"
        raise asyncio.CancelledError

    scheduled = ScheduledPull("pull", cluster.namesrv)
    scheduled.register("T", callback)
    async with scheduled:
        await eventually(lambda: all(calls[queue_id] > 1 for queue_id in range(4)))
