# SPDX-License-Identifier: Apache-2.0
import asyncio
import os
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from cometmq.client import (
    BrokerMissing,
    ClientStateError,
    InvalidArgument,
    Message,
    NoNamesrv,
    Producer,
    ProducerOptions,
    SendFailed,
    SendStatus,
)
from cometmq.client.testing import HANG, MemoryCluster, eventually
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.errors import (
    RequestCodeNotSupported,
    RequestTimeout,
)
from cometmq.remoting.transport.settings import TlsSettings
from cometmq.remoting.types import Serialization

SEND = RequestCode.SEND_MESSAGE_V2


async def test_a_message_arrives_with_everything_it_was_sent_with(cluster: MemoryCluster) -> None:
    async with Producer("pg", cluster.namesrv) as producer:
        message = Message("T", b"body", tag="A", keys=["k1", "k2"], properties={"x": "y"}, flag=7)
        result = await producer.send(message)
    (stored,) = cluster.messages("T")
    assert result.status is SendStatus.SEND_OK
    assert (stored.body, stored.tag, stored.keys, stored.flag) == (b"body", "A", ("k1", "k2"), 7)
    assert stored.properties["x"] == "y"
    assert stored.properties["WAIT"] == "true"
    assert stored.message_id == result.message_id
    assert stored.offset_message_id == result.offset_message_id
    assert (stored.queue, stored.queue_offset) == (result.queue, result.queue_offset)


@pytest.mark.parametrize(
    ("at", "name", "value"),
    [
        (datetime(2026, 11, 20, 10, tzinfo=UTC), "TIMER_DELIVER_MS", "1795168800000"),
        (datetime(2026, 11, 20, 10, 0, 0, 1, UTC), "TIMER_DELIVER_MS", "1795168800001"),
        (timedelta(minutes=90), "TIMER_DELAY_MS", "5400000"),
        (timedelta(microseconds=1), "TIMER_DELAY_MS", "1"),
        (timedelta(), "TIMER_DELAY_MS", "0"),
    ],
)
async def test_a_delivery_time_becomes_the_property_of_rocketmq_5(
    cluster: MemoryCluster, at: datetime | timedelta, name: str, value: str
) -> None:
    async with Producer("pg", cluster.namesrv) as producer:
        await producer.send(Message("T", b"x", deliver_at=at))
    (stored,) = cluster.broker.messages("T")
    assert stored.properties[name] == value


@pytest.mark.parametrize(
    "message",
    [
        Message("T", b"x", deliver_at=datetime(2026, 1, 1)),  # noqa: DTZ001  # the fault
        Message("T", b"x", deliver_at=timedelta(seconds=-1)),
        Message("T", b"x", deliver_at=1795168800000),  # type: ignore[arg-type]
        Message("T", b"x", deliver_at=timedelta(1), delay_level=1),
        Message("T", b"x", properties={"TIMER_DELAY_SEC": "1"}),
    ],
)
async def test_wrong_delivery_times_are_refused(cluster: MemoryCluster, message: Message) -> None:
    async with Producer("pg", cluster.namesrv) as producer:
        with pytest.raises(InvalidArgument, match=r"deliver_at|is set by the client"):
            await producer.send(message)
    assert not cluster.broker.requests[SEND]


async def test_a_recall_names_the_message_and_where_it_waits(producer: Producer) -> None:
    sent = await producer.send(Message("T", b"later", delay_level=3))
    with pytest.raises(RequestCodeNotSupported, match="370"):  # as RocketMQ 4.x
        await producer.recall(sent)
    nowhere = msgspec.structs.replace(sent, queue=MessageQueue("T", "nobody", 0))
    with pytest.raises(BrokerMissing, match="nobody"):
        await producer.recall(nowhere)
    with pytest.raises(InvalidArgument, match="sent must be the SendResult of a send"):
        await producer.recall(sent.message_id)  # type: ignore[arg-type]


async def test_brokers_know_a_producer_before_start_returns(cluster: MemoryCluster) -> None:
    producer = Producer("pg", cluster.namesrv)
    await producer.start()
    assert cluster.broker.producers == {"pg": {producer.client_id}}
    await producer.close()
    assert cluster.broker.producers == {"pg": set()}


async def test_sends_go_round_the_queues(cluster: MemoryCluster) -> None:
    async with Producer("pg", cluster.namesrv) as producer:
        results = [await producer.send(Message("T", b"x")) for _ in range(8)]
    assert sorted(result.queue.queue_id for result in results) == [0, 0, 1, 1, 2, 2, 3, 3]


async def test_messages_of_one_key_keep_their_order_in_one_queue(cluster: MemoryCluster) -> None:
    async with Producer("pg", cluster.namesrv) as producer:
        results = [
            await producer.send_ordered(Message("T", b"%d" % number), "order-17")
            for number in range(5)
        ]
    assert len({result.queue for result in results}) == 1
    assert [message.body for message in cluster.messages("T")] == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_given_queue_is_used(cluster: MemoryCluster) -> None:
    queue = MessageQueue("T", "broker-a", 2)
    async with Producer("pg", cluster.namesrv) as producer:
        assert (await producer.send(Message("T", b"x"), queue=queue)).queue == queue
        await producer.send_oneway(Message("T", b"y"), queue=queue)
        assert queue in await producer.queues("T")
    await eventually(lambda: cluster.broker.queues.max_offset("T", 2) == 2)


async def test_an_unknown_topic_is_created_by_sending(cluster: MemoryCluster) -> None:
    async with Producer("pg", cluster.namesrv) as producer:
        result = await producer.send(Message("Fresh", b"x"))
    assert result.queue.topic == "Fresh"
    assert [message.body for message in cluster.messages("Fresh")] == [b"x"]


# -- batches ----------------------------------------------------------------------------------


async def test_a_batch_is_stored_whole_in_one_queue(cluster: MemoryCluster) -> None:
    async with Producer("pg", cluster.namesrv) as producer:
        batch = [Message("T", b"%d" % number, tag=f"t{number}") for number in range(3)]
        result = await producer.send_batch(batch)
    stored = cluster.messages("T")
    assert [(message.body, message.tag) for message in stored] == [
        (b"0", "t0"),
        (b"1", "t1"),
        (b"2", "t2"),
    ]
    assert result.message_id.split(",") == [message.message_id for message in stored]
    assert cluster.broker.requests[RequestCode.SEND_BATCH_MESSAGE] == 1


async def test_the_splitter_makes_batches_that_fit(cluster: MemoryCluster) -> None:
    options = ProducerOptions(body_bytes_max=1000)
    messages = [Message("T", bytes(300)) for _ in range(7)]
    async with Producer("pg", cluster.namesrv, options=options) as producer:
        with pytest.raises(InvalidArgument, match="split it with"):
            await producer.send_batch(messages)
        batches = list(producer.split_batch(messages))
        for batch in batches:
            await producer.send_batch(batch)
    assert [len(batch) for batch in batches] == [2, 2, 2, 1]
    assert len(cluster.messages("T")) == 7


# -- checks -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (Message("", b"x"), "the name of the topic is empty"),
        (Message("a b", b"x"), "illegal characters"),
        (Message("t" * 128, b"x"), "longer than"),
        (Message("SCHEDULE_TOPIC_XXXX", b"x"), "belongs to the broker"),
        (Message("T", b""), "the message body is empty"),
        (Message("T", "text"), "the message body must be bytes, not str"),  # type: ignore[arg-type]
        (Message("T", b"x", keys=["a b"]), "a key must not contain a space"),
        (Message("T", bytes(101)), "more than body_bytes_max"),
        (Message("T", b"x", properties={"TAGS": "x"}), "the property TAGS is set by the client"),
        (Message("T", b"x", properties={"k": "a\x01b"}), "separators"),
        (Message("T", b"x", properties={"k": "v" * 40_000}), "more than 32767 bytes"),
    ],
)
async def test_messages_that_no_broker_takes_are_refused(
    cluster: MemoryCluster, message: Message, text: str
) -> None:
    options = ProducerOptions(body_bytes_max=100)
    async with Producer("pg", cluster.namesrv, options=options) as producer:
        with pytest.raises(InvalidArgument, match=text):
            await producer.send(message)
    assert not cluster.broker.requests[SEND]


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([], "empty"),
        ([Message("T", b"x", delay_level=1)], "messages with a delay level"),
        ([Message("T", b"x", deliver_at=timedelta(1))], "messages with `deliver_at` cannot be"),
        ([Message("%RETRY%g", b"x")], "messages to a retry topic"),
        ([Message("T", b"x"), Message("U", b"x")], "must have the same topic"),
        (
            [Message("T", b"x"), Message("T", b"x", wait_store_ok=False)],
            "must have the same wait_store_ok",
        ),
    ],
)
async def test_batches_that_no_broker_takes_are_refused(
    producer: Producer, messages: list[Message], text: str
) -> None:
    with pytest.raises(InvalidArgument, match=text):
        await producer.send_batch(messages)


@pytest.mark.parametrize("size", [4096, 40_000])
async def test_large_bodies_travel_compressed(cluster: MemoryCluster, size: int) -> None:
    async with Producer("pg", cluster.namesrv) as producer:
        await producer.send(Message("T", bytes(size - 1)[:4095]))
        await producer.send(Message("T", bytes(size)))
    plain, packed = sorted(cluster.messages("T"), key=lambda message: message.sys_flag)
    assert plain.sys_flag == 0
    assert packed.sys_flag & 1
    assert packed.body == bytes(size)
    assert sum(len(record.body) for record in cluster.broker.queues.records("T")) < 4095 + 500


# -- life -------------------------------------------------------------------------------------


async def test_without_a_name_server_there_is_no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    producer = Producer("pg")
    with pytest.raises(NoNamesrv) as caught:
        await producer.start()
    assert caught.value.code == 10004
    assert producer.state == "START_FAILED"
    with pytest.raises(ClientStateError, match="still starting, or failed to start: wait for"):
        await producer.send(Message("T", b"x"))


async def test_the_environment_names_the_name_server(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", f"127.0.0.1:1;{cluster.namesrv}")
    async with Producer("pg") as producer:
        await producer.send(Message("T", b"x"))
    assert [message.body for message in cluster.messages("T")] == [b"x"]


async def test_clients_of_one_name_share_their_connections(cluster: MemoryCluster) -> None:
    options = ProducerOptions(instance_name="shared", client_ip="127.0.0.1")
    first = Producer("pg1", cluster.namesrv, options=options)
    second = Producer("pg2", cluster.namesrv, options=options)
    async with first, second:
        assert first.client_id == second.client_id == "127.0.0.1@shared"
        with pytest.raises(InvalidArgument, match="already has a producer of the group"):
            await Producer("pg1", cluster.namesrv, options=options).start()
        await first.close()
        await second.send(Message("T", b"x"))


async def test_a_client_is_of_no_use_after_a_fork(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: -1)
        with pytest.raises(ClientStateError, match="fork"):
            await producer.send(Message("T", b"x"))


async def test_sends_beyond_the_bound_wait_for_their_turn(cluster: MemoryCluster) -> None:
    cluster.broker.fail(SEND, HANG, times=2)
    options = ProducerOptions(pending_sends_max=2, send_timeout_ms=2_000, retry_times=0)
    async with Producer("pg", cluster.namesrv, options=options) as producer:
        async with asyncio.TaskGroup() as group:
            hanging = [group.create_task(_outcome(producer)) for _ in range(2)]
            third = group.create_task(_outcome(producer))
            await eventually(lambda: cluster.broker.requests[SEND] == 2)
            assert not third.done()
        assert [task.result() for task in hanging] == [False, False]
        assert third.result()


async def test_closing_waits_for_sends_in_flight(cluster: MemoryCluster) -> None:
    producer = Producer("pg", cluster.namesrv)
    await producer.start()
    async with asyncio.TaskGroup() as group:
        sends = [group.create_task(_outcome(producer)) for _ in range(50)]
        await eventually(lambda: cluster.broker.requests[SEND] > 0)
        await producer.close()
    assert all(task.result() for task in sends)


async def test_a_thousand_sends_share_one_connection(cluster: MemoryCluster) -> None:
    options = ProducerOptions(send_timeout_ms=60_000, api_timeout_ms=60_000)
    async with Producer("pg", cluster.namesrv, options=options) as producer:
        async with asyncio.TaskGroup() as group:
            for _ in range(1000):
                group.create_task(producer.send(Message("T", b"x" * 128)))
        assert producer.stats().sent_count == 1000
    ids = {message.message_id for message in cluster.messages("T")}
    assert len(ids) == 1000


async def _outcome(producer: Producer) -> bool:
    try:
        await producer.send(Message("T", b"x" * 128))
    except (RequestTimeout, SendFailed):
        return False
    return True


@pytest.mark.parametrize(
    "options",
    [
        ProducerOptions(serialization=Serialization.ROCKETMQ),
        ProducerOptions(tls=TlsSettings(enable=True)),
    ],
    ids=["binary-headers", "tls"],
)
async def test_other_encodings_of_the_protocol_work_too(
    cluster: MemoryCluster, options: ProducerOptions
) -> None:
    async with Producer("pg", cluster.namesrv, options=options) as producer:
        await producer.send(Message("T", b"x", properties={"k": "v"}))
    (stored,) = cluster.messages("T")
    assert stored.properties["k"] == "v"


async def test_the_vip_port_is_two_below(cluster: MemoryCluster) -> None:
    options = ProducerOptions(vip_channel=True, retry_times=0)
    async with Producer("pg", cluster.namesrv, options=options) as producer:
        with pytest.raises(SendFailed, match=f":{cluster.broker.port - 2}"):
            await producer.send(Message("T", b"x"))


@pytest.mark.parametrize("form", ["send", "batch", "ordered"])
async def test_a_queue_that_the_topic_does_not_have_is_no_outage(
    cluster: MemoryCluster, form: str
) -> None:
    queue = MessageQueue("T", "broker-a", 99)
    text = "the topic T has no queue 99 to send to at broker-a: its queues there are 0 to 3"
    async with Producer("pg", cluster.namesrv) as producer:
        message = Message("T", b"x")
        sends = {
            "send": lambda: producer.send(message, queue=queue),
            "batch": lambda: producer.send_batch([message], queue=queue),
            "ordered": lambda: producer.send_ordered(message, 1, selector=lambda *_: queue),
        }
        with pytest.raises(InvalidArgument, match=text):
            await sends[form]()
        assert producer.stats().failed_count == 1
    assert cluster.messages("T") == []
