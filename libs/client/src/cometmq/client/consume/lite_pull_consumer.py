# SPDX-License-Identifier: Apache-2.0
"""Lite pull consumers: the application polls for messages, or iterates over them."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType, TracebackType
from typing import Any, Final, Generic, TypeVar

from cometmq.client.application_calls import check_function
from cometmq.client.arguments import timestamp, whole, whole_or
from cometmq.client.cluster.lifecycle import ClientState
from cometmq.client.consume.group_consumer import GroupConsumer
from cometmq.client.consume.polling import Polling, QueuesChanged
from cometmq.client.consume.queues.parts import ConsumerParts
from cometmq.client.consume.queues.reader import Reader
from cometmq.client.errors import ClientStateError, InvalidArgument, shown
from cometmq.client.listener import ConsumeWatch
from cometmq.client.message import MessageExt, check_topic
from cometmq.client.settings import LitePullOptions
from cometmq.client.subscriptions import ExpressionType, MessageSelector
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.names import ALL_TAGS

T = TypeVar("T")


class Steps(AsyncIterator[T], Generic[T]):
    """Iterates over what a function returns, until it returns None.

    After `asyncio.timeout` around a step, or an error, the next step goes on.
    """

    def __init__(
        self, begin: Callable[[], object], step: Callable[[], Awaitable[T | None]]
    ) -> None:
        """Call `begin`, which may raise, before the first step."""
        self._begin: Callable[[], object] | None = begin
        self._step = step

    async def __anext__(self) -> T:
        if self._begin is not None:
            self._begin()
            self._begin = None
        found = await self._step()
        if found is None:
            raise StopAsyncIteration
        return found


SUBSCRIBE_OR_ASSIGN: Final = (
    "a consumer either subscribes to topics, whose queues the group shares, or is assigned queues: "
    "call `subscribe` or `assign`, not both"
)
ASSIGN_FIRST: Final = (
    "call `assign` before the start, that is, before `async with` (of cometmq.client.sync: `with`):"
    " this consumer has already been started. An AdminClient or a producer returns the queues of a "
    "topic before that: `queues(topic)`"
)


class LitePullConsumer(GroupConsumer[LitePullOptions, Polling]):
    """Prefetches messages, and returns them on request: `async for message in consumer`.

    It either subscribes to topics, whose queues are shared among the group, or is assigned queues.
    A message counts as consumed when the next one is requested, by `commit`, and when `async with`
    ends without an exception. `close` itself does not commit the messages returned last, because
    it is also called after a failure.
    """

    OPTIONS = LitePullOptions
    _SUFFIX = "STREAM"

    _assigned: list[MessageQueue] | None = None
    _watched: Mapping[str, QueuesChanged] = MappingProxyType({})
    _is_finishing = False

    # -- what to read -------------------------------------------------------------------------

    def subscribe(
        self,
        topic: str,
        expression: str | MessageSelector = ALL_TAGS,
        *,
        kind: ExpressionType = ExpressionType.TAG,
    ) -> None:
        """Receive messages of a topic that match the tags `A || B`, or a selector.

        May also be called while the consumer is running. If a broker refuses a condition, `start`
        raises; in a running consumer, the refusal is logged as `subscription.refused`.
        """
        topic = self._topic(topic)
        if self._assigned is not None:
            raise ClientStateError(SUBSCRIBE_OR_ASSIGN)
        self._subscribe(topic, expression, kind)

    def assign(
        self,
        queues: MessageQueue | Iterable[MessageQueue],
        expression: str | MessageSelector = ALL_TAGS,
    ) -> None:
        """Read exactly the given queue or queues, without rebalancing.

        Must be called before `start`, that is, before `async with`; until then, `queues` of an
        AdminClient or a producer returns the queues of a topic. To read other queues later, make
        another consumer.
        """
        if self._subscriptions and self._assigned is None:
            raise ClientStateError(SUBSCRIBE_OR_ASSIGN)
        if self.state is not ClientState.CREATE_JUST:
            raise ClientStateError(ASSIGN_FIRST)
        self._assigned = self._full_names(queues)
        for queue in self._assigned:
            self._subscriptions[queue.topic] = self._wanted(queue.topic, expression)

    def on_queues_changed(self, topic: str, callback: QueuesChanged) -> None:
        """Call a function with all queues of a topic whenever they change.

        Must be called before `start`. Meant for consumers that use `assign`, which are not
        rebalanced. Changes after the start are reported, and so is the creation of the topic;
        `queues_of` returns the current queues.
        """
        self._check_unstarted()
        check_topic(topic)
        check_function(callback, "on_queues_changed", "topic", "queues")
        self._watched = {**self._watched, self._namespace.wrap(topic): callback}

    # -- life ---------------------------------------------------------------------------------

    def _assemble(self, parts: ConsumerParts, watch: ConsumeWatch | None) -> Polling:
        return Polling(
            parts,
            self.options,
            self._strategy,
            watch,
            assigned=self._assigned,
            watched=self._watched,
        )

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close; after an exception, the last returned messages are not committed."""
        if self._work is not None:
            self._work.is_committing = exc_type is None
        await super().__aexit__(exc_type, exc, traceback)

    # -- messages -----------------------------------------------------------------------------

    async def poll(self, timeout_ms: int | None = None) -> list[MessageExt]:
        """Return messages from one queue, or an empty list if none arrive in time.

        The messages returned by the previous call now count as consumed. Only one call may wait at
        a time.
        """
        wait_ms = whole_or(self.options.poll_timeout_ms, timeout_ms, "timeout_ms", low=0)
        return await self._readable().poll(wait_ms)

    async def next_message(self, timeout_ms: int | None = None) -> MessageExt | None:
        """Return a message, None if none comes in time; the one before counts as consumed."""
        wait_ms = whole_or(self.options.poll_timeout_ms, timeout_ms, "timeout_ms", low=0)
        messages = await self._readable().poll(wait_ms, count_max=1)
        return messages[0] if messages else None

    def __aiter__(self) -> AsyncIterator[MessageExt]:
        """Yield messages until `finish`; each counts as consumed when the next is requested."""
        return Steps(self._readable, lambda: self._following(self.next_message))

    def batches(self) -> AsyncIterator[list[MessageExt]]:
        """Yield lists as `poll` does; each counts as consumed when the next is requested."""
        return Steps(self._readable, lambda: self._following(self.poll))

    async def _following(self, request: Callable[[], Awaitable[T | None]]) -> T | None:
        """Request until something arrives; return None after `finish`."""
        if self.state is ClientState.RUNNING:
            self._polled().settle()  # no request follows `finish`
        while self.state is ClientState.RUNNING and not self._is_finishing:
            found = await request()
            if found:
                return found
        return None

    def finish(self) -> None:
        """End all iterators after the current message or list, which is still committed."""
        self._is_finishing = True
        self._polled().interrupt()

    async def commit(self, queues: MessageQueue | Iterable[MessageQueue] | None = None) -> None:
        """Commit everything returned so far, and wait until it is stored.

        If one or more queues are given, only their offsets are stored; a queue that another
        member now owns is left out. Raise InvalidArgument for a queue that was never assigned to
        this consumer.
        """
        wanted = None if queues is None else self._full_names(queues)
        await self._polled().commit(wanted)

    # -- queues and positions -----------------------------------------------------------------

    def pause(self, queues: MessageQueue | Iterable[MessageQueue]) -> None:
        """Stop pulling from a queue or queues; messages already pulled are still returned."""
        for _, reader in self._readers_of(queues):
            reader.is_paused = True

    def resume(self, queues: MessageQueue | Iterable[MessageQueue]) -> None:
        """Pull from the given queue or queues again."""
        for _, reader in self._readers_of(queues):
            reader.is_paused = False
            reader.progressed()

    def _readers_of(
        self, queues: MessageQueue | Iterable[MessageQueue]
    ) -> list[tuple[MessageQueue, Reader]]:
        """Return the readers of these queues; raise InvalidArgument if one is not assigned."""
        member = self._polled()
        return [(queue, member.reader(queue)) for queue in self._full_names(queues)]

    def _full_names(self, queues: Any) -> list[MessageQueue]:
        if isinstance(queues, MessageQueue):
            queues = [queues]
        if isinstance(queues, str) or not isinstance(queues, Iterable):
            raise InvalidArgument(
                f"queues must be a MessageQueue or a list of them, not {shown(queues)}"
            )
        return [self._namespace.wrap_queue(queue) for queue in queues]

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue from an offset, which the next commit stores; refuse one out of range."""
        await self._polled().seek(self._namespace.wrap_queue(queue), whole(offset, "offset"))

    async def seek_to_begin(self, queue: MessageQueue | Iterable[MessageQueue]) -> None:
        """Continue from the oldest message of each given queue."""
        await self._seek_each(queue, lambda begin, _end: begin)

    async def seek_to_end(self, queue: MessageQueue | Iterable[MessageQueue]) -> None:
        """Continue after the newest message of each given queue."""
        await self._seek_each(queue, lambda _begin, end: end)

    async def _seek_each(
        self, queues: MessageQueue | Iterable[MessageQueue], choose: Callable[[int, int], int]
    ) -> None:
        member = self._polled()
        for queue, _ in self._readers_of(queues):
            await member.seek(queue, choose(*await member.bounds.both(queue)))

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the committed offset of the group, or None if there is none.

        A broker answers 0 for a group without an offset as long as the queue's first message is in
        memory; in that case, `AdminClient.committed_offset` returns None.
        """
        return await self._polled().stored_offset(self._namespace.wrap_queue(queue))

    async def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the message stored nearest to a timestamp.

        For a time after the newest message, this is the newest message's offset.
        """
        queue = self._namespace.wrap_queue(queue)
        return await self._polled().bounds.at(queue, timestamp(timestamp_ms))

    def _readable(self) -> Polling:
        member = self._polled()
        if not self._subscriptions:
            raise ClientStateError(
                "this consumer has nothing to read: call `subscribe(topic)`, or `assign(queues)` "
                "before the start"
            )
        return member

    def _polled(self) -> Polling:
        # `on_assigned` may call `seek` during the start.
        if self.state is ClientState.START_FAILED and self._work is not None:
            return self._work
        return self._started()


def take_back(consumer: LitePullConsumer, found: MessageExt | list[MessageExt] | None) -> None:
    """Take back the result of the last request, whose caller was interrupted."""
    work = consumer._work  # noqa: SLF001  # of this module's class
    if found and work is not None:
        work.take_back(found if isinstance(found, list) else [found])
