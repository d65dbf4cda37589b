# SPDX-License-Identifier: Apache-2.0
"""Push consumers as group members: rebalancing, broker requests, lifecycle."""

import asyncio
from typing import Any

import pytest

from cometmq.client import (
    ConsumeFrom,
    ConsumeResult,
    Message,
    MessageExt,
    PushConsumer,
    PushOptions,
)
from cometmq.client.clock import monotonic_ms
from cometmq.client.consume.membership import DIRECT_CALLS_MAX
from cometmq.client.consume.queues.rebalance import AllocateAveragely, AllocateByConfig
from cometmq.client.testing import DISCONNECT, HANG, MemoryBroker, MemoryCluster, eventually
from cometmq.remoting.bodies.dialect import decode_json, encode_json
from cometmq.remoting.bodies.heartbeat import ConsumerData, Heartbeat
from cometmq.remoting.bodies.offsets import ConsumerStatus, QueueOffsetTable
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.running_info import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Response
from cometmq.remoting.commands.callbacks import (
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    GetConsumerStatusFromClient,
    ResetConsumerClientOffset,
)
from cometmq.remoting.errors import SubscriptionNotLatest, SystemBusy
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.settings import ClientSettings
from cometmq.testing.client.listening import QUEUE_0, Recorder, consumer_of, logged, send, texts

PULL = RequestCode.PULL_MESSAGE


# -- sharing ----------------------------------------------------------------------------------


async def test_members_share_the_queues_and_take_over(cluster: MemoryCluster) -> None:
    first, second = consumer_of(cluster, Recorder()), consumer_of(cluster, Recorder())
    async with first:
        assert len(first.queues) == 4
        async with second:
            await eventually(lambda: len(first.queues) == len(second.queues) == 2)
            assert not set(first.queues) & set(second.queues)
        await eventually(lambda: len(first.queues) == 4)


async def test_a_client_id_used_twice_is_reported(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    options = PushOptions(instance_name="same", client_ip="127.0.0.1", rebalance_interval_ms=100)
    twin = RemotingClient(ClientSettings(), clock_ms=monotonic_ms)
    beat = Heartbeat(client_id="127.0.0.1@same", consumer_data_set=[ConsumerData(group_name="cg")])
    async with consumer_of(cluster, Recorder(), options) as consumer:
        assert len(consumer.queues) == 4
        assert "client_id.duplicated" not in caplog.text
        address, code = cluster.broker.address, RequestCode.HEART_BEAT
        await twin.invoke(address, code, None, encode_json(beat), timeout_ms=60_000)
        await eventually(lambda: len(consumer.queues) == 2)
        await eventually(lambda: "client_id.duplicated" in caplog.text)
        await twin.close()
        await eventually(lambda: len(consumer.queues) == 4)
    (line,) = logged(caplog, "client_id.duplicated")
    assert "group=cg client_id=127.0.0.1@same" in line
    assert "instance_name of its own" in line


async def test_the_old_connection_of_a_member_is_not_reported(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """After a freeze, a broker sees the new connection before it closes the old one."""
    options = PushOptions(instance_name="same", client_ip="127.0.0.1")
    old = RemotingClient(ClientSettings(), clock_ms=monotonic_ms)
    beat = Heartbeat(client_id="127.0.0.1@same", consumer_data_set=[ConsumerData(group_name="cg")])
    async with consumer_of(cluster, Recorder(), options) as consumer:
        for _ in range(2):
            address, code = cluster.broker.address, RequestCode.HEART_BEAT
            await old.invoke(address, code, None, encode_json(beat), timeout_ms=60_000)
            await eventually(lambda: len(consumer.queues) == 2)
        await old.close()
        await eventually(lambda: len(consumer.queues) == 4)
    assert "client_id.duplicated" not in caplog.text


async def test_offsets_are_stored_before_the_queues_are_shared_anew(cluster: MemoryCluster) -> None:
    """A new member looks up the offsets of its queues while the others still own them."""
    rarely = PushOptions(
        consume_from=ConsumeFrom.FIRST_OFFSET,
        persist_offset_interval_ms=600_000,
        suspend_ms=600_000,  # pulls commit offsets, too
        pull_timeout_ms=700_000,
    )
    old = Recorder()
    async with consumer_of(cluster, old, rarely):
        await send(cluster, *texts(3))
        await eventually(lambda: len(old.bodies) == 3)
        cluster.broker.notify("cg")  # a member has joined
        await eventually(lambda: cluster.broker.offsets.get(("cg", "T", 0)) == 3)


@pytest.mark.parametrize("fault", [HANG, SystemBusy("busy"), DISCONNECT])
async def test_offsets_that_cannot_be_stored_do_not_stop_rebalancing(
    cluster: MemoryCluster, fault: Any
) -> None:
    old = Recorder()
    async with consumer_of(cluster, old) as first:
        await send(cluster, *texts(3))
        await eventually(lambda: len(old.bodies) == 3)
        cluster.broker.fail(RequestCode.UPDATE_CONSUMER_OFFSET, fault, times=100)
        async with consumer_of(cluster, Recorder()) as second:
            await eventually(lambda: len(first.queues) == len(second.queues) == 2)
            assert cluster.broker.faults_left(RequestCode.UPDATE_CONSUMER_OFFSET) < 100
            cluster.broker.clear_faults()


async def test_a_strategy_that_fails_changes_nothing(cluster: MemoryCluster) -> None:
    class Moody(AllocateAveragely):
        def allocate(self, *arguments: Any) -> list[MessageQueue]:
            self.count = getattr(self, "count", 0) + 1
            if self.count > 2:
                raise ValueError("moody")
            return super().allocate(*arguments)

    strategy = Moody()
    consumer = consumer_of(cluster, Recorder(), strategy=strategy)
    async with consumer:
        assert len(consumer.queues) == 4
        cluster.broker.notify("cg")
        await eventually(lambda: strategy.count > 2)
        assert len(consumer.queues) == 4


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (None, "it must return a list of queues, not None"),
        ("T", "it must return a list of queues, not 'T'"),
        ([0], "it must return a list of queues, not one with 0"),
    ],
)
async def test_a_strategy_that_returns_no_queues_is_reported(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture, answer: Any, text: str
) -> None:
    class Wrong(AllocateAveragely):
        def allocate(self, *_: Any) -> list[MessageQueue]:
            found: list[MessageQueue] = answer
            return found

    async with consumer_of(cluster, Recorder(), strategy=Wrong()) as consumer:
        assert consumer.queues == []
    assert logged(caplog, "strategy.failed")
    assert text in caplog.text


async def test_queues_that_a_topic_does_not_have_are_left_out(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create_topic("U", queue_count=1)
    mine = [MessageQueue("T", "broker-a", 1), MessageQueue("U", "broker-a", 0)]
    missing = MessageQueue("T", "broker-a", 99)
    strategy = AllocateByConfig([*mine, mine[0], missing])
    consumer = consumer_of(cluster, Recorder(), strategy=strategy)
    consumer.subscribe("U")
    async with consumer:
        assert consumer.queues == mine
    (line,) = logged(caplog, "strategy.failed")
    assert "group=cg topic=T" in line
    assert f"1 of its queues cannot be read, such as {missing}" in line


async def test_lost_connections_cost_nothing(cluster: MemoryCluster) -> None:
    seen = Recorder()
    async with consumer_of(cluster, seen):
        cluster.broker.fail(PULL, DISCONNECT)
        await send(cluster, *texts(5))
        await eventually(lambda: len(set(seen.bodies)) == 5)
        assert cluster.broker.faults_left(PULL) == 0
    assert len(seen.bodies) == 5


async def test_a_broker_that_does_not_know_us_yet_is_asked_again_soon(
    cluster: MemoryCluster,
) -> None:
    cluster.broker.fail(
        PULL, SubscriptionNotLatest("the consumer's subscription not latest"), times=80
    )
    seen = Recorder()
    await send(cluster, Message("T", b"x"))
    async with consumer_of(cluster, seen):
        await eventually(lambda: seen.bodies == [b"x"], timeout_s=30)  # 45 s after failures


async def test_a_topic_may_be_made_after_the_start(cluster: MemoryCluster) -> None:
    seen = Recorder()
    consumer = PushConsumer("cg", cluster.namesrv, listener=seen)
    consumer.subscribe("Later")
    async with consumer:
        assert "cg" in cluster.broker.groups
        cluster.create_topic("Later", queue_count=2)
        await eventually(lambda: len(consumer.queues) == 2)


# -- while running ----------------------------------------------------------------------------


@pytest.mark.parametrize("wider", ["a || b", "*"])
async def test_a_wider_subscription_skips_no_message(cluster: MemoryCluster, wider: str) -> None:
    seen = Recorder()
    consumer = PushConsumer("cg", cluster.namesrv, listener=seen)
    consumer.subscribe("T", "a")
    async with consumer:
        await eventually(lambda: len(consumer.queues) == 4)
        await send(cluster, Message("T", b"first", tag="a"))
        await eventually(lambda: seen.bodies == [b"first"])
        consumer.subscribe("T", wider)
        for number in range(4):  # the pulls of all queues were held with the old subscription
            queue = MessageQueue("T", "broker-a", number)
            await send(cluster, Message("T", b"%d" % number, tag="b"), queue=queue)
        await eventually(lambda: sorted(seen.bodies) == [b"0", b"1", b"2", b"3", b"first"])


@pytest.mark.parametrize("pause_s", [None, 0, 0.01, 0.15])
@pytest.mark.parametrize("is_failing", [False, True])
async def test_a_subscription_may_change_at_any_time(
    cluster: MemoryCluster, pause_s: float | None, is_failing: bool
) -> None:
    seen = Recorder()
    consumer = PushConsumer("cg", cluster.namesrv, listener=seen)
    consumer.subscribe("T", "a")
    async with consumer:
        await eventually(lambda: len(consumer.queues) == 4)
        if is_failing:
            cluster.broker.fail(PULL, SystemBusy("busy"), times=8)
        for tags in ("a || b", "a || b || c", "b", "b || d", "*"):
            consumer.subscribe("T", tags)
            if pause_s is not None:
                await asyncio.sleep(pause_s)
        await send(cluster, Message("T", b"x", tag="x"))
        await eventually(lambda: seen.bodies == [b"x"])


async def test_a_suspended_consumer_pulls_nothing(cluster: MemoryCluster) -> None:
    seen = Recorder()
    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET, suspend_ms=30)
    async with consumer_of(cluster, seen, options) as consumer:
        await eventually(lambda: cluster.broker.requests[PULL] >= 5)
        consumer.suspend()
        await eventually(lambda: not cluster.broker.held_count)
        await send(cluster, Message("T", b"x"))
        assert not seen.bodies
        consumer.resume()
        await eventually(lambda: seen.bodies == [b"x"])


# -- requests from brokers --------------------------------------------------------------------


async def ask(broker: MemoryBroker, code: RequestCode, header: Any, body: bytes = b"") -> Response:
    ((peer, _),) = broker.groups["cg"].values()
    return await peer.invoke(code, header, body, timeout_ms=60_000)


async def test_offsets_are_reset_from_outside(cluster: MemoryCluster) -> None:
    seen = Recorder()
    async with consumer_of(cluster, seen):
        await send(cluster, *texts(5))
        await eventually(lambda: len(seen.bodies) == 5)
        ((peer, _),) = cluster.broker.groups["cg"].values()
        header = ResetConsumerClientOffset("T", "cg", timestamp=0, is_force=True)
        peer.send(
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
            header,
            encode_json(QueueOffsetTable({QUEUE_0: 3})),
        )
        await eventually(lambda: len(seen.bodies) == 7)
    assert seen.bodies[5:] == [b"3", b"4"]


async def test_no_broker_resets_the_offsets_of_another() -> None:
    seen, reset = Recorder(), RequestCode.RESET_CONSUMER_CLIENT_OFFSET
    async with MemoryCluster(["broker-a", "broker-b"]) as cluster:
        cluster.create_topic("T", queue_count=1)
        first, second = cluster.brokers
        async with consumer_of(cluster, seen):
            await send(cluster, *texts(5))
            await eventually(lambda: len(seen.bodies) == 5 and bool(second.groups.get("cg")))
            header = ResetConsumerClientOffset("T", "cg", timestamp=0, is_force=True)
            body = encode_json(QueueOffsetTable({QUEUE_0: 3}))
            refused = await ask(second, reset, header, body)
            assert refused.remark == "only broker-a may reset the offsets of its queues"
            assert (await ask(first, reset, header, body)).code == 0
            await eventually(lambda: len(seen.bodies) >= 7)
    assert seen.bodies[5:] == [b"3", b"4"]


async def test_running_info_of_a_push_consumer(cluster: MemoryCluster) -> None:
    seen = Recorder()
    async with consumer_of(cluster, seen) as consumer:
        await send(cluster, *texts(5))
        await eventually(lambda: consumer.stats().consumed_count == 5)
        header = GetConsumerRunningInfo("cg", consumer.client_id)
        answer = await ask(cluster.broker, RequestCode.GET_CONSUMER_RUNNING_INFO, header)
        info = decode_json(ConsumerRunningInfo, answer.body)
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert info.mq_table[QUEUE_0].commit_offset == 5
        assert info.status_table["T"].consume_ok_tps > 0
        status = await ask(
            cluster.broker,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
            GetConsumerStatusFromClient("T", "cg"),
        )
        assert decode_json(ConsumerStatus, status.body).message_queue_table[QUEUE_0] == 5
        unknown = await ask(
            cluster.broker,
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            GetConsumerRunningInfo("other", "x"),
        )
        assert unknown.remark == "The Consumer Group <other> not exist in this consumer"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"good", "CR_SUCCESS"),
        (b"counted", "CR_SUCCESS"),
        (b"none", "CR_LATER"),
        (b"bad", "CR_THROW_EXCEPTION"),
        (b"cancelled", "CR_THROW_EXCEPTION"),
    ],
)
async def test_one_message_is_consumed_on_request(
    cluster: MemoryCluster, body: bytes, expected: str
) -> None:
    def answer(messages: list[MessageExt]) -> ConsumeResult | None:
        match messages[0].body:
            case b"bad":
                raise ValueError("bad")
            case b"cancelled":
                raise asyncio.CancelledError
            case b"counted":
                return ConsumeResult.consumed(1)
            case b"none":
                return ConsumeResult.consumed(0)
        return None

    seen = Recorder(answer)
    async with consumer_of(cluster, seen, PushOptions()) as consumer:
        consumer.suspend()
        await send(cluster, Message("T", body))
        record = cluster.broker.queues.raw_record(0)
        assert record is not None
        answered = await ask(
            cluster.broker,
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            ConsumeMessageDirectly("cg", consumer.client_id),
            record,
        )
    assert decode_json(ConsumeMessageDirectlyResult, answered.body).consume_result == expected


async def test_few_messages_are_consumed_directly_at_the_same_time(
    cluster: MemoryCluster,
) -> None:
    may_end = asyncio.Event()

    async def wait(_: list[MessageExt]) -> None:
        await may_end.wait()

    seen = Recorder(wait)
    async with consumer_of(cluster, seen, PushOptions()) as consumer:
        consumer.suspend()
        await send(cluster, Message("T", b"1"))
        record = cluster.broker.queues.raw_record(0)
        assert record is not None
        code = RequestCode.CONSUME_MESSAGE_DIRECTLY
        header = ConsumeMessageDirectly("cg", consumer.client_id)
        async with asyncio.TaskGroup() as group:
            asked = [
                group.create_task(ask(cluster.broker, code, header, record))
                for _ in range(DIRECT_CALLS_MAX)
            ]
            await eventually(lambda: len(seen.lists) == DIRECT_CALLS_MAX)
            refused = await ask(cluster.broker, code, header, record)
            assert refused.code == ResponseCode.SYSTEM_BUSY
            may_end.set()
        assert {task.result().code for task in asked} == {ResponseCode.SUCCESS}
        assert (await ask(cluster.broker, code, header, record)).code == ResponseCode.SUCCESS


# -- life -------------------------------------------------------------------------------------


async def test_heartbeats_are_answered_before_the_first_pull(cluster: MemoryCluster) -> None:
    cluster.broker.fail(RequestCode.HEART_BEAT, HANG)
    options = PushOptions(api_timeout_ms=1_000)
    async with consumer_of(cluster, Recorder(), options):
        await eventually(lambda: cluster.broker.requests[PULL] > 0)
    assert cluster.broker.requests[RequestCode.HEART_BEAT] >= 2
