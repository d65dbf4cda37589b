# SPDX-License-Identifier: Apache-2.0
"""How clients behave while the routes contain only a slave of a broker."""

import asyncio
import socket
from time import monotonic

import pytest

from cometmq.client import (
    BrokerMissing,
    ClientError,
    ConsumeFrom,
    LitePullConsumer,
    LitePullOptions,
    Message,
    NoRoute,
    Outage,
    Producer,
    ProducerOptions,
    PushOptions,
    SendFailed,
)
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.message.flags import Perm
from cometmq.testing.client.listening import Recorder, consumer_of

NO_MASTER = "broker-a has no master now"
SLOW = ProducerOptions(poll_namesrv_interval_ms=60_000, api_timeout_ms=8_000, send_timeout_ms=8_000)
SOON = ProducerOptions(poll_namesrv_interval_ms=60_000, api_timeout_ms=8_000, send_timeout_ms=2_000)


async def send_in_form(form: str, producer: Producer, topic: str = "T") -> None:
    message = Message(topic, b"x")
    match form:
        case "send":
            await producer.send(message)
        case "batch":
            await producer.send_batch([message])
        case "queue":
            await producer.send(message, queue=MessageQueue(topic, "broker-a", 0))
        case "ordered":
            await producer.send_ordered(message, "key")
        case _:
            await producer.send_oneway(message)


async def failures_of(producer: Producer, topic: str, count: int) -> list[ClientError]:
    """Send messages at the same time; return the errors."""

    async def failure() -> ClientError:
        with pytest.raises(ClientError) as caught:
            await producer.send(Message(topic, b"x"))
        return caught.value

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(failure()) for _ in range(count)]
    return [task.result() for task in tasks]


@pytest.mark.parametrize("form", ["send", "batch", "queue", "ordered", "oneway"])
@pytest.mark.parametrize("topic", ["T", "New"])
async def test_every_form_of_send_names_the_missing_master(
    cluster: MemoryCluster, form: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.client.cluster.renewals.RENEW_MS", 50)
    await cluster.lose_master(cluster.broker)
    async with Producer("pg", cluster.namesrv) as producer:
        with pytest.raises(SendFailed, match=NO_MASTER) as caught:
            await send_in_form(form, producer, topic)
        assert isinstance(caught.value.__cause__, BrokerMissing)
        assert (caught.value.brokers, caught.value.may_be_stored) == ((), False)
        error, text = (Outage, NO_MASTER) if topic == "T" else (NoRoute, "no broker has the topic")
        with pytest.raises(error, match=text):
            await producer.queues(topic)
        await cluster.regain_master(cluster.broker)
        await send_in_form("send", producer, topic)
    assert len(cluster.messages(topic)) == 1


async def test_sends_go_on_soon_after_the_master_is_back(cluster: MemoryCluster) -> None:
    async with Producer("pg", cluster.namesrv, options=SOON) as producer:
        await producer.send(Message("T", b"x"))
        await cluster.lose_master(cluster.broker)
        failures: set[str] = set()
        async with asyncio.timeout(60):
            while not any(NO_MASTER in failure for failure in failures):
                with pytest.raises(SendFailed) as caught:
                    await producer.send(Message("T", b"x"))
                failures.add(str(caught.value))
                await asyncio.sleep(0.05)
        await cluster.regain_master(cluster.broker)
        begin = monotonic()
        await producer.send(Message("T", b"y"), timeout_ms=60_000)
    assert monotonic() - begin < 30  # about 1 s; the next regular lookup is a minute away
    assert not any("check the name" in failure for failure in failures)


async def test_senders_share_the_lookups_of_a_route_without_a_master(
    cluster: MemoryCluster, lookups: list[str]
) -> None:
    await cluster.lose_master(cluster.broker)
    async with Producer("pg", cluster.namesrv, options=SOON) as producer:
        begin = monotonic()
        failures = await failures_of(producer, "T", 200)
        elapsed_s = monotonic() - begin
    assert [NO_MASTER in str(failure) for failure in failures] == [True] * 200
    assert 2 <= lookups.count("T") <= elapsed_s + 5  # four in the first second


async def test_a_send_that_cannot_wait_for_the_next_lookup_fails_at_once(
    cluster: MemoryCluster, lookups: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.client.cluster.renewals.RENEW_MS_MIN", 60_000)
    monkeypatch.setattr("cometmq.client.cluster.renewals.RENEW_MS", 60_000)
    await cluster.lose_master(cluster.broker)
    async with Producer("pg", cluster.namesrv, options=SLOW) as producer:
        for _ in range(3):
            with pytest.raises(SendFailed, match=NO_MASTER):
                await producer.send(Message("T", b"x"), timeout_ms=30_000)
    assert lookups.count("T") == 1


async def test_senders_share_the_lookups_of_an_unknown_topic(
    cluster: MemoryCluster, lookups: list[str]
) -> None:
    options = ProducerOptions(default_topic="None")
    async with Producer("pg", cluster.namesrv, options=options) as producer:
        failures = await failures_of(producer, "Nowhere", 100)
        assert {type(failure) for failure in failures} == {NoRoute}
        assert lookups.count("Nowhere") <= 2
        cluster.create_topic("Nowhere")
        await producer.send(Message("Nowhere", b"x"))


async def test_first_sends_that_start_together_wait_for_one_lookup(
    cluster: MemoryCluster, lookups: list[str]
) -> None:
    async with (
        Producer("pg", cluster.namesrv, options=SLOW) as producer,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(50):
            group.create_task(producer.send(Message("T", b"x"), timeout_ms=60_000))
    assert lookups.count("T") == 1


async def test_a_send_outlives_a_master_that_the_name_servers_keep(cluster: MemoryCluster) -> None:
    """In a group with failover, name servers keep a lost master until its successor registers."""
    async with Producer("pg", cluster.namesrv, options=SLOW) as producer:
        await producer.send(Message("T", b"x"))
        await cluster.broker.stop()  # its address is kept in the route
        async with asyncio.TaskGroup() as group:
            sends = [group.create_task(producer.send(Message("T", b"y"))) for _ in range(20)]
            await asyncio.sleep(0.3)
            assert not any(send.done() for send in sends)
            with socket.create_server(("127.0.0.1", 0)) as free:
                cluster.broker.port = free.getsockname()[1]  # the next master's address differs
            await cluster.broker.start()
    assert len(cluster.messages("T")) == 21


async def test_a_stale_route_of_another_topic_hides_no_master(cluster: MemoryCluster) -> None:
    cluster.create_topic("U")
    async with Producer("pg", cluster.namesrv, options=SLOW) as producer:
        await producer.send(Message("T", b"x"))
        await cluster.lose_master(cluster.broker)
        with pytest.raises(SendFailed):
            await producer.send(Message("U", b"x"), timeout_ms=1_000)
        await cluster.regain_master(cluster.broker)
        await producer.send(Message("T", b"y"))
    assert sorted(message.body for message in cluster.messages("T")) == [b"x", b"y"]


async def test_a_read_only_topic_is_not_blamed_on_its_name(
    cluster: MemoryCluster,
) -> None:
    cluster.broker.queues.configure("T", 4, perm=int(Perm.READ))
    async with Producer("pg", cluster.namesrv) as producer:
        with pytest.raises(NoRoute, match="broker-a has no write permission for it"):
            await producer.send(Message("T", b"x"))


@pytest.mark.parametrize("start", ConsumeFrom)
async def test_a_new_group_reads_from_the_slave(cluster: MemoryCluster, start: ConsumeFrom) -> None:
    cluster.broker.young_queue_starts_at_zero = False
    async with Producer("pg", cluster.namesrv) as producer:
        sent = [await producer.send(Message("T", b"x")) for _ in range(8)]
    await cluster.lose_master(cluster.broker)
    heard = Recorder()
    options = PushOptions(consume_from=start)
    async with consumer_of(cluster, heard, options=options):
        await eventually(lambda: cluster.broker.held_count >= 4)
        count = 0 if start is ConsumeFrom.LAST_OFFSET else len(sent)
        await eventually(lambda: len(heard.messages) >= count)
        assert len(heard.messages) == count


async def test_a_lite_pull_consumer_reads_from_the_slave(cluster: MemoryCluster) -> None:
    async with Producer("pg", cluster.namesrv) as producer:
        for _ in range(4):
            await producer.send(Message("T", b"x"))
    await cluster.lose_master(cluster.broker)
    consumer = LitePullConsumer("lg", cluster.namesrv, options=LitePullOptions())
    consumer.subscribe("T")
    found: list[bytes] = []
    async with consumer, asyncio.timeout(60):
        while len(found) < 4:
            found += [message.body for message in await consumer.poll()]
    assert found == [b"x"] * 4
