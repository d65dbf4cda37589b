# SPDX-License-Identifier: Apache-2.0
"""Producers: send messages to the queues of topics."""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import msgspec

from cometmq.client.errors import InvalidArgument
from cometmq.client.identity import unique_ids
from cometmq.client.instance import ClientInstance
from cometmq.client.message import Message, SendResult, check_group
from cometmq.client.outgoing import split_messages
from cometmq.client.queue_selection import QueueSelector, by_hash
from cometmq.client.sender import MessageSender
from cometmq.client.settings import ProducerOptions, checked
from cometmq.client.state import Client
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.errors import CometError
from cometmq.remoting.log import NO_LOG, Log

DEFAULT_GROUP: Final = "DEFAULT_PRODUCER"


class ProducerStats(msgspec.Struct, frozen=True):
    """What a producer did so far."""

    sent_count: int
    failed_count: int


class Producer(Client):
    """Sends messages; thousands of sends may wait for their answers at the same time.

    ``async with Producer("group", "127.0.0.1:9876") as producer: await producer.send(message)``
    """

    KIND = "producer"

    def __init__(
        self,
        group: str,
        namesrv: str = "",
        *,
        options: ProducerOptions | None = None,
        log: Log = NO_LOG,
    ) -> None:
        """Prepare; `namesrv` stands for the option of that name."""
        super().__init__()
        check_group(group)
        if group == DEFAULT_GROUP:
            raise InvalidArgument(
                f"producerGroup can not equal {DEFAULT_GROUP}, please specify another one."
            )
        self.group = group
        self.options = checked(options or ProducerOptions(), namesrv)
        self._log = log
        self._sender: MessageSender | None = None
        self._room = asyncio.Semaphore(self.options.pending_sends_max)

    # -- life ---------------------------------------------------------------------------------

    async def _enter(self, stack: AsyncExitStack) -> ClientInstance:
        """Connect to the brokers that the name servers know."""
        instance = await ClientInstance.acquire(self.options, log=self._log)
        stack.push_async_callback(instance.release)
        instance.register_producer(self.group)
        stack.push_async_callback(instance.unregister, producer_group=self.group)
        stack.push_async_callback(self._drain)
        ids = unique_ids(self.options)
        self._sender = MessageSender(instance, self.group, self.options, ids=ids)
        await self._announce(instance)
        self._log.info("producer.started", group=self.group, client_id=instance.client_id)
        return instance

    async def _announce(self, instance: ClientInstance) -> None:
        """Meet the brokers early, so that the first send is quick; they may come later."""
        try:
            await instance.routes.refresh(self.options.default_topic)
            await instance.heartbeat()
        except CometError as error:
            self._log.warning("namesrv.unreachable", error=str(error))

    async def _drain(self) -> None:
        """Take every place of the semaphore: then nobody is sending."""
        try:
            async with asyncio.timeout(self.options.send_timeout_ms / 1000):
                for _ in range(self.options.pending_sends_max):
                    await self._room.acquire()
        except TimeoutError:
            self._log.warning("producer.undrained", group=self.group)

    # -- sending ------------------------------------------------------------------------------

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Store a message and return where; to `queue`, or to one of our choice with retries.

        Raises the broker's CommandError if it refuses, SendFailed after the last attempt,
        InvalidArgument before any.
        """
        sender = self._sending()
        timeout_ms = timeout_ms or self.options.send_timeout_ms
        async with self._room:
            prepared = await sender.outgoing.prepare(message)
            if queue is not None:
                await sender.route(message.topic)
                return await sender.send_to(queue, prepared, timeout_ms=timeout_ms)
            return await sender.send(prepared, timeout_ms=timeout_ms)

    async def send_ordered(
        self,
        message: Message,
        argument: Any,
        *,
        selector: QueueSelector = by_hash,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Store a message in the queue that `selector` chooses by `argument`; no retries.

        Messages of one argument keep their order if each is awaited before the next is sent.
        """
        sender = self._sending()
        async with self._room:
            prepared = await sender.outgoing.prepare(message)
            route = await sender.route(message.topic)
            queue = sender.choose_by(selector, route, message, argument)
            return await sender.send_to(
                queue, prepared, timeout_ms=timeout_ms or self.options.send_timeout_ms
            )

    async def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Send a message without learning whether it was stored."""
        sender = self._sending()
        async with self._room:
            prepared = await sender.outgoing.prepare(message)
            route = await sender.route(message.topic)
            await sender.send_oneway(
                queue or sender.choose(route), prepared, timeout_ms=self.options.send_timeout_ms
            )

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Store messages of one topic in one queue by one request: all of them or none.

        All have the same `wait_store_ok` and no delay level; together they are at most
        `body_bytes_max` long (`split_batch` makes such lists). They are not compressed.
        """
        sender = self._sending()
        timeout_ms = timeout_ms or self.options.send_timeout_ms
        async with self._room:
            prepared = sender.outgoing.prepare_batch(messages)
            if queue is not None:
                await sender.route(prepared.topic)
                return await sender.send_to(queue, prepared, timeout_ms=timeout_ms)
            return await sender.send(prepared, timeout_ms=timeout_ms)

    def split_batch(
        self, messages: Iterable[Message], *, bytes_max: int | None = None
    ) -> Iterable[list[Message]]:
        """Yield lists of messages that `send_batch` accepts, in order."""
        return split_messages(messages, bytes_max=bytes_max or self.options.body_bytes_max)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that messages of a topic may go to."""
        route = await self._sending().route(topic)
        return list(route.publish_queues)

    def stats(self) -> ProducerStats:
        """Return what was counted."""
        sender = self._sender
        if sender is None:
            return ProducerStats(0, 0)
        return ProducerStats(sender.sent_count, sender.failed_count)

    def _sending(self) -> MessageSender:
        self._running()
        assert self._sender is not None
        return self._sender
