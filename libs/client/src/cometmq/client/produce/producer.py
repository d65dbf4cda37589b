# SPDX-License-Identifier: Apache-2.0
"""Producers, which send messages to the queues of topics."""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, Final

import msgspec

from cometmq.client.admin import ClientAdmin
from cometmq.client.application_calls import check_hook
from cometmq.client.arguments import whole, whole_or
from cometmq.client.clock import TimeLimit
from cometmq.client.cluster.instance import ClientInstance
from cometmq.client.cluster.lifecycle import Client
from cometmq.client.errors import ClientStateError, InvalidArgument, NoReply, SendFailed, shown
from cometmq.client.hooks import ForbiddenHook, SendHook, SendHooks
from cometmq.client.log import AnyLog
from cometmq.client.message import Message, MessageExt, SendResult, check_group, check_topic
from cometmq.client.namespace import namespace_of, unique_ids
from cometmq.client.option_checks import checked
from cometmq.client.request_reply import reply_message, request_properties
from cometmq.client.settings import ProducerOptions
from cometmq.client.trace.hooks import SendTraceHook, producer_trace
from cometmq.client.transfer.outgoing import Prepared, properties_bytes, split_messages
from cometmq.client.transfer.queue_selection import QueueSelector, by_hash
from cometmq.client.transfer.sender import MessageSender
from cometmq.client.turns import Room
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.commands.send import RecallMessage
from cometmq.remoting.message.recall_handle import RecallHandle
from cometmq.remoting.names import DEFAULT_PRODUCER_GROUP

NO_ARGUMENT: Final = object()
"""Marks a request without a selector argument; its queue is chosen as for any other message."""

_CLOSED_UNANSWERED: Final = (
    "this producer was closed before the reply to the request arrived: the request is stored, and "
    "a consumer may have served it"
)


class ProducerStats(msgspec.Struct, frozen=True):
    """Counters of a producer since it was started."""

    sent_count: int
    """Requests that a broker accepted, and one-way requests sent; a batch counts as one."""
    failed_count: int
    """Sends that were refused, or failed with SendFailed; a batch counts as one."""


class Producer(Client):
    """Sends messages; thousands of sends may be in flight at the same time.

    `async with Producer("group", "127.0.0.1:9876") as producer: await producer.send(message)`
    """

    KIND = "producer"
    OPTIONS: type[ProducerOptions] = ProducerOptions

    def __init__(
        self,
        group: str,
        namesrv: str = "",
        *,
        options: ProducerOptions | None = None,
        log: AnyLog = None,
    ) -> None:
        """Use the name servers in `namesrv`; if it is empty, use the `namesrv` option."""
        super().__init__(log)
        check_group(group)
        if group == DEFAULT_PRODUCER_GROUP:
            raise InvalidArgument(
                f"{DEFAULT_PRODUCER_GROUP} is reserved: give the producer group a name of its own"
            )
        self.group = group
        """The group's name, without the namespace."""
        given = ProducerOptions() if options is None else options
        self.options = checked(given, namesrv, kind=ProducerOptions)
        self._namespace = namespace_of(self.options)
        self._full_group = self._namespace.wrap(group)
        check_group(self._full_group)
        self._hooks: list[SendHook] = []
        self._forbidden_hooks: list[ForbiddenHook] = []
        self._trace: SendTraceHook | None = None
        self._sender: MessageSender | None = None
        self._room = Room(self.options.pending_sends_max)
        self._replies: set[asyncio.Future[MessageExt]] = set()  # awaited by requests

    def add_hook(self, hook: SendHook) -> None:
        """Call a hook before and after every attempt to send; add it before `start`."""
        self._check_unstarted()
        check_hook(hook, "before_send", "after_send")
        self._hooks.append(hook)

    def add_forbidden_hook(self, hook: ForbiddenHook) -> None:
        """Add a hook that may reject messages; add it before `start`."""
        self._check_unstarted()
        check_hook(hook, "check")
        self._forbidden_hooks.append(hook)

    # -- life ---------------------------------------------------------------------------------

    async def _enter(self, stack: AsyncExitStack) -> ClientInstance:
        """Connect to the brokers in the routes."""
        instance = await ClientInstance.acquire(self.options, log=self._log)
        stack.push_async_callback(instance.release)
        instance.members.add_producer(self._full_group)
        stack.push_async_callback(instance.unregister, producer_group=self._full_group)
        hooks = self._hooks
        if self.options.trace:
            self._trace = await producer_trace(instance, self.group, self.options, stack)
            hooks = [*hooks, self._trace]
        stack.push_async_callback(self._drain)
        self._sender = MessageSender(
            instance,
            self._full_group,
            self.options,
            ids=unique_ids(self.options),
            hooks=SendHooks(hooks, self._forbidden_hooks, self._log),
        )
        await self._announce(instance)
        self._log.info("producer.started", group=self.group, client_id=instance.client_id)
        return instance

    async def _announce(self, instance: ClientInstance) -> None:
        """Send heartbeats early, so that the first send is fast; failures are retried later."""
        await instance.routes.refresh_all([self.options.default_topic])
        await instance.heartbeats.send()

    async def _drain(self) -> None:
        """Wait for sends in flight and replies to requests; fail the remaining requests."""
        try:
            async with asyncio.timeout(self.options.send_timeout_ms / 1000):
                await self._room.wait_empty()
                if self._replies:
                    await asyncio.wait(self._replies)
        except TimeoutError:
            running_count = self._room.count + len(self._replies)
            self._log.warning("producer.undrained", group=self.group, running_count=running_count)
        for reply in self._replies:
            if not reply.done():
                reply.set_exception(ClientStateError(_CLOSED_UNANSWERED))

    # -- sending ------------------------------------------------------------------------------

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send a message and return where it is stored.

        Without `queue`, the producer chooses a queue; after a failure, it retries at another
        broker. Raise InvalidArgument, before the first attempt, for a message that cannot be sent;
        the broker's CommandError or a forbidden hook's error, if either refuses the message; and
        SendFailed after the last attempt. If the error's `may_be_stored` is true, a broker may have
        the message.
        """
        sender = self._sending()
        timeout_ms = whole_or(self.options.send_timeout_ms, timeout_ms, "timeout_ms")
        prepared = sender.outgoing.prepare(message)
        async with self._room:
            await sender.outgoing.compress(prepared)
            chosen = None if queue is None else self._queue_for(queue, prepared)
            return await sender.send(prepared, TimeLimit.from_now(timeout_ms), queue=chosen)

    def _queue_for(self, queue: MessageQueue, prepared: Prepared) -> MessageQueue:
        """Return the queue with its topic's full name; refuse a queue of another topic."""
        queue = self._namespace.wrap_queue(queue)
        if queue.topic != prepared.topic:
            raise InvalidArgument(
                f"the queue belongs to the topic {queue.topic}, the message is for {prepared.topic}"
            )
        return queue

    async def send_ordered(
        self,
        message: Message,
        argument: Any,
        *,
        selector: QueueSelector = by_hash,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send a message, without retries, to the queue that `selector` chooses by `argument`.

        Messages with the same argument keep their order if each send is awaited before the next.
        """
        sender = self._sending()
        timeout_ms = whole_or(self.options.send_timeout_ms, timeout_ms, "timeout_ms")
        prepared = sender.outgoing.prepare(message)
        async with self._room:
            await sender.outgoing.compress(prepared)
            limit = TimeLimit.from_now(timeout_ms)
            route = await sender.route_once(prepared.topic, limit)
            queue = sender.queues.choose_by(selector, route, prepared.messages[0], argument)
            return await sender.send(prepared, limit, queue=queue)

    async def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Send a message without an acknowledgement.

        Raise InvalidArgument if the topic does not have `queue`, because the broker's refusal would
        never arrive. For the same reason, until a broker is known to have the topic, wait for the
        broker's answer as `send` does, and raise NoRoute if the topic does not exist.
        """
        sender, routes = self._sending(), self._running().routes
        prepared = sender.outgoing.prepare(message)
        async with self._room:
            await sender.outgoing.compress(prepared)
            limit = TimeLimit.from_now(self.options.send_timeout_ms)
            route = await sender.route_once(prepared.topic, limit)
            chosen = None if queue is None else self._queue_for(queue, prepared)
            if not routes.is_created(prepared.topic):
                await sender.send(prepared, limit, queue=chosen)
                return
            if chosen is None:
                chosen = sender.queues.choose(route)
            elif not route.has(chosen) and chosen.broker_name in route.queue_counts:
                await routes.find_queue(chosen)  # a broker that is not in the route may come back
            await sender.send_oneway(chosen, prepared, limit)

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Store messages of one topic in one queue with a single request: all of them or none.

        All must have the same `wait_store_ok` and no delay level, and their total size must not
        exceed `body_bytes_max`; `split_batch` makes such lists. Batches are not compressed.
        """
        sender = self._sending()
        timeout_ms = whole_or(self.options.send_timeout_ms, timeout_ms, "timeout_ms")
        prepared = sender.outgoing.prepare_batch(messages)
        async with self._room:
            chosen = None if queue is None else self._queue_for(queue, prepared)
            return await sender.send(prepared, TimeLimit.from_now(timeout_ms), queue=chosen)

    def split_batch(
        self, messages: Iterable[Message], *, bytes_max: int | None = None
    ) -> Iterable[list[Message]]:
        """Split messages into lists that `send_batch` accepts, keeping their order.

        A change of the topic or of `wait_store_ok` begins a new list. The iteration raises
        InvalidArgument for a message that no batch may contain.
        """
        limit = self.options.body_bytes_max
        if bytes_max is not None:
            limit = whole(bytes_max, "bytes_max", low=1, high=limit)
        added_bytes = properties_bytes(self.options, self._namespace)
        return split_messages(messages, bytes_max=limit, added_bytes=added_bytes)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that accept messages; raise NoRoute if no broker has it.

        A topic that sending would create does not exist before the first message is stored. From
        then on, until a name server knows it, return its queues on the brokers that stored its
        messages.
        """
        check_topic(topic)
        route = await self._sending().route(self._namespace.wrap(topic), may_create=False)
        return [self._namespace.unwrap_queue(queue) for queue in route.publish_queues]

    def new_message_id(self) -> str:
        """Return a unique key for `Message.message_id`, for messages that may be resent."""
        return self._sending().outgoing.next_id()

    @property
    def admin(self) -> ClientAdmin:
        """Admin calls over this producer's connections: topics, offsets, messages by id."""
        return ClientAdmin(self._running(), self._log)

    # -- requests -----------------------------------------------------------------------------

    async def request(
        self,
        message: Message,
        timeout_ms: int | None = None,
        *,
        queue: MessageQueue | None = None,
        argument: Any = NO_ARGUMENT,
        selector: QueueSelector = by_hash,
    ) -> MessageExt:
        """Send a message and return its consumer's reply.

        The message goes to `queue`, to the queue that `selector` chooses by `argument`, or else to
        a queue that the producer chooses. Raise NoReply if the request is stored but no reply
        arrives in time; other failures raise the same errors as `send`.
        """
        timeout_ms = whole_or(self.options.send_timeout_ms, timeout_ms, "timeout_ms")
        limit = TimeLimit.from_now(timeout_ms)
        sender, instance = self._sending(), self._running()
        pending = instance.members.replies.expect(count_max=self.options.pending_requests_max)
        async with pending as (correlation_id, reply):
            extra = request_properties(correlation_id, self.client_id, timeout_ms)
            prepared = sender.outgoing.prepare(message, extra=extra)
            try:
                async with self._room:
                    await sender.outgoing.compress(prepared)
                    route = await sender.route_once(prepared.topic, limit)
                    await _be_known(instance, limit)
                    if argument is not NO_ARGUMENT:
                        chooser = sender.queues.choose_by
                        queue = chooser(selector, route, prepared.messages[0], argument)
                    elif queue is not None:
                        queue = self._queue_for(queue, prepared)
                    await sender.send(prepared, limit, queue=queue)
            except SendFailed:
                if not reply.done():  # the request may have been served, and only its answer lost
                    raise
            self._replies.add(reply)
            reply.add_done_callback(self._replies.discard)
            with suppress(TimeoutError):
                async with asyncio.timeout(limit.left_ms() / 1000):
                    return await reply
        topic = prepared.messages[0].topic
        raise NoReply(
            f"no reply to the request to the topic {topic} in {timeout_ms} ms: it is "
            f"stored, but no consumer of the topic has replied in time"
        )

    async def reply(self, request: MessageExt, body: bytes) -> SendResult:
        """Reply to a consumed request; raise NotARequest for any other message.

        Raise RequesterGone if the requester has ended or lost its connection: a broker has stored
        the reply, but no client waits for it.
        """
        return await self.send(reply_message(request, body))

    async def recall(self, sent: SendResult, *, timeout_ms: int | None = None) -> None:
        """Keep a delayed message that still waits from being delivered; `sent` is the result of
        its send.

        Raise IllegalOperation if it is due or was delivered; a broker of RocketMQ 4.x raises
        RequestCodeNotSupported.
        """
        if not isinstance(sent, SendResult):
            raise InvalidArgument(f"sent must be the SendResult of a send, not {shown(sent)}")
        instance, place = self._running(), self._namespace.wrap_queue(sent.queue)
        timeout_ms = whole_or(self.options.send_timeout_ms, timeout_ms, "timeout_ms")
        handle = RecallHandle(place.topic, place.broker_name, 0, sent.message_id).encode()
        header = RecallMessage(place.topic, handle, self._full_group)
        address = instance.master(place.broker_name)
        await instance.remoting.invoke(
            address, RequestCode.RECALL_MESSAGE, header, timeout_ms=timeout_ms
        )

    def stats(self) -> ProducerStats:
        """Return the counters."""
        sender = self._sender
        if sender is None:
            return ProducerStats(0, 0)
        return ProducerStats(sender.sent_count, sender.failed_count)

    def _sending(self) -> MessageSender:
        self._running()
        assert self._sender is not None
        return self._sender


async def _be_known(instance: ClientInstance, limit: TimeLimit) -> None:
    """Wait until every broker can route a reply to us, but for at most half of the remaining time.

    A broker that hangs must not use up all of it, because the request may go to another broker.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(limit.left_ms() / 2000):
            await instance.heartbeats.be_known()
