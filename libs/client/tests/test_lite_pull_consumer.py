# SPDX-License-Identifier: Apache-2.0
import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from cometmq.client import (
    ClientStateError,
    ConsumeFrom,
    InvalidArgument,
    LitePullConsumer,
    LitePullOptions,
    Message,
    MessageQueue,
    Producer,
    ServiceNotAvailable,
)
from cometmq.client.consume.queues import ownership
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.remoting.codes import RequestCode
from cometmq.testing.client.listening import logged

FIRST = LitePullOptions(consume_from=ConsumeFrom.FIRST_OFFSET)
QUEUE_0 = MessageQueue("T", "broker-a", 0)


@pytest.fixture
async def stored(cluster: MemoryCluster) -> MemoryCluster:
    """Store 25 messages in the first queue; every fifth has tag A, the others tag B."""
    async with Producer("pg", cluster.namesrv) as producer:
        for number in range(25):
            tag = "B" if number % 5 else "A"
            await producer.send(Message("T", b"%d" % number, tag=tag), queue=QUEUE_0)
    return cluster


def consumer_of(cluster: MemoryCluster, options: LitePullOptions = FIRST) -> LitePullConsumer:
    consumer = LitePullConsumer("lg", cluster.namesrv, options=options)
    consumer.subscribe("T")
    return consumer


async def test_polls_return_the_messages_in_order(stored: MemoryCluster) -> None:
    bodies: list[bytes] = []
    async with consumer_of(stored) as consumer:
        while len(bodies) < 25:
            bodies += [message.body for message in await consumer.poll()]
        assert await consumer.poll(timeout_ms=0) == []
    assert bodies == [b"%d" % number for number in range(25)]
    assert stored.committed("lg", "T")[QUEUE_0] == 25


async def test_only_wanted_tags_come(stored: MemoryCluster) -> None:
    consumer = consumer_of(stored)
    consumer.subscribe("T", "A")
    bodies: list[bytes] = []
    async with consumer:
        while len(bodies) < 5:
            bodies += [message.body for message in await consumer.poll()]
    assert bodies == [b"0", b"5", b"10", b"15", b"20"]
    assert stored.committed("lg", "T")[QUEUE_0] >= 21


async def test_iteration_commits_exactly_the_yielded_messages(stored: MemoryCluster) -> None:
    taken: list[bytes] = []
    async with consumer_of(stored) as consumer:
        async for message in consumer:
            taken.append(message.body)
            if len(taken) == 7:
                break
    assert stored.committed("lg", "T")[QUEUE_0] == 7
    async with consumer_of(stored) as consumer:
        async for message in consumer:
            taken.append(message.body)
            if len(taken) == 25:
                break
    assert taken == [b"%d" % number for number in range(25)]


async def test_a_failure_leaves_the_last_message_uncommitted(stored: MemoryCluster) -> None:
    async def fail_at_third() -> None:
        async with consumer_of(stored) as consumer:
            async for message in consumer:
                if message.body == b"2":
                    raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await fail_at_third()
    assert stored.committed("lg", "T").get(QUEUE_0, 0) <= 2
    async with consumer_of(stored) as consumer:
        async for message in consumer:
            assert message.body in {b"0", b"1", b"2"}
            break


async def test_close_does_not_commit_the_messages_returned_last(stored: MemoryCluster) -> None:
    """A program that calls `close` in a `finally` block also calls it after a failure."""
    options = msgspec.structs.replace(FIRST, pull_count_max=5)
    consumer = consumer_of(stored, options)
    await consumer.start()
    await poll_count(consumer, 10)
    await consumer.close()
    assert stored.committed("lg", "T")[QUEUE_0] == 5

    consumer = consumer_of(stored, options)
    await consumer.start()
    assert await poll_count(consumer, 5) == [b"%d" % number for number in range(5, 10)]
    await consumer.commit()
    await consumer.close()
    assert stored.committed("lg", "T")[QUEUE_0] == 10


@pytest.mark.parametrize("way", ["messages", "batches"])
async def test_close_commits_a_loop_that_has_finished(stored: MemoryCluster, way: str) -> None:
    consumer = consumer_of(stored, msgspec.structs.replace(FIRST, pull_count_max=5))
    await consumer.start()
    if way == "messages":
        async for message in consumer:
            if message.body == b"9":
                consumer.finish()
    else:
        async for messages in consumer.batches():
            if messages[-1].body == b"9":
                consumer.finish()
    await consumer.close()
    assert stored.committed("lg", "T")[QUEUE_0] == 10


@pytest.mark.parametrize("way", ["messages", "batches"])
async def test_an_iterator_goes_on_after_a_step_that_timed_out(
    cluster: MemoryCluster, way: str
) -> None:
    consumer = consumer_of(cluster)
    async with Producer("pg", cluster.namesrv) as producer, consumer:
        await producer.send(Message("T", b"0"), queue=QUEUE_0)
        found: AsyncIterator[Any] = aiter(consumer) if way == "messages" else consumer.batches()
        first = await anext(found)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(found), 0.05)
        assert consumer.is_running
        await producer.send(Message("T", b"1"), queue=QUEUE_0)
        second = await asyncio.wait_for(anext(found), 30)
        consumer.finish()
        assert await anext(found, None) is None
    bodies = [one.body for it in (first, second) for one in (it if isinstance(it, list) else [it])]
    assert bodies == [b"0", b"1"]
    assert cluster.committed("lg", "T")[QUEUE_0] == 2


async def test_commits_can_be_asked_for(stored: MemoryCluster) -> None:
    options = LitePullOptions(consume_from=ConsumeFrom.FIRST_OFFSET, auto_commit=False)
    async with consumer_of(stored, options) as consumer:
        count = len(await consumer.poll())
        assert await consumer.committed(QUEUE_0) == 0
        await consumer.commit()
        await eventually(lambda: stored.committed("lg", "T").get(QUEUE_0) == count)
        assert await consumer.committed(QUEUE_0) == count


async def next_body(consumer: LitePullConsumer) -> bytes:
    message = await consumer.next_message()
    assert message is not None
    return message.body


MANUAL = LitePullOptions(consume_from=ConsumeFrom.FIRST_OFFSET, auto_commit=False)


async def test_without_auto_commit_close_commits_nothing(stored: MemoryCluster) -> None:
    async with consumer_of(stored, MANUAL) as consumer:
        seen = 0
        async for _ in consumer:
            seen += 1
            if seen == 25:
                break
        assert await consumer.poll(timeout_ms=0) == []
    assert stored.committed("lg", "T").get(QUEUE_0, 0) == 0


async def test_without_auto_commit_close_keeps_what_was_committed(stored: MemoryCluster) -> None:
    async with consumer_of(stored, MANUAL) as consumer:
        for _ in range(3):
            await consumer.next_message()
        await consumer.commit()
        await consumer.next_message()
        await consumer.next_message()
    assert stored.committed("lg", "T").get(QUEUE_0) == 3


async def test_without_auto_commit_a_seek_is_stored_by_commit_only(stored: MemoryCluster) -> None:
    async with consumer_of(stored, MANUAL) as consumer:
        await consumer.seek(QUEUE_0, 20)
        assert await next_body(consumer) == b"20"
        assert await consumer.committed(QUEUE_0) == 0
        await consumer.commit()
        assert await consumer.committed(QUEUE_0) == 21

        await consumer.seek(QUEUE_0, 3)
        assert await next_body(consumer) == b"3"
        assert await consumer.committed(QUEUE_0) == 21
        await consumer.commit([QUEUE_0])
        assert await consumer.committed(QUEUE_0) == 4

        await consumer.seek_to_end(QUEUE_0)
    async with consumer_of(stored, MANUAL) as again:
        assert await next_body(again) == b"4"


async def test_a_seek_commits_when_progress_does(stored: MemoryCluster) -> None:
    """After a crash before the commit, the group continues at the previously committed offset."""
    async with consumer_of(stored) as consumer:
        await consumer.poll()
        await consumer.commit()
        before = await consumer.committed(QUEUE_0)
        assert before is not None
        assert before > 1
        await consumer.seek(QUEUE_0, 1)
        assert await consumer.committed(QUEUE_0) == before
    assert stored.committed("lg", "T")[QUEUE_0] == 1


async def test_an_administrators_reset_replaces_a_seek(stored: MemoryCluster) -> None:
    async with consumer_of(stored, MANUAL) as consumer:
        await consumer.seek(QUEUE_0, 20)
        work = consumer._work
        assert work is not None
        await work.member.reset_offsets("T", {QUEUE_0: 7})
        await eventually(lambda: stored.committed("lg", "T").get(QUEUE_0) == 7)
        await consumer.commit()
        assert await consumer.committed(QUEUE_0) == 7
        assert await next_body(consumer) == b"7"


async def test_positions_move_inside_the_queue(stored: MemoryCluster) -> None:
    async with consumer_of(stored) as consumer:
        await consumer.seek(QUEUE_0, 20)
        assert (await consumer.poll())[0].body == b"20"
        await consumer.seek_to_begin(QUEUE_0)
        assert (await consumer.poll())[0].body == b"0"
        await consumer.seek_to_end(QUEUE_0)
        assert await consumer.poll(timeout_ms=0) == []
        with pytest.raises(InvalidArgument, match="offset 26 is outside the queue"):
            await consumer.seek(QUEUE_0, 26)
        with pytest.raises(InvalidArgument, match="does not own the queue"):
            await consumer.seek(MessageQueue("T", "broker-a", 99), 0)


async def test_one_queue_or_a_list_is_paused_and_moved(stored: MemoryCluster) -> None:
    foreign = MessageQueue("T", "broker-a", 99)
    async with consumer_of(stored) as consumer:
        for queues in (QUEUE_0, [QUEUE_0], iter([QUEUE_0])):
            await consumer.seek_to_begin(queues)
            assert (await consumer.poll())[0].queue_offset == 0
        for queues in (QUEUE_0, [QUEUE_0]):
            await consumer.seek_to_end(queues)
            assert await consumer.poll(timeout_ms=0) == []
            consumer.pause(queues)
            await consumer.seek_to_begin(queues)
            assert await consumer.poll(timeout_ms=50) == []
            consumer.resume(queues)
            assert (await consumer.poll())[0].queue_offset == 0
            await consumer.commit(queues)
        with pytest.raises(InvalidArgument, match="does not own the queue"):
            consumer.pause([QUEUE_0, foreign])
        await consumer.seek_to_begin(QUEUE_0)
        assert (await consumer.poll())[0].queue_offset == 0, "the first queue was paused"
        with pytest.raises(InvalidArgument, match="does not own the queue"):
            await consumer.seek_to_end([QUEUE_0, foreign])
        with pytest.raises(InvalidArgument, match=r"not .*: give one queue per call"):
            await consumer.seek([QUEUE_0], 0)  # type: ignore[arg-type]


async def test_paused_queues_are_not_pulled(stored: MemoryCluster) -> None:
    options = LitePullOptions(
        consume_from=ConsumeFrom.FIRST_OFFSET, queue_count_max=1, pull_count_max=1
    )
    async with consumer_of(stored, options) as consumer:
        consumer.pause([QUEUE_0])
        count = 0
        while await consumer.poll(timeout_ms=50):
            count += 1
        assert count < 25
        consumer.resume([QUEUE_0])
        while count < 25:
            count += len(await consumer.poll())


async def test_assigned_queues_need_no_group(stored: MemoryCluster) -> None:
    consumer = LitePullConsumer("lg", stored.namesrv, options=FIRST)
    consumer.assign([QUEUE_0])
    with pytest.raises(ClientStateError, match="not both"):
        consumer.subscribe("T")
    async with consumer:
        assert (await consumer.poll())[0].body == b"0"
        assert consumer.queues == [QUEUE_0]
        assert stored.broker.requests[RequestCode.GET_CONSUMER_LIST_BY_GROUP] == 0
        assert len(await consumer.queues_of("T")) == 4
    with pytest.raises(ClientStateError, match="not both"):
        consumer_of(stored).assign([QUEUE_0])


async def test_no_more_is_pulled_ahead_than_wanted(stored: MemoryCluster) -> None:
    options = LitePullOptions(
        consume_from=ConsumeFrom.FIRST_OFFSET, total_count_max=4, pull_count_max=2
    )
    async with consumer_of(stored, options) as consumer:
        count = 0
        while count < 25:
            count += len(await consumer.poll())
    assert stored.broker.requests[RequestCode.PULL_MESSAGE] >= 13
    assert stored.committed("lg", "T")[QUEUE_0] == 25


async def poll_count(consumer: LitePullConsumer, count: int) -> list[bytes]:
    """Poll until this many messages have been returned in total."""
    bodies: list[bytes] = []
    while len(bodies) < count:
        bodies += [message.body for message in await consumer.poll()]
    return bodies


@pytest.mark.parametrize("auto_commit", [True, False])
async def test_offsets_that_close_cannot_store_are_logged(
    stored: MemoryCluster,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    *,
    auto_commit: bool,
) -> None:
    monkeypatch.setattr(ownership, "END_COMMIT_MS", 20)
    options = msgspec.structs.replace(MANUAL, auto_commit=auto_commit, pull_count_max=5)
    refusal = ServiceNotAvailable("disk full")
    async with consumer_of(stored, options) as consumer:
        await poll_count(consumer, 10)
        stored.broker.fail(RequestCode.UPDATE_CONSUMER_OFFSET, refusal, times=1_000)
        with pytest.raises(ServiceNotAvailable):
            await consumer.commit()
    (event,) = logged(caplog, "offset.given_up")
    assert "T@broker-a:0=10" in event
    assert "redelivered" in event

    stored.broker.clear_faults()
    async with consumer_of(stored, options) as consumer:
        assert len(await poll_count(consumer, 25)) == 25


async def test_only_queues_of_the_consumer_are_committed(stored: MemoryCluster) -> None:
    async with consumer_of(stored) as consumer:
        await poll_count(consumer, 10)
        for foreign in (MessageQueue("T", "broker-a", 99), MessageQueue("U", "broker-a", 0)):
            with pytest.raises(InvalidArgument, match="does not own the queue"):
                await consumer.commit([QUEUE_0, foreign])
        assert not stored.committed("lg", "T").get(QUEUE_0)
        await consumer.commit([QUEUE_0])
        assert stored.committed("lg", "T")[QUEUE_0] == 10


async def test_a_commit_leaves_out_queues_that_were_revoked(stored: MemoryCluster) -> None:
    async with consumer_of(stored) as consumer:
        before = consumer.queues
        assert len(before) == 4
        async with consumer_of(stored):
            await eventually(lambda: len(consumer.queues) == 2)
            await consumer.commit(before)


async def test_a_second_poll_at_a_time_is_refused(stored: MemoryCluster) -> None:
    async with consumer_of(stored) as consumer:
        await poll_count(consumer, 25)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(consumer.poll(60_000))
            await asyncio.sleep(0)
            for other in (consumer.poll(), consumer.next_message()):
                with pytest.raises(ClientStateError, match="another task is polling this consumer"):
                    await other
            waiting.cancel()
        assert await consumer.poll(0) == []
