# SPDX-License-Identifier: Apache-2.0
"""Tests other features of our client: traces, namespaces, requests, message ids.

The other end is always RocketMQ's own client or tool; every test runs on Java's broker and on ours.
"""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from cometmq.client import (
    AdminClient,
    ConsumeFrom,
    ConsumeResult,
    Message,
    MessageExt,
    NoReply,
    Producer,
    ProducerOptions,
    PushConsumer,
    PushOptions,
    RequesterGone,
)
from cometmq.client.trace import Pub, SubAfter, SubBefore, TraceRecord, decode_trace
from cometmq.peers.clients.javaclient import MqAdmin
from cometmq.peers.clients.programs import ClientProgram
from cometmq.peers.cluster import Cluster
from cometmq.peers.content import create_topic, named
from cometmq.peers.processes import wait_until

pytestmark = pytest.mark.compat

DEADLINE_S = 120
STATISTICS_TIMEOUT_S = 120.0
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"


@pytest.fixture(scope="module", params=["comet", "java"])
def cluster(request: pytest.FixtureRequest, running: Callable[[str], Cluster]) -> Cluster:
    """Run against both implementations even in the short form: no other test covers the client."""
    return running(request.param)


@pytest.fixture(scope="module")
def mqadmin(cluster: Cluster) -> Iterator[MqAdmin]:
    with MqAdmin(cluster.namesrv_addr) as session:
        wait_until(
            lambda: "V4_9_4" in session.run("clusterList").output,
            STATISTICS_TIMEOUT_S,
            "statistics",
        )
        yield session


class Receiver:
    """A listener that keeps messages and signals when enough have arrived."""

    def __init__(self, count: int, *, failures: int = 0) -> None:
        self.messages: list[MessageExt] = []
        self.refused = 0
        self._count = count
        self._failures = failures
        self._enough = asyncio.Event()

    async def __call__(self, messages: list[MessageExt]) -> ConsumeResult:
        if messages[0].reconsume_times < self._failures:
            self.refused += 1
            return ConsumeResult.later(1)
        self.messages += messages
        if len(self.messages) >= self._count:
            self._enough.set()
        return ConsumeResult.SUCCESS

    async def wait(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await self._enough.wait()


def _consumer(
    cluster: Cluster, group: str, topic: str, listener: object, **options: object
) -> PushConsumer:
    wanted = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET, **options)  # type: ignore[arg-type]
    consumer = PushConsumer(group, cluster.namesrv_addr, listener=listener, options=wanted)  # type: ignore[arg-type]
    consumer.subscribe(topic)
    return consumer


# -- traces -----------------------------------------------------------------------------------


async def test_mqadmin_reads_our_traces(
    cluster: Cluster, mqadmin: MqAdmin, topic: str, group: str
) -> None:
    receiver = Receiver(1)
    options = ProducerOptions(trace=True)
    async with (
        _consumer(cluster, group, topic, receiver, trace=True),
        Producer("OwnTracer", cluster.namesrv_addr, options=options) as producer,
    ):
        sent = await producer.send(Message(topic, b"traced", tag="TagA", keys="own-trace"))
        await receiver.wait()
    output = await asyncio.to_thread(_traced, mqadmin, sent.message_id)
    pub, sub = (line.split() for line in output.splitlines() if "success" in line)
    assert (pub[0], pub[1]) == ("Pub", "OwnTracer")
    assert (sub[0], sub[1]) == ("Sub", group)


def _traced(mqadmin: MqAdmin, message_id: str) -> str:
    """Return the output of queryMsgTraceById once the traces of both clients are indexed."""
    answers: list[str] = []

    def is_there() -> bool:
        answers.append(mqadmin.run("queryMsgTraceById", "-i", message_id).output)
        return answers[-1].count("success") == 2

    wait_until(is_there, DEADLINE_S, f"trace of {message_id}")
    return answers[-1]


async def test_we_read_traces_of_java(
    cluster: Cluster, java: ClientProgram, topic: str, group: str
) -> None:
    server = {"namesrv": cluster.namesrv_addr, "topic": topic}
    sending = {"key": "traced", "size": 50, "group": "JavaTracer", "trace": "true", "stay_s": 300}
    with (
        java.start("send", **sending, **server) as producer,
        # The consumer waits for a second message: on exit it would lose its last traces.
        java.start("consume", group=group, count=2, trace="true", **server),
    ):
        await asyncio.to_thread(producer.wait_for, "sent")
        (sent,) = producer.events("sent")
        records = await _records(cluster, sent["msg_id"], 3)
    pub, before, after = (
        next(record for record in records if isinstance(record, kind))
        for kind in (Pub, SubBefore, SubAfter)
    )
    assert isinstance(pub, Pub)
    assert isinstance(before, SubBefore)
    assert isinstance(after, SubAfter)
    assert (pub.group, pub.topic, pub.tag, pub.keys) == ("JavaTracer", topic, "TagA", "traced-0")
    assert (pub.offset_message_id, pub.is_success) == (sent["offset_msg_id"], True)
    assert pub.body_bytes == 50
    assert pub.store_host == cluster.broker_addrs[0]
    assert (before.group, before.request_id) == (group, after.request_id)
    assert (after.is_success, after.keys) == (True, "traced-0")


async def _records(cluster: Cluster, message_id: str, count: int) -> list[TraceRecord]:
    async with AdminClient(cluster.namesrv_addr) as admin, asyncio.timeout(DEADLINE_S):
        while True:
            messages = await admin.query_by_key(TRACE_TOPIC, message_id)
            records = [record for message in messages for record in decode_trace(message.body)]
            found = [record for record in records if record.message_id == message_id]
            if len(found) >= count:
                return found
            await asyncio.sleep(0.1)


# -- requests ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["java-4", pytest.param("java-5", marks=pytest.mark.slow)])
async def test_java_answers_our_requests(
    cluster: Cluster, clients: dict[str, ClientProgram], topic: str, group: str, version: str
) -> None:
    program = clients[version]
    with program.start(
        "reply", namesrv=cluster.namesrv_addr, topic=topic, group=group, count=3
    ) as replier:
        await asyncio.to_thread(replier.wait_for, "started")
        async with Producer("OwnRequester", cluster.namesrv_addr) as producer:
            replies = [
                await producer.request(Message(topic, b"ask-0", keys="0"), 30_000),
                await producer.request(Message(topic, b"ask-1", keys="1"), 30_000, argument="k"),
                await producer.request(
                    Message(topic, b"ask-2", keys="2"),
                    30_000,
                    queue=(await producer.queues(topic))[0],
                ),
            ]
        await asyncio.to_thread(replier.finish)
    assert [reply.body for reply in replies] == [b"re:ask-0", b"re:ask-1", b"re:ask-2"]


async def test_we_answer_requests_of_java(
    cluster: Cluster, java: ClientProgram, topic: str, group: str
) -> None:
    async with Producer("OwnReplier", cluster.namesrv_addr) as producer:

        async def answer(messages: list[MessageExt]) -> None:
            for message in messages:
                await producer.reply(message, b"re:" + message.body)

        async with _consumer(cluster, group, topic, answer):
            events = await asyncio.to_thread(
                java.run, "request", namesrv=cluster.namesrv_addr, topic=topic, count=3
            )
    replied = named(events, "replied")
    assert [event["text"] for event in replied] == [f"re:ask-{number}" for number in range(3)]


async def test_a_request_without_a_replier_ends_in_time(cluster: Cluster, topic: str) -> None:
    async with Producer("OwnRequester", cluster.namesrv_addr) as producer:
        with pytest.raises(NoReply, match=r"no reply to the request .* in 300 ms"):
            await producer.request(Message(topic, b"hello?"), 300)


async def test_a_reply_to_a_disconnected_requester_is_refused(
    cluster: Cluster, topic: str, group: str
) -> None:
    """The broker answers with code 1, although it has stored the reply."""
    received: list[MessageExt] = []
    async with Producer("OwnRequester", cluster.namesrv_addr) as requester:
        with pytest.raises(NoReply):
            await requester.request(Message(topic, b"x"), 5_000)  # also for the send
    arrived = asyncio.Event()

    async def listener(messages: list[MessageExt]) -> None:
        received.extend(messages)
        arrived.set()

    async with _consumer(cluster, group, topic, listener), asyncio.timeout(DEADLINE_S):
        await arrived.wait()
    async with Producer("OwnReplier", cluster.namesrv_addr) as replier:
        with pytest.raises(RequesterGone, match="is not connected to") as caught:
            await replier.reply(received[0], b"too late")
    assert caught.value.offset_message_id


# -- namespaces -------------------------------------------------------------------------------


@pytest.fixture
def tenant(cluster: Cluster, topic: str) -> str:
    name = "Tenant" + topic[-3:].replace("%", "")
    create_topic(cluster.namesrv_addr, cluster.broker_addrs, f"{name}%{topic}")
    return name


async def test_java_reads_our_messages_in_a_namespace(
    cluster: Cluster, java: ClientProgram, topic: str, group: str, tenant: str
) -> None:
    options = ProducerOptions(namespace=tenant)
    async with Producer("OwnTenant", cluster.namesrv_addr, options=options) as producer:
        result = await producer.send(Message(topic, b"x", keys="own"))
        await producer.send_batch([Message(topic, b"y", keys="batched")])
    assert result.queue.topic == topic
    events = await asyncio.to_thread(
        java.run,
        "consume",
        namesrv=cluster.namesrv_addr,
        topic=topic,
        group=group,
        namespace=tenant,
        count=2,
    )
    assert {event["key"] for event in named(events, "received")} == {"own", "batched"}


async def test_we_read_messages_of_java_in_a_namespace(
    cluster: Cluster, java: ClientProgram, topic: str, group: str, tenant: str
) -> None:
    server = {"namesrv": cluster.namesrv_addr, "topic": topic}
    await asyncio.to_thread(java.run, "send", key="mine", namespace=tenant, **server)
    await asyncio.to_thread(java.run, "send", key="not-mine", **server)
    receiver = Receiver(1, failures=1)
    consumer = _consumer(cluster, group, topic, receiver, namespace=tenant)
    async with consumer:
        await receiver.wait()
        assert {queue.topic for queue in consumer.queues} == {topic}
        assert len(await consumer.admin.queues(topic)) == len(consumer.queues)
    (message,) = receiver.messages
    assert (message.keys, message.topic, message.reconsume_times) == (("mine-0",), topic, 1)
    assert message.queue.topic == f"%RETRY%{group}"
    assert receiver.refused == 1
    async with AdminClient(cluster.namesrv_addr) as admin:
        assert f"%RETRY%{tenant}%{group}" in await admin.topics()
        assert f"{tenant}%{group}" in await admin.groups()


async def test_a_group_of_a_namespace_is_shared_with_java(
    cluster: Cluster, java: ClientProgram, topic: str, group: str, tenant: str
) -> None:
    """Clients of both kinds are members of one group: each message is delivered to one of them."""
    receiver = Receiver(1)
    server = {"namesrv": cluster.namesrv_addr, "topic": topic, "namespace": tenant}
    consumer = _consumer(cluster, group, topic, receiver, namespace=tenant)
    async with consumer, asyncio.timeout(DEADLINE_S):
        with java.start("consume", group=group, count=2, **server) as other:
            while len(consumer.queues) != 2:  # noqa: ASYNC110  # of 4
                await asyncio.sleep(0.05)
            options = ProducerOptions(namespace=tenant)
            async with Producer("OwnTenant", cluster.namesrv_addr, options=options) as producer:
                for number, queue in enumerate(await producer.queues(topic)):
                    await producer.send(Message(topic, b"x", keys=f"{number}"), queue=queue)
            events = await asyncio.to_thread(other.finish)
            await receiver.wait()
    theirs = {event["key"] for event in named(events, "received")}
    ours = {key for message in receiver.messages for key in message.keys}
    assert theirs | ours == {"0", "1", "2", "3"}
    assert len(theirs) == 2


# -- message ids ------------------------------------------------------------------------------


async def test_mqadmin_finds_our_messages_by_both_ids(
    cluster: Cluster, mqadmin: MqAdmin, topic: str
) -> None:
    """Given a unique key, the tool searches around the time encoded in the key."""
    async with Producer("OwnIds", cluster.namesrv_addr) as producer:
        sent = await producer.send(Message(topic, b"found", keys="own-id"))

    def by_unique_key() -> bool:
        answer = mqadmin.run("queryMsgByUniqueKey", "-t", topic, "-i", sent.message_id)
        return "own-id" in answer.output

    await asyncio.to_thread(wait_until, by_unique_key, DEADLINE_S, "the index")
    answer = await asyncio.to_thread(mqadmin.run, "queryMsgById", "-i", sent.offset_message_id)
    assert sent.message_id in answer.output


async def test_headers_of_old_clients_are_taken(cluster: Cluster, topic: str) -> None:
    options = ProducerOptions(short_headers=False)
    async with Producer("OwnLong", cluster.namesrv_addr, options=options) as producer:
        sent = await producer.send(Message(topic, b"long", keys="k"))
        found = await producer.admin.view_message(sent.offset_message_id, topic)
    assert (found.body, found.message_id) == (b"long", sent.message_id)
