# SPDX-License-Identifier: Apache-2.0
import asyncio
from typing import Any

import pytest

from cometmq.client import (
    ConsumeFrom,
    ConsumeResult,
    LitePullConsumer,
    LitePullOptions,
    Message,
    MessageExt,
    Producer,
    ProducerOptions,
    PushConsumer,
    PushOptions,
)
from cometmq.client.errors import InvalidArgument
from cometmq.client.namespace import Namespace, is_system, namespace_of, without_namespace
from cometmq.client.settings import ClientOptions
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.codes import RequestCode

NS = Namespace("MQ_INST_1_2")
OPTIONS = ProducerOptions(namespace="ns")


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ("T", "MQ_INST_1_2%T"),
        ("%RETRY%g", "%RETRY%MQ_INST_1_2%g"),
        ("%DLQ%g", "%DLQ%MQ_INST_1_2%g"),
        ("T%x", "MQ_INST_1_2%T%x"),
    ],
)
def test_a_name_gets_its_namespace_once_and_loses_it_again(short: str, full: str) -> None:
    assert NS.wrap(short) == NS.wrap(full) == full
    assert NS.unwrap(full) == NS.unwrap(short) == short


@pytest.mark.parametrize(
    "name", ["TBW102", "RMQ_SYS_TRACE_TOPIC", "rmq_sys_X", "CID_RMQ_SYS_TRANS", "BenchmarkTest"]
)
def test_names_of_rocketmq_have_no_namespace(name: str) -> None:
    assert is_system(name)
    assert NS.wrap(name) == NS.unwrap(name) == without_namespace(name) == name


def test_names_of_other_namespaces_stay() -> None:
    assert NS.unwrap("other%T") == "other%T"
    assert NS.wrap("other%T") == "MQ_INST_1_2%other%T"
    assert without_namespace("other%T") == "T"
    assert without_namespace("%RETRY%other%g") == "%RETRY%g"
    assert without_namespace("T") == "T"
    assert without_namespace("%RETRY%g") == "%RETRY%g"


@pytest.mark.parametrize(
    ("namesrv", "name"),
    [
        ("http://MQ_INST_123_abc.host.example:9876", "MQ_INST_123_abc"),
        ("MQ_INST_123_abc.host.example:9876", "MQ_INST_123_abc"),
        ("https://MQ_INST_1_2.host:80", "MQ_INST_1_2"),
        ("MQ_INST_1.host:9876", ""),
        ("127.0.0.1:9876", ""),
        ("host:9876;MQ_INST_1_2.host:9876", ""),
    ],
)
def test_an_address_may_name_the_namespace(namesrv: str, name: str) -> None:
    assert namespace_of(ClientOptions(namesrv=namesrv)).name == name
    assert namespace_of(ClientOptions(namesrv=namesrv, namespace="own")).name == "own"


def test_the_environment_may_name_the_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "http://MQ_INST_1_2.host:9876")
    assert namespace_of(ClientOptions()).name == "MQ_INST_1_2"


async def test_a_producer_lives_in_its_namespace(cluster: MemoryCluster) -> None:
    cluster.create_topic("ns%T", queue_count=2)
    async with Producer("pg", cluster.namesrv, options=OPTIONS) as producer:
        queues = await producer.queues("T")
        seen: list[MessageQueue] = []

        def selector(choice: Any, _message: object, _argument: object) -> MessageQueue:
            seen.extend(choice)
            return seen[-1]

        results = [
            await producer.send(Message("T", b"1")),
            await producer.send(Message("T", b"2"), queue=queues[0]),
            await producer.send_ordered(Message("T", b"3"), 0, selector=selector),
            await producer.send_batch([Message("T", b"4"), Message("T", b"5")]),
        ]
        await producer.send_oneway(Message("T", b"6"), queue=queues[1])
        assert cluster.broker.producers.keys() == {"ns%pg"}
        admin = producer.admin
        assert await admin.queues("T") == sorted(queues)
        assert await admin.max_offset(queues[0]) >= 1
        found = await admin.view_message(results[0].offset_message_id, "T")
    assert {result.queue.topic for result in results} == {"T"}
    assert {queue.topic for queue in [*queues, *seen]} == {"T"}
    assert (found.topic, found.queue.topic, found.body) == ("T", "T", b"1")
    stored = cluster.messages("ns%T")
    assert sorted(message.body for message in stored) == [b"1", b"2", b"3", b"4", b"5", b"6"]
    assert {message.properties["INSTANCE_ID"] for message in stored} == {"ns"}
    assert not cluster.messages("T")


async def test_a_queue_of_another_topic_is_refused(cluster: MemoryCluster) -> None:
    async with Producer("pg", cluster.namesrv) as producer:
        with pytest.raises(InvalidArgument, match="the message is for T"):
            await producer.send(Message("T", b"x"), queue=MessageQueue("U", "broker-a", 0))
    assert not cluster.broker.requests[RequestCode.SEND_MESSAGE_V2]


async def test_a_name_that_is_too_long_with_its_namespace_is_refused(
    cluster: MemoryCluster,
) -> None:
    async with Producer("pg", cluster.namesrv, options=OPTIONS) as producer:
        with pytest.raises(InvalidArgument, match="longer than 127"):
            await producer.send(Message("t" * 126, b"x"))


async def test_consumers_live_in_their_namespace(cluster: MemoryCluster) -> None:
    """A failed message is redelivered through the retry topic of the namespace."""
    cluster.create_topic("ns%T", queue_count=1)
    seen: list[MessageExt] = []
    again = asyncio.Event()
    assigned: list[MessageQueue] = []

    async def listener(messages: list[MessageExt]) -> ConsumeResult:
        seen.extend(messages)
        if messages[0].reconsume_times:
            again.set()
            return ConsumeResult.SUCCESS
        return ConsumeResult.RECONSUME_LATER

    options = PushOptions(namespace="ns", consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer = PushConsumer("cg", cluster.namesrv, listener=listener, options=options)
    consumer.subscribe("T")
    consumer.on_assigned(assigned.extend)
    async with Producer("pg", cluster.namesrv, options=OPTIONS) as producer:
        await producer.send(Message("T", b"x"))
    async with consumer:
        await again.wait()
        assert consumer.queues == assigned == [MessageQueue("T", "broker-a", 0)]
        assert cluster.broker.groups.keys() == {"ns%cg"}
        assert await consumer.admin.max_offset(consumer.queues[0]) == 1
        await consumer.unsubscribe("T")
        await eventually(lambda: not consumer.queues)
    first, second = seen
    assert (first.topic, first.queue.topic) == ("T", "T")
    assert (second.topic, second.queue.topic) == ("T", "%RETRY%cg")
    assert len(cluster.messages("%RETRY%ns%cg")) == 1
    assert set(cluster.committed("ns%cg", "ns%T").values()) == {1}


async def test_polling_returns_short_names(cluster: MemoryCluster) -> None:
    cluster.create_topic("ns%T", queue_count=1)
    queue = MessageQueue("T", "broker-a", 0)
    async with Producer("pg", cluster.namesrv, options=OPTIONS) as producer:
        for body in (b"1", b"2"):
            await producer.send(Message("T", body))
    options = LitePullOptions(namespace="ns", consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer = LitePullConsumer("cg", cluster.namesrv, options=options)
    consumer.subscribe("T")
    async with consumer:
        first = await consumer.next_message()
        assert first is not None
        assert (first.topic, first.queue, first.body) == ("T", queue, b"1")
        assert consumer.queues == await consumer.queues_of("T") == [queue]
        await consumer.seek_to_end(queue)
        await consumer.seek(queue, 1)
        second = await consumer.next_message()
        assert second is not None
        assert second.body == b"2"
        await consumer.commit()
        assert await consumer.committed(queue) == 2


async def test_assigned_queues_have_short_names(cluster: MemoryCluster) -> None:
    cluster.create_topic("ns%T", queue_count=2)
    async with Producer("pg", cluster.namesrv, options=OPTIONS) as producer:
        await producer.send(Message("T", b"x"), queue=MessageQueue("T", "broker-a", 1))
    options = LitePullOptions(namespace="ns", consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer = LitePullConsumer("cg", cluster.namesrv, options=options)
    consumer.assign([MessageQueue("T", "broker-a", 1)])
    async with consumer:
        found = await consumer.next_message()
    assert found is not None
    assert found.body == b"x"
