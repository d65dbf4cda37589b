# SPDX-License-Identifier: Apache-2.0
"""Shared parts of client tests: a recording listener and log, a consumer, messages."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from cometmq.client.consume.push_consumer import PushConsumer
from cometmq.client.message import Message, MessageExt
from cometmq.client.produce.producer import Producer
from cometmq.client.settings import ConsumeFrom, PushOptions
from cometmq.client.testing.cluster import MemoryCluster
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.message.flags import SysFlag
from cometmq.remoting.message.new_message import NewMessage

FIRST: Final = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET)
QUEUE_0: Final = MessageQueue("T", "broker-a", 0)
UNREADABLE: Final = b"not compressed"


class Recorder:
    """A listener that records its messages and returns results chosen by the test."""

    def __init__(self, answer: Callable[[list[MessageExt]], Any] = lambda _: None) -> None:
        """`answer`, a function or coroutine function, returns the result."""
        self.lists: list[list[MessageExt]] = []
        self._answer = answer

    async def __call__(self, messages: list[MessageExt]) -> Any:
        """Record the messages and return the result."""
        self.lists.append(messages)
        result = self._answer(messages)
        return await result if isinstance(result, Awaitable) else result

    @property
    def bodies(self) -> list[bytes]:
        """The received bodies, in order."""
        return [message.body for messages in self.lists for message in messages]

    @property
    def messages(self) -> list[MessageExt]:
        """The received messages, in order."""
        return [message for messages in self.lists for message in messages]


class Gated:
    """A listener whose calls wait until the test opens its gate."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.running = self.most = 0

    async def __call__(self, messages: list[MessageExt]) -> None:
        """Wait for the gate."""
        self.running += 1
        self.most = max(self.most, self.running)
        await self.gate.wait()
        self.running -= 1


class KeptEvents:
    """A log that keeps its events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []

    def debug(self, event: str, /, **facts: object) -> None:
        """Keep the event."""
        self.events.append((event, facts))

    info = warning = error = debug

    def of(self, event: str) -> list[dict[str, object]]:
        """Return what was told with each such event."""
        return [facts for name, facts in self.events if name == event]


def logged(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    """Return the logged lines of an event."""
    lines = [record.getMessage() for record in caplog.records]
    return [line for line in lines if line.split(maxsplit=1)[:1] == [event]]


async def send(cluster: MemoryCluster, *messages: Message, queue: MessageQueue = QUEUE_0) -> None:
    """Send messages to one queue."""
    async with Producer("pg", cluster.namesrv) as producer:
        for message in messages:
            await producer.send(message, queue=queue)


def texts(count: int, **fields: Any) -> list[Message]:
    """Return messages of the topic T with the bodies 0, 1, 2 and so on."""
    return [Message("T", b"%d" % number, **fields) for number in range(count)]


def store(cluster: MemoryCluster, body: bytes, *, sys_flag: int = 0, key: str = "") -> None:
    """Store a message of the topic T without a client and a route."""
    broker = cluster.broker
    broker.store(
        NewMessage(
            topic="T",
            queue_id=0,
            flag=0,
            sys_flag=sys_flag,
            born_timestamp=0,
            born_host=broker.store_host,
            store_host=broker.store_host,
            body=body,
            properties=f"KEYS\x01{key}\x02" if key else "",
        )
    )


def store_unreadable(cluster: MemoryCluster) -> None:
    """Store a message that clients never send: marked as compressed, with a body that is not."""
    store(cluster, UNREADABLE, sys_flag=int(SysFlag.COMPRESSED))


def consumer_of(
    cluster: MemoryCluster, listener: Any, options: PushOptions = FIRST, **more: Any
) -> PushConsumer:
    """Return a consumer of the topic T in the group cg."""
    consumer = PushConsumer("cg", cluster.namesrv, listener=listener, options=options, **more)
    consumer.subscribe("T")
    return consumer
