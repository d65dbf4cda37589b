# SPDX-License-Identifier: Apache-2.0
"""Orderly consumption: one list per queue at a time, in order, despite concurrent changes."""

import asyncio
from collections import Counter, defaultdict
from typing import Any

import pytest

from cometmq.client import (
    ConsumeFrom,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    OrderlyResult,
    PushConsumer,
    PushOptions,
)
from cometmq.client.testing import HANG, MemoryCluster, eventually
from cometmq.remoting.bodies.dialect import decode_json, encode_json
from cometmq.remoting.bodies.offsets import QueueOffsetTable
from cometmq.remoting.bodies.running_info import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.commands.callbacks import (
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    ResetConsumerClientOffset,
)
from cometmq.remoting.errors import ServerError
from cometmq.testing.client.listening import (
    QUEUE_0,
    Gated,
    Recorder,
    consumer_of,
    send,
    store_unreadable,
    texts,
)

LOCK, UNLOCK = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ
SEND = RequestCode.SEND_MESSAGE_V2


def options_of(**fields: Any) -> PushOptions:
    return PushOptions(
        consume_from=ConsumeFrom.FIRST_OFFSET, orderly=True, **{"suspend_queue_ms": 10, **fields}
    )


def orderly(cluster: MemoryCluster, listener: Any, **fields: Any) -> PushConsumer:
    return consumer_of(cluster, listener, options_of(**fields))


class InOrder:
    """Records an error if two calls for one queue overlap or an offset decreases."""

    def __init__(self) -> None:
        self.running: Counter[MessageQueue] = Counter()
        self.offsets: defaultdict[MessageQueue, list[int]] = defaultdict(list)
        self.errors: list[str] = []

    async def __call__(self, messages: list[MessageExt]) -> None:
        queue = messages[0].queue
        self.running[queue] += 1
        if self.running[queue] > 1:
            self.errors.append(f"two calls for {queue}")
        await asyncio.sleep(0)
        for message in messages:
            before = self.offsets[queue]
            if before and message.queue_offset <= before[-1]:
                self.errors.append(f"{queue} went back to {message.queue_offset}")
            before.append(message.queue_offset)
        self.running[queue] -= 1

    @property
    def count(self) -> int:
        return sum(len(offsets) for offsets in self.offsets.values())


# -- order ------------------------------------------------------------------------------------


async def test_each_queue_is_consumed_in_order(cluster: MemoryCluster) -> None:
    seen = InOrder()
    async with orderly(cluster, seen, pull_count_max=7) as consumer:
        for queue_id in range(4):
            await send(cluster, *texts(50), queue=MessageQueue("T", "broker-a", queue_id))
        await eventually(lambda: consumer.stats().consumed_count == 200)
    assert seen.errors == []
    assert all(offsets == list(range(50)) for offsets in seen.offsets.values())
    assert set(cluster.committed("cg", "T").values()) == {50}


async def test_lists_are_as_long_as_wanted_and_plain_functions_may_listen(
    cluster: MemoryCluster,
) -> None:
    lists: list[list[bytes]] = []

    def listener(messages: list[MessageExt]) -> OrderlyResult:
        lists.append([message.body for message in messages])
        return OrderlyResult.SUCCESS

    await send(cluster, *texts(10))
    async with orderly(cluster, listener, batch_count_max=4):
        await eventually(lambda: sum(map(len, lists)) == 10)
    assert [len(bodies) for bodies in lists] == [4, 4, 2]


async def test_no_more_queues_are_served_at_once_than_wanted(cluster: MemoryCluster) -> None:
    gated = Gated()
    for queue_id in range(4):
        await send(cluster, *texts(3), queue=MessageQueue("T", "broker-a", queue_id))
    async with orderly(cluster, gated, concurrency=2) as consumer:
        await eventually(lambda: gated.running == 2)
        gated.gate.set()
        await eventually(lambda: consumer.stats().consumed_count == 12)
    assert gated.most == 2


# -- failures ---------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [OrderlyResult.suspend(10), ValueError("bad")])
async def test_a_queue_waits_for_the_message_that_failed(
    cluster: MemoryCluster, answer: Any
) -> None:
    def fail_twice(messages: list[MessageExt]) -> OrderlyResult | None:
        if messages[0].body == b"1" and messages[0].reconsume_times < 2:
            if isinstance(answer, Exception):
                raise answer
            return answer
        return None

    seen = Recorder(fail_twice)
    await send(cluster, *texts(3))
    async with orderly(cluster, seen) as consumer:
        await eventually(lambda: consumer.stats().consumed_count == 3)
        assert consumer.stats().failed_count == 2
    assert seen.bodies == [b"0", b"1", b"1", b"1", b"2"]
    assert cluster.committed("cg", "T")[QUEUE_0] == 3
    assert not cluster.messages("%RETRY%cg")


async def test_another_queue_goes_on_while_one_waits(cluster: MemoryCluster) -> None:
    other = MessageQueue("T", "broker-a", 1)

    def listener(messages: list[MessageExt]) -> OrderlyResult:
        return OrderlyResult.SUSPEND if messages[0].queue == QUEUE_0 else OrderlyResult.SUCCESS

    await send(cluster, Message("T", b"stuck"))
    seen = Recorder(listener)
    async with orderly(cluster, seen, suspend_queue_ms=30_000, concurrency=1):
        await eventually(lambda: seen.bodies == [b"stuck"])
        await send(cluster, *texts(5), queue=other)
        await eventually(lambda: len(seen.bodies) == 6)
    assert cluster.committed("cg", "T")[other] == 5
    assert not cluster.committed("cg", "T").get(QUEUE_0)


@pytest.mark.parametrize("times", [0, 2])
async def test_a_message_that_failed_often_enough_is_dead(
    cluster: MemoryCluster, times: int
) -> None:
    def listener(messages: list[MessageExt]) -> OrderlyResult:
        return OrderlyResult.SUSPEND if messages[0].body == b"1" else OrderlyResult.SUCCESS

    seen = Recorder(listener)
    await send(cluster, *texts(3))
    async with orderly(cluster, seen, max_reconsume_times=times):
        await eventually(lambda: b"2" in seen.bodies)
    assert seen.bodies == [b"0", *[b"1"] * (times + 1), b"2"]
    assert [message.body for message in cluster.broker.dead] == [b"1"]
    assert cluster.broker.dead[0].properties["RETRY_TOPIC"] == "T"
    assert "DELAY" not in cluster.broker.dead[0].properties
    assert cluster.committed("cg", "T")[QUEUE_0] == 3


async def test_a_message_that_no_broker_buries_holds_its_queue(cluster: MemoryCluster) -> None:
    def listener(messages: list[MessageExt]) -> OrderlyResult:
        return OrderlyResult.SUSPEND if messages[0].body == b"0" else OrderlyResult.SUCCESS

    seen = Recorder(listener)
    await send(cluster, *texts(2))
    cluster.broker.fail(SEND, ServerError("full"), times=6)
    async with orderly(cluster, seen, max_reconsume_times=0):
        await eventually(lambda: b"1" in seen.bodies)
    assert seen.bodies[:-1] == [b"0"] * (len(seen.bodies) - 1)
    assert len(seen.bodies) > 2
    assert [message.body for message in cluster.broker.dead] == [b"0"]


async def test_an_unreadable_message_is_buried_in_its_place(cluster: MemoryCluster) -> None:
    seen = Recorder()
    await send(cluster, Message("T", b"before"))
    store_unreadable(cluster)
    await send(cluster, Message("T", b"after"))
    async with orderly(cluster, seen):
        await eventually(lambda: seen.bodies == [b"before", b"after"])
    assert len(cluster.broker.dead) == 1
    assert cluster.committed("cg", "T")[QUEUE_0] == 3


# -- holding and rolling back -----------------------------------------------------------------


async def test_held_messages_are_committed_together(cluster: MemoryCluster) -> None:
    def listener(messages: list[MessageExt]) -> OrderlyResult:
        return OrderlyResult.HOLD if messages[0].body != b"4" else OrderlyResult.SUCCESS

    seen = Recorder(listener)
    await send(cluster, *texts(4))
    async with orderly(cluster, seen, persist_offset_interval_ms=10):
        await eventually(lambda: len(seen.bodies) == 4)
        assert not cluster.committed("cg", "T").get(QUEUE_0)
        await send(cluster, Message("T", b"4"))
        await eventually(lambda: cluster.committed("cg", "T").get(QUEUE_0) == 5)


async def test_a_rollback_brings_all_held_messages_again(cluster: MemoryCluster) -> None:
    state = {"rolled": False}

    def listener(messages: list[MessageExt]) -> OrderlyResult:
        if messages[0].body == b"2" and not state["rolled"]:
            state["rolled"] = True
            return OrderlyResult.rollback(10)
        return OrderlyResult.SUCCESS if messages[0].body == b"3" else OrderlyResult.HOLD

    seen = Recorder(listener)
    await send(cluster, *texts(4))
    async with orderly(cluster, seen):
        await eventually(lambda: seen.bodies[-1:] == [b"3"])
    assert seen.bodies == [b"0", b"1", b"2", b"0", b"1", b"2", b"3"]
    assert cluster.committed("cg", "T")[QUEUE_0] == 4


# -- locks ------------------------------------------------------------------------------------


async def test_queues_are_locked_before_the_first_pull_and_free_at_the_end(
    cluster: MemoryCluster,
) -> None:
    async with orderly(cluster, Recorder()) as consumer:
        assert len(consumer.queues) == 4
        # The topic has four queues, and the retry topic one.
        await eventually(lambda: len(cluster.broker.locks) == 5)
        assert set(cluster.broker.locks.values()) == {consumer.client_id}
    assert cluster.broker.locks == {}


async def test_a_queue_that_another_member_has_locked_is_not_read(cluster: MemoryCluster) -> None:
    cluster.broker.locks["cg", QUEUE_0] = "somebody"
    seen = Recorder()
    await send(cluster, Message("T", b"x"))
    async with orderly(cluster, seen) as consumer:
        assert QUEUE_0 not in consumer.queues
        assert len(consumer.queues) == 3
        del cluster.broker.locks["cg", QUEUE_0]
        await eventually(lambda: seen.bodies == [b"x"])


async def test_a_lock_taken_by_another_ends_the_queue_in_the_middle_of_a_list(
    cluster: MemoryCluster,
) -> None:
    """The results of the list are ignored, because the new owner began at the committed offset."""
    gate, begun = asyncio.Event(), asyncio.Event()

    async def listener(messages: list[MessageExt]) -> None:
        if messages[0].body == b"1" and not gate.is_set():
            begun.set()
            await gate.wait()

    seen = Recorder(listener)
    await send(cluster, *texts(3))
    options = options_of(persist_offset_interval_ms=10)
    async with consumer_of(cluster, seen, options) as consumer:
        await begun.wait()
        await eventually(lambda: cluster.committed("cg", "T").get(QUEUE_0) == 1)
        cluster.broker.locks["cg", QUEUE_0] = "somebody"
        assert consumer._work
        consumer._work.member.wake()
        await eventually(lambda: QUEUE_0 not in consumer.queues)
        gate.set()
        await eventually(lambda: cluster.broker.requests[LOCK] > 3)
        assert cluster.committed("cg", "T")[QUEUE_0] == 1
        assert seen.bodies == [b"0", b"1"]
        cluster.broker.offsets["cg", "T", 0] = 2  # the other consumer also consumed this message
        del cluster.broker.locks["cg", QUEUE_0]
        await eventually(lambda: cluster.committed("cg", "T")[QUEUE_0] == 3)
    assert seen.bodies == [b"0", b"1", b"2"]


async def test_a_restarted_broker_gets_the_locks_again(cluster: MemoryCluster) -> None:
    seen = InOrder()
    async with orderly(cluster, seen) as consumer:
        await send(cluster, *texts(5))
        await eventually(lambda: consumer.stats().consumed_count == 5)
        await cluster.stop_broker(cluster.broker)
        cluster.broker.locks.clear()
        await cluster.start_broker(cluster.broker)
        await eventually(lambda: ("cg", QUEUE_0) in cluster.broker.locks)
        await send(cluster, *texts(5))
        await eventually(lambda: seen.count == 10)
    assert seen.errors == []


# -- members that join and leave --------------------------------------------------------------


async def test_a_queue_moves_when_its_running_call_has_ended(cluster: MemoryCluster) -> None:
    gate, begun = asyncio.Event(), asyncio.Event()
    last = MessageQueue("T", "broker-a", 3)

    async def slow(messages: list[MessageExt]) -> None:
        begun.set()
        await gate.wait()

    first, second = Recorder(slow), Recorder()
    await send(cluster, *texts(3), queue=last)
    options = options_of(instance_name="a"), options_of(instance_name="b")
    async with consumer_of(cluster, first, options[0]) as one:
        await begun.wait()
        async with consumer_of(cluster, second, options[1]) as two:
            await eventually(lambda: last not in one.queues)
            await eventually(lambda: cluster.broker.requests[LOCK] >= 4)
            assert cluster.broker.locks["cg", last] == one.client_id
            assert last not in two.queues
            gate.set()
            await eventually(lambda: len(second.bodies) == 2)
    assert first.bodies == [b"0"]
    assert second.bodies == [b"1", b"2"]


async def test_closing_waits_for_the_call_and_commits_before_it_unlocks(
    cluster: MemoryCluster,
) -> None:
    gate, begun = asyncio.Event(), asyncio.Event()

    async def listener(_: list[MessageExt]) -> None:
        begun.set()
        await gate.wait()

    consumer = orderly(cluster, listener)
    await consumer.start()
    await send(cluster, *texts(3))
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        await begun.wait()
        work: Any = consumer._work
        closing = group.create_task(consumer.close())
        await eventually(lambda: work._delivery._is_stopping)
        assert ("cg", QUEUE_0) in cluster.broker.locks
        gate.set()
        await closing
    assert cluster.committed("cg", "T")[QUEUE_0] == 1
    assert cluster.broker.locks == {}


async def test_closing_beside_a_broker_that_does_not_answer_ends(cluster: MemoryCluster) -> None:
    async with orderly(cluster, Recorder()):
        cluster.broker.fail(UNLOCK, HANG)
    assert cluster.broker.requests[UNLOCK] == 1


# -- requests from brokers --------------------------------------------------------------------


async def test_a_reset_while_the_listener_works_waits_for_it(cluster: MemoryCluster) -> None:
    gate, begun = asyncio.Event(), asyncio.Event()
    order = InOrder()

    async def listener(messages: list[MessageExt]) -> None:
        if not gate.is_set() and messages[0].body == b"4":
            begun.set()
            await gate.wait()
            return
        await order(messages)

    await send(cluster, *texts(6))
    async with orderly(cluster, listener):
        await begun.wait()
        ((peer, _),) = cluster.broker.groups["cg"].values()
        peer.send(
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
            ResetConsumerClientOffset("T", "cg", timestamp=0, is_force=True),
            encode_json(QueueOffsetTable({QUEUE_0: 1})),
        )
        await eventually(lambda: cluster.committed("cg", "T").get(QUEUE_0) == 1)
        assert order.offsets[QUEUE_0] == [0, 1, 2, 3]
        order.offsets.clear()
        gate.set()
        await eventually(lambda: order.offsets[QUEUE_0] == [1, 2, 3, 4, 5])
    assert order.errors == []
    assert cluster.committed("cg", "T")[QUEUE_0] == 6


async def test_an_orderly_consumer_tells_about_its_locks(cluster: MemoryCluster) -> None:
    async with orderly(cluster, Recorder()) as consumer:
        ((peer, _),) = cluster.broker.groups["cg"].values()
        header = GetConsumerRunningInfo("cg", consumer.client_id, jstack_enable=True)
        answer = await peer.invoke(
            RequestCode.GET_CONSUMER_RUNNING_INFO, header, b"", timeout_ms=60_000
        )
        info = decode_json(ConsumerRunningInfo, answer.body)
    assert info.properties["PROP_CONSUMEORDERLY"] == "true"
    assert info.mq_table[QUEUE_0].locked
    assert info.mq_table[QUEUE_0].last_lock_timestamp > 0
    assert info.jstack is not None
    assert "read-T-0" in info.jstack


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (None, ("CR_SUCCESS", True)),
        (OrderlyResult.HOLD, ("CR_SUCCESS", False)),
        (OrderlyResult.SUSPEND, ("CR_LATER", True)),
        (OrderlyResult.ROLLBACK, ("CR_ROLLBACK", True)),
    ],
)
async def test_one_message_is_consumed_on_request(
    cluster: MemoryCluster, result: Any, expected: tuple[str, bool]
) -> None:
    async with orderly(cluster, Recorder(lambda _: result)) as consumer:
        ((peer, _),) = cluster.broker.groups["cg"].values()
        cluster.create_topic("U")
        await send(cluster, Message("U", b"x"), queue=MessageQueue("U", "broker-a", 0))
        record = cluster.broker.queues.raw_record(0)
        assert record is not None
        header = ConsumeMessageDirectly("cg", consumer.client_id)
        answer = await peer.invoke(
            RequestCode.CONSUME_MESSAGE_DIRECTLY, header, record, timeout_ms=60_000
        )
    told = decode_json(ConsumeMessageDirectlyResult, answer.body)
    assert (told.order, told.consume_result, told.auto_commit) == (True, *expected)


async def test_broadcasting_in_order_needs_no_locks(cluster: MemoryCluster, tmp_path: Any) -> None:
    cluster.broker.locks["cg", QUEUE_0] = "somebody"
    seen = InOrder()
    fields = {"message_model": MessageModel.BROADCASTING, "offsets_dir": str(tmp_path)}
    async with orderly(cluster, seen, **fields):
        await send(cluster, *texts(20))
        await eventually(lambda: seen.count == 20)
    assert seen.errors == []
    assert cluster.broker.requests[LOCK] == 0
