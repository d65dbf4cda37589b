# SPDX-License-Identifier: Apache-2.0
"""Our Python client against a Java broker and ours; the Java client at the other end."""

import hashlib
from collections.abc import Callable, Iterable

import pytest

from cometmq.client import Message, Producer, SendResult, SendStatus
from cometmq.peers.cluster import Cluster
from cometmq.peers.content import create_topic, named, received
from cometmq.peers.programs import ClientProgram

pytestmark = pytest.mark.compat

COUNT = 40


@pytest.fixture(scope="module", params=["comet", "java"])
def server(request: pytest.FixtureRequest, running: Callable[[str], Cluster]) -> Cluster:
    """Both makers, in the short form too: this is the client's own proof."""
    return running(request.param)


@pytest.fixture
def topic(server: Cluster, fresh_name: Callable[[str], str]) -> str:
    """A topic of four queues that no other test uses."""
    name = fresh_name("OwnTopic")
    create_topic(server.namesrv_addr, server.broker_addrs, name)
    return name


def _messages(topic: str, *, count: int = COUNT, size: int = 5000) -> list[Message]:
    """Messages above the compression limit, half text, half noise."""
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
    """Bytes that do not compress, the same for a seed."""
    blocks = (hashlib.sha256(b"%d %d" % (seed, n)).digest() for n in range(size // 32))
    return b"".join(blocks)


def _digests(messages: Iterable[Message]) -> dict[str, str]:
    """SHA-256 of each body by key."""
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
    server: Cluster, java: ClientProgram, topic: str, group: str, way: str
) -> None:
    """Bodies by SHA-256, tags, flags and properties."""
    messages = _messages(topic)
    async with Producer(f"{group}Producer", server.namesrv_addr) as producer:
        results = await WAYS[way](producer, messages)
    assert {result.status for result in results} <= {SendStatus.SEND_OK}

    printed = java.run(
        "consume", namesrv=server.namesrv_addr, topic=topic, group=group, count=COUNT
    )

    arrived = {event["key"]: event for event in named(printed, "received")}
    assert received(printed) == _digests(messages)
    assert {key: event["tag"] for key, event in arrived.items()} == {
        str(message.keys): message.tag for message in messages
    }
    assert {(event["colour"], event["flag"]) for event in arrived.values()} == {("grün 绿", 7)}


async def test_send_results_name_the_places(
    server: Cluster, java: ClientProgram, topic: str, group: str
) -> None:
    """Queue, offset and both ids are those that other clients see."""
    messages = _messages(topic, count=8, size=200)
    async with Producer(f"{group}Producer", server.namesrv_addr) as producer:
        results = await _send_each(producer, messages)

    ids = ",".join(result.offset_message_id for result in results)
    viewed = java.run("view", namesrv=server.namesrv_addr, topic=topic, ids=ids)

    assert received(viewed) == _digests(messages)
    for event, result in zip(named(viewed, "received"), results, strict=True):
        assert event["asked"] == result.offset_message_id
        assert event["msg_id"] == result.message_id
        assert (event["queue_id"], event["queue_offset"]) == (
            result.queue.queue_id,
            result.queue_offset,
        )
