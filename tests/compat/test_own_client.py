# SPDX-License-Identifier: Apache-2.0
"""Runs our Python client against a Java broker and ours, with the Java client at the other end."""

import asyncio
import hashlib
from collections.abc import Callable, Iterable

import pytest

from cometmq.client import (
    ConsumeFrom,
    ConsumeResult,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    PushOptions,
    SendResult,
    SendStatus,
)
from cometmq.peers.clients.programs import ClientProgram
from cometmq.peers.cluster import Cluster
from cometmq.peers.content import named, received, sent
from cometmq.peers.processes import wait_until

pytestmark = pytest.mark.compat

COUNT = 40
DEADLINE_S = 120


@pytest.fixture(scope="module", params=["comet", "java"])
def cluster(request: pytest.FixtureRequest, running: Callable[[str], Cluster]) -> Cluster:
    """Run against both implementations even in the short form: no other test covers the client."""
    return running(request.param)


def _messages(topic: str, *, count: int = COUNT, size: int = 5000) -> list[Message]:
    return [
        Message(
            topic,
            f"own-{number}: äöü 中文 ".encode() * (size // 50) + _noise(number, size // 2),
            tag="TagA" if number % 2 == 0 else "TagB",
            keys=f"own-{number}",
            properties={"colour": "grün 绿"},
            flag=7,
        )
        for number in range(count)
    ]


def _noise(seed: int, size: int) -> bytes:
    blocks = (hashlib.sha256(b"%d %d" % (seed, n)).digest() for n in range(size // 32))
    return b"".join(blocks)


def _digests(messages: Iterable[Message]) -> dict[str, str]:
    """Return the SHA-256 of each body by key."""
    return {str(message.keys): hashlib.sha256(message.body).hexdigest() for message in messages}


async def _send_each(producer: Producer, messages: list[Message]) -> list[SendResult]:
    return [await producer.send(message) for message in messages]


async def _send_ordered(producer: Producer, messages: list[Message]) -> list[SendResult]:
    return [
        await producer.send_ordered(message, number % 4) for number, message in enumerate(messages)
    ]


async def _send_batches(producer: Producer, messages: list[Message]) -> list[SendResult]:
    return [await producer.send_batch(batch) for batch in producer.split_batch(messages)]


async def _send_oneway(producer: Producer, messages: list[Message]) -> list[SendResult]:
    for message in messages:
        await producer.send_oneway(message)
    return []


WAYS = {
    "one by one": _send_each,
    "ordered": _send_ordered,
    "batches": _send_batches,
    "oneway": _send_oneway,
}


@pytest.mark.parametrize("way", WAYS)
async def test_the_java_client_receives_what_our_producer_sent(
    cluster: Cluster, java: ClientProgram, topic: str, group: str, way: str
) -> None:
    """The test compares SHA-256 digests of bodies, as well as tags, flags and properties."""
    messages = _messages(topic)
    async with Producer(f"{group}Producer", cluster.namesrv_addr) as producer:
        results = await WAYS[way](producer, messages)
    assert {result.status for result in results} <= {SendStatus.SEND_OK}

    printed = java.run(
        "consume", namesrv=cluster.namesrv_addr, topic=topic, group=group, count=COUNT
    )

    arrived = {event["key"]: event for event in named(printed, "received")}
    assert received(printed) == _digests(messages)
    assert {key: event["tag"] for key, event in arrived.items()} == {
        str(message.keys): message.tag for message in messages
    }
    assert {(event["colour"], event["flag"]) for event in arrived.values()} == {("grün 绿", 7)}


async def test_send_results_name_the_places(
    cluster: Cluster, java: ClientProgram, topic: str, group: str
) -> None:
    messages = _messages(topic, count=8, size=200)
    async with Producer(f"{group}Producer", cluster.namesrv_addr) as producer:
        results = await _send_each(producer, messages)

    ids = ",".join(result.offset_message_id for result in results)
    viewed = java.run("view", namesrv=cluster.namesrv_addr, topic=topic, ids=ids)

    assert received(viewed) == _digests(messages)
    for event, result in zip(named(viewed, "received"), results, strict=True):
        assert event["asked"] == result.offset_message_id
        assert event["msg_id"] == result.message_id
        assert (event["queue_id"], event["queue_offset"]) == (
            result.queue.queue_id,
            result.queue_offset,
        )


class Collector:
    """A listener that keeps messages and signals when all expected ones have arrived."""

    def __init__(self, wanted: set[str], *, fail_first: int = 0) -> None:
        self._missing = set(wanted)
        self._fail_first = fail_first
        self.messages: list[MessageExt] = []
        self.refused: list[MessageExt] = []
        self.complete = asyncio.Event()

    async def __call__(self, messages: list[MessageExt]) -> ConsumeResult:
        if messages[0].reconsume_times < self._fail_first:
            self.refused += messages
            return ConsumeResult.RECONSUME_LATER
        self.messages += messages
        self._missing -= {key for message in messages for key in message.keys}
        if not self._missing:
            self.complete.set()
        return ConsumeResult.SUCCESS

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of each body by key."""
        return {
            message.keys[0]: hashlib.sha256(message.body).hexdigest() for message in self.messages
        }

    async def wait(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await self.complete.wait()


def _consumer(
    cluster: Cluster, group: str, topic: str, listener: Collector, tags: str = "*"
) -> PushConsumer:
    consumer = PushConsumer(
        group,
        cluster.namesrv_addr,
        listener=listener,
        options=PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET),
    )
    consumer.subscribe(topic, tags)
    return consumer


async def _send_by_java(
    cluster: Cluster, java: ClientProgram, topic: str, **options: object
) -> dict[str, str]:
    options = {"count": COUNT, "size": 5000, "key": "java", "tags": "TagA,TagB", **options}
    return sent(
        await asyncio.to_thread(
            java.run, "send", namesrv=cluster.namesrv_addr, topic=topic, **options
        )
    )


@pytest.mark.parametrize("mode", ["sync", "batch"])
async def test_our_push_consumer_receives_what_java_sent(
    cluster: Cluster, java: ClientProgram, topic: str, group: str, mode: str
) -> None:
    wanted = await _send_by_java(cluster, java, topic, mode=mode)
    listener = Collector(set(wanted))

    async with _consumer(cluster, group, topic, listener):
        await listener.wait()

    assert listener.digests() == wanted
    assert len(listener.messages) == COUNT
    assert {message.properties["colour"] for message in listener.messages} == {"grün 绿"}


async def test_our_push_consumer_filters_by_tag(
    cluster: Cluster, java: ClientProgram, topic: str, group: str
) -> None:
    wanted = await _send_by_java(cluster, java, topic)
    half = {key: digest for number, (key, digest) in enumerate(wanted.items()) if number % 2}
    listener = Collector(set(half))

    async with _consumer(cluster, group, topic, listener, "TagB || TagC"):
        await listener.wait()

    assert listener.digests() == half


async def test_a_message_that_our_consumer_refuses_comes_back(
    cluster: Cluster, java: ClientProgram, topic: str, group: str
) -> None:
    """The message is redelivered through the broker's retry topic, ten seconds later."""
    wanted = await _send_by_java(cluster, java, topic, count=3)
    listener = Collector(set(wanted), fail_first=1)

    async with _consumer(cluster, group, topic, listener):
        await listener.wait()

    assert listener.digests() == wanted
    assert {message.topic for message in listener.messages} == {topic}
    assert {message.reconsume_times for message in listener.messages} == {1}
    assert len(listener.refused) == len(wanted)


async def test_our_consumer_shares_with_a_java_consumer(
    cluster: Cluster, java: ClientProgram, topic: str, group: str
) -> None:
    """Clients of both kinds are members of one group: each message is delivered to one of them."""
    theirs = java.start(
        "consume",
        namesrv=cluster.namesrv_addr,
        topic=topic,
        group=group,
        count=10_000,
        timeout_s=900,
    )
    listener = Collector({"never"})
    with theirs:
        async with _consumer(cluster, group, topic, listener) as ours:
            await asyncio.to_thread(theirs.wait_for, "started")
            await _until(lambda: len(ours.queues) == 2, "half of the queues")
            wanted = await _send_by_java(cluster, java, topic)
            await _until(
                lambda: len(listener.digests() | received(theirs.events())) == COUNT,
                "every message at one of the two",
            )

    assert listener.digests() | received(theirs.events()) == wanted
    assert listener.messages
    assert theirs.events("received")


async def test_progress_of_our_consumer_is_known_to_the_java_client(
    cluster: Cluster, java: ClientProgram, topic: str, group: str
) -> None:
    first = await _send_by_java(cluster, java, topic, key="first")
    listener = Collector(set(first))
    async with _consumer(cluster, group, topic, listener):
        await listener.wait()
    second = await _send_by_java(cluster, java, topic, key="second")

    printed = java.run(
        "consume", namesrv=cluster.namesrv_addr, topic=topic, group=group, count=COUNT
    )

    assert received(printed) == second


async def _until(condition: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(wait_until, condition, DEADLINE_S, what)
