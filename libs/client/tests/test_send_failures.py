# SPDX-License-Identifier: Apache-2.0
"""Sends when brokers are down, hang, disconnect or lose their answer."""

import asyncio
import os
from time import monotonic
from typing import Any

import pytest

from cometmq.client import (
    BrokerMissing,
    Message,
    NoRoute,
    Producer,
    ProducerOptions,
    SendFailed,
    SendResult,
    SendTimeout,
    clock,
)
from cometmq.client.errors import broker_missing
from cometmq.client.testing import DISCONNECT, HANG, LOSE_ANSWER, MemoryCluster, eventually
from cometmq.client.transfer import queue_selection, sender
from cometmq.client.transfer.queue_selection import Attempts
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.errors import (
    ConnectFailed,
    ConnectionLost,
    RequestTimeout,
    ServerError,
    SystemBusy,
)
from cometmq.remoting.message.flags import SysFlag
from cometmq.remoting.transport.addresses import parse_address

from .send_forms import SEND, send_form


async def test_the_last_failure_names_the_attempts(cluster: MemoryCluster) -> None:
    cluster.broker.fail(SEND, ServerError("disk"), times=3)
    async with Producer("pg", cluster.namesrv) as producer:
        with pytest.raises(
            SendFailed,
            match=r"to the topic T was not stored after 3 attempts in \d+ ms at "
            r"broker-a, broker-a, broker-a: ",
        ) as caught:
            await producer.send(Message("T", b"x"))
    assert caught.value.code == 1
    assert isinstance(caught.value.__cause__, ServerError)


@pytest.mark.parametrize("form", ["send", "batch", "queue", "ordered", "oneway"])
async def test_every_form_of_send_raises_alike_if_the_broker_is_down(
    cluster: MemoryCluster, form: str
) -> None:
    cluster.create_topic("T")
    options = ProducerOptions(send_timeout_ms=600)
    async with Producer("pg", cluster.namesrv, options=options) as producer:
        (queue, *_) = await producer.queues("T")
        await cluster.broker.stop()
        with pytest.raises(SendFailed):  # this send may be the one that finds the connection closed
            await producer.send(Message("T", b"first"))
        with pytest.raises(SendFailed, match="the message to the topic T was not stored") as caught:
            await send_form(form, producer, queue)
    assert not caught.value.may_be_stored
    assert caught.value.brokers[0] == "broker-a"


@pytest.mark.parametrize("form", ["send", "queue", "ordered"])
async def test_a_message_whose_answer_is_lost_may_be_stored(
    cluster: MemoryCluster, form: str
) -> None:
    cluster.create_topic("T")
    async with Producer("pg", cluster.namesrv) as producer:
        (queue, *_) = await producer.queues("T")
        cluster.broker.fail(SEND, LOSE_ANSWER)
        cluster.broker.fail(SEND, ServerError("disk"), times=2)
        with pytest.raises(SendFailed, match="which may be stored") as caught:
            await send_form(form, producer, queue)
    assert caught.value.may_be_stored
    assert len(cluster.messages("T")) == 1


async def test_a_refusal_does_not_hide_that_an_earlier_attempt_may_be_stored(
    cluster: MemoryCluster,
) -> None:
    cluster.broker.fail(SEND, LOSE_ANSWER)
    cluster.broker.fail(SEND, SystemBusy("busy"))
    async with Producer("pg", cluster.namesrv) as producer:
        with pytest.raises(SendFailed, match="which may be stored") as caught:
            await producer.send(Message("T", b"x"))
    assert isinstance(caught.value.__cause__, SystemBusy)


async def test_a_lost_topic_does_not_hide_that_an_earlier_attempt_may_be_stored(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.broker.fail(SEND, LOSE_ANSWER)
    async with Producer("pg", cluster.namesrv) as producer:
        await producer.queues("T")
        sender = producer._sending()
        send_to = sender.send_to

        async def send_and_forget(*args: Any, **options: Any) -> SendResult:
            try:
                return await send_to(*args, **options)
            finally:  # as if the topic had been deleted
                monkeypatch.setattr(sender._instance.routes, "get_for_sending", lambda _: None)
                monkeypatch.setattr(sender, "route", no_route)

        async def no_route(*_: Any, **__: Any) -> None:
            raise NoRoute("no broker has the topic T")

        monkeypatch.setattr(sender, "send_to", send_and_forget)
        with pytest.raises(SendFailed, match="which may be stored") as caught:
            await producer.send(Message("T", b"x"))
    assert caught.value.may_be_stored
    assert isinstance(caught.value.__cause__, NoRoute)


async def test_a_timeout_is_a_failed_send_too(cluster: MemoryCluster) -> None:
    options = ProducerOptions(retry_times=0, send_timeout_ms=1_000)
    async with Producer("pg", cluster.namesrv, options=options) as producer:
        await producer.send(Message("T", b"x"))  # the route is known
        cluster.broker.fail(SEND, HANG)
        with pytest.raises(SendTimeout, match="which may be stored") as caught:
            await producer.send(Message("T", b"x"))
    assert caught.value.may_be_stored


async def test_a_body_that_compression_makes_longer_is_sent_as_it_is(
    cluster: MemoryCluster,
) -> None:
    body = os.urandom(9000)
    async with Producer("pg", cluster.namesrv) as producer:
        await producer.send(Message("T", body))
    (stored,) = cluster.messages("T")
    assert (stored.body, stored.sys_flag & SysFlag.COMPRESSED) == (body, 0)


async def test_retries_can_be_switched_off(cluster: MemoryCluster) -> None:
    cluster.broker.fail(SEND, ServerError("disk"))
    async with Producer("pg", cluster.namesrv, options=ProducerOptions(retry_times=0)) as producer:
        with pytest.raises(SendFailed):
            await producer.send(Message("T", b"x"))
    assert cluster.broker.requests[SEND] == 1


async def test_a_lost_connection_is_made_again(cluster: MemoryCluster) -> None:
    cluster.broker.fail(SEND, DISCONNECT)
    async with Producer("pg", cluster.namesrv) as producer:
        await producer.send(Message("T", b"x"))
    assert cluster.broker.requests[SEND] == 2


async def test_a_dead_connection_is_found_out_by_heartbeats(cluster: MemoryCluster) -> None:
    options = ProducerOptions(heartbeat_interval_ms=50, api_timeout_ms=1_000)
    async with Producer("pg", cluster.namesrv, options=options) as producer:
        cluster.broker.fail(SEND, HANG)
        cluster.broker.fail(RequestCode.HEART_BEAT, HANG)
        await producer.send(Message("T", b"x"), timeout_ms=60_000)
    assert cluster.broker.requests[SEND] == 2


async def test_a_frozen_broker_costs_only_the_sends_that_find_it_out(pair: MemoryCluster) -> None:
    frozen = pair.brokers[0]
    options = ProducerOptions(heartbeat_interval_ms=50, api_timeout_ms=200)
    async with Producer("pg", pair.namesrv, options=options) as producer:
        await producer.send(Message("T", b"x"))
        for code in (RequestCode.HEART_BEAT, SEND):
            frozen.fail(code, HANG, times=1_000)
        outages = producer._running().outages
        await eventually(lambda: frozen.address in outages)
        before = frozen.requests[SEND]
        for _ in range(8):
            await producer.send(Message("T", b"x"))
        assert frozen.requests[SEND] == before


async def test_the_broker_that_used_the_time_up_is_named(
    pair: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retry with 2 ms left would fail at the healthy broker, which the error would then name."""
    now_ms, left_ms, asked = 0, 2, []

    async def waits(
        _: object, queue: MessageQueue, _prepared: object, *, timeout_ms: int, route: object
    ) -> SendResult:
        del route
        nonlocal now_ms
        now_ms += timeout_ms - left_ms
        asked.append(queue.broker_name)
        raise RequestTimeout(f"{queue.broker_name} did not answer within {timeout_ms} ms")

    pair.create_topic("T")
    for module in (sender, clock):
        monkeypatch.setattr(module, "monotonic_ms", lambda: now_ms)
    async with Producer("pg", pair.namesrv) as producer:
        await producer.send(Message("T", b"x"))
        monkeypatch.setattr(sender.MessageSender, "send_to", waits)
        with pytest.raises(SendTimeout, match="gave up after 1 attempt in 2998 ms"):
            await producer.send(Message("T", b"x"), timeout_ms=3_000)
        now_ms, left_ms = 0, 50
        asked.clear()
        with pytest.raises(SendTimeout) as caught:
            await producer.send(Message("T", b"x"), timeout_ms=3_000)
    assert len(set(asked)) == 2
    assert str(caught.value).endswith(f": {asked[0]} did not answer within 3000 ms")


async def test_sends_succeed_while_one_of_two_brokers_is_down(pair: MemoryCluster) -> None:
    async with Producer("pg", pair.namesrv) as producer:
        await producer.send(Message("T", b"x"))
        await pair.stop_broker(pair.brokers[0])
        results = [await producer.send(Message("T", b"x")) for _ in range(6)]
    assert {result.queue.broker_name for result in results} == {"broker-b"}


@pytest.mark.parametrize("is_oneway", [False, True])
async def test_a_broker_that_is_back_is_found_at_once(pair: MemoryCluster, is_oneway: bool) -> None:
    pair.create_topic("T")
    queue = MessageQueue("T", "broker-b", 0)
    await pair.stop_broker(pair.brokers[1])
    async with Producer("pg", pair.namesrv) as producer:
        await producer.send(Message("T", b"x"))
        send = producer.send_oneway if is_oneway else producer.send
        with pytest.raises(SendFailed, match="broker-b") as caught:
            await send(Message("T", b"y"), queue=queue)
        assert isinstance(caught.value.__cause__, BrokerMissing)
        assert not caught.value.may_be_stored
        await pair.start_broker(pair.brokers[1])
        await send(Message("T", b"z"), queue=queue)
        await eventually(lambda: len(pair.brokers[1].messages("T")) == 1)
    assert pair.brokers[1].messages("T")[0].body == b"z"


async def test_slow_brokers_are_left_out(
    pair: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (sender, queue_selection):
        monkeypatch.setattr(module, "monotonic_ms", lambda: 1_000)  # no send is slow by chance
    options = ProducerOptions(avoid_slow_brokers=True)
    async with Producer("pg", pair.namesrv, options=options) as producer:
        await producer.send(Message("T", b"x"))
        pair.brokers[0].fail(SEND, ServerError("x"), times=1)
        for _ in range(12):
            await producer.send(Message("T", b"x"))
    assert pair.brokers[0].requests[SEND] <= 3
    assert pair.brokers[1].requests[SEND] >= 10


async def test_a_send_goes_on_until_its_deadline_while_the_broker_is_down(
    pair: MemoryCluster,
) -> None:
    first, second = pair.brokers
    options = ProducerOptions(send_timeout_ms=30_000, poll_namesrv_interval_ms=60_000)
    async with Producer("pg", pair.namesrv, options=options) as producer:
        await producer.send(Message("T", b"x"))
        await pair.stop_broker(first)
        await pair.stop_broker(second)
        results: list[SendResult] = []

        async def send() -> None:
            results.append(await producer.send(Message("T", b"y")))

        async with asyncio.TaskGroup() as group:
            group.create_task(send())
            await asyncio.sleep(0.3)  # three attempts take a few milliseconds
            assert not results
            await pair.start_broker(second)
        assert results[0].queue.broker_name == second.name


async def test_a_send_goes_on_while_a_proxy_accepts_connections_for_the_broker_that_is_down(
    cluster: MemoryCluster,
) -> None:
    options = ProducerOptions(send_timeout_ms=30_000, poll_namesrv_interval_ms=60_000)
    async with Producer("pg", cluster.namesrv, options=options) as producer:
        await producer.send(Message("T", b"x"))
        await cluster.stop_broker(cluster.broker)
        accepted: list[float] = []

        def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted.append(monotonic())
            writer.close()

        host, port = parse_address(cluster.broker.address)
        async with asyncio.TaskGroup() as group:
            async with await asyncio.start_server(accept, host, port):
                sending = group.create_task(producer.send(Message("T", b"y")))
                await eventually(lambda: len(accepted) > 4)
                assert not sending.done()
            await cluster.start_broker(cluster.broker)
        assert sending.result().queue.broker_name == cluster.broker.name
    assert accepted[-1] - accepted[0] > 0.1  # with pauses


def test_pauses_begin_when_no_broker_is_left_and_grow() -> None:
    tried = Attempts([])
    pauses = []
    for name in ("a", "b", "a", "b", "a", "b"):
        tried.brokers.append(name)
        tried.count += 1
        tried.note(ConnectFailed("refused"))
        pauses.append(tried.pause_ms({"a", "b"}, 10_000))
        assert tried.may_begin(3, 10_000)
    assert pauses == [0, 50, 0, 100, 0, 200]
    assert tried.pause_ms({"a"}, 10_000) == 0  # nothing has failed since the last pause
    tried.note(ConnectFailed("refused"))
    assert tried.pause_ms({"b"}, 100) == 80  # leaves time for an attempt
    assert not tried.may_begin(1, 10_000)  # without retries
    assert not tried.may_begin(3, 9)


def test_only_attempts_that_reach_a_broker_are_limited_in_number() -> None:
    tried = Attempts([])
    for error in (ConnectFailed("a"), RequestTimeout("b"), ConnectFailed("c"), ServerError("d")):
        tried.count += 1
        tried.note(error)
        assert tried.may_begin(3, 1_000)
    unserved = ConnectionLost("e")
    unserved.has_answered = False
    tried.count += 1
    tried.note(unserved)
    assert tried.may_begin(3, 1_000)
    tried.count += 1
    tried.note(ConnectionLost("f"))
    assert not tried.may_begin(3, 1_000)


def test_a_route_without_a_master_is_retried_only_after_a_lookup() -> None:
    tried = Attempts([], 1)
    tried.note(broker_missing("a"), cost_ms=0)
    assert tried.unreached_count == 0
    tried.note(broker_missing("a"), cost_ms=100)
    assert tried.unreached_count == 1
