# SPDX-License-Identifier: Apache-2.0
"""The blocking consumers; listeners are called on other threads."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Generic, TypeVar

from cometmq import client
from cometmq.client.cluster.lifecycle import unusable
from cometmq.client.constructors import explaining
from cometmq.client.consume.group_consumer import GroupConsumer
from cometmq.client.consume.push_consumer import ConsumerStats
from cometmq.client.consume.queues.offsets import OffsetStore
from cometmq.client.consume.queues.rebalance import AllocateStrategy
from cometmq.client.errors import ClientStateError
from cometmq.client.hooks import ConsumeHook
from cometmq.client.listener import Listener, OrderlyListener
from cometmq.client.log import AnyLog
from cometmq.client.message import MessageExt
from cometmq.client.settings import ConsumerOptions, LitePullOptions, PushOptions
from cometmq.client.subscriptions import ExpressionType, MessageSelector
from cometmq.client.sync.loop import loop_thread
from cometmq.client.sync.working import WorkingClient
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.names import ALL_TAGS

GroupT = TypeVar("GroupT", bound=GroupConsumer[Any, Any])
OptionsT = TypeVar("OptionsT", bound=ConsumerOptions)
SubscriberT = TypeVar("SubscriberT", client.PushConsumer, client.LitePullConsumer)
Callback = Callable[[list[MessageQueue]], None]


class MemberConsumer(WorkingClient[GroupT]):
    """The base of all consumers that are group members."""

    def on_assigned(self, callback: Callback) -> Callback:
        """Call a function on another thread with newly assigned queues."""
        return self._inner.on_assigned(callback)

    def on_revoked(self, callback: Callback) -> Callback:
        """Call a function on another thread with revoked queues."""
        return self._inner.on_revoked(callback)

    def add_hook(self, hook: ConsumeHook) -> None:
        """Call a hook before and after each list of messages, on the clients' thread."""
        self._inner.add_hook(hook)

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues assigned to this member."""
        return self._on_loop(lambda: self._inner.queues)

    def queues_of(self, topic: str) -> list[MessageQueue]:
        """Fetch all readable queues of a topic from a name server; new queues are shared among the
        group at once.
        """
        return self._run(self._inner.queues_of(topic))

    def unsubscribe(self, topic: str) -> None:
        """Stop receiving messages of a topic."""
        self._run(self._inner.unsubscribe(topic))


class SubscribingConsumer(MemberConsumer[SubscriberT]):
    """The base of push and lite pull consumers."""

    def subscribe(
        self,
        topic: str,
        expression: str | MessageSelector = ALL_TAGS,
        *,
        kind: ExpressionType = ExpressionType.TAG,
    ) -> None:
        """Receive messages of a topic that match the tags `A || B`, or a selector."""
        self._on_loop(lambda: self._inner.subscribe(topic, expression, kind=kind))


class ReadingConsumer(MemberConsumer[GroupT], Generic[GroupT, OptionsT]):
    """The base of consumers without a listener."""

    INNER: type[GroupT]
    """The asynchronous consumer."""
    OPTIONS: type[OptionsT]

    @explaining
    def __init__(
        self,
        group: str,
        namesrv: str = "",
        *,
        options: OptionsT | None = None,
        strategy: AllocateStrategy | None = None,
        offsets: OffsetStore | None = None,
        log: AnyLog = None,
    ) -> None:
        """Use the name servers in `namesrv`; if it is empty, use the `namesrv` option."""
        super().__init__(
            self.INNER(group, namesrv, options=options, strategy=strategy, offsets=offsets, log=log)
        )


class PushConsumer(SubscribingConsumer[client.PushConsumer]):
    """Calls a listener with messages on other threads, between `start` and `close`."""

    OPTIONS: ClassVar = PushOptions

    @explaining
    def __init__(
        self,
        group: str,
        namesrv: str = "",
        *,
        listener: Listener | OrderlyListener,
        options: PushOptions | None = None,
        strategy: AllocateStrategy | None = None,
        offsets: OffsetStore | None = None,
        log: AnyLog = None,
    ) -> None:
        """Use the name servers in `namesrv`; if it is empty, use the `namesrv` option."""
        super().__init__(
            client.PushConsumer(
                group,
                namesrv,
                listener=listener,
                options=options,
                strategy=strategy,
                offsets=offsets,
                log=log,
            )
        )

    def suspend(self) -> None:
        """Stop pulling."""
        self._on_loop(self._inner.suspend)

    def resume(self) -> None:
        """Resume pulling."""
        self._on_loop(self._inner.resume)

    def resize(self, concurrency: int) -> None:
        """Change the number of concurrent listener calls."""
        self._on_loop(lambda: self._inner.resize(concurrency))

    def send_message_back(self, message: MessageExt, delay_level: int = 0) -> bool:
        """Redeliver a message through the group's retry topic, or make it a dead letter (level
        -1).
        """
        return self._run(self._inner.send_message_back(message, delay_level))

    def reset_to_timestamp(self, timestamp_ms: int) -> None:
        """Continue consuming all owned queues from a timestamp."""
        self._run(self._inner.reset_to_timestamp(timestamp_ms))

    def stats(self) -> ConsumerStats:
        """Return the counters."""
        return self._on_loop(self._inner.stats)


class LitePullConsumer(
    ReadingConsumer[client.LitePullConsumer, LitePullOptions],
    SubscribingConsumer[client.LitePullConsumer],
):
    """Returns messages on request: `for message in consumer`."""

    INNER = client.LitePullConsumer
    OPTIONS = LitePullOptions

    def assign(
        self,
        queues: MessageQueue | Iterable[MessageQueue],
        expression: str | MessageSelector = ALL_TAGS,
    ) -> None:
        """Read exactly the given queue or queues; must be called before `start`."""
        self._inner.assign(queues, expression)

    def on_queues_changed(
        self, topic: str, callback: Callable[[str, list[MessageQueue]], None]
    ) -> None:
        """Call a function on another thread whenever the queues of a topic change."""
        self._inner.on_queues_changed(topic, callback)

    def poll(self, timeout_ms: int | None = None) -> list[MessageExt]:
        """Return messages from one queue, or an empty list if none arrive in time."""
        return self._run(self._inner.poll(timeout_ms))

    def next_message(self, timeout_ms: int | None = None) -> MessageExt | None:
        """Return one message, or None if none arrives in time."""
        return self._run(self._inner.next_message(timeout_ms))

    def __iter__(self) -> Iterator[MessageExt]:
        """Yield messages until `finish`; each counts as consumed when the next is requested."""
        yield from self._iterate(self._inner.__aiter__())

    def batches(self) -> Iterator[list[MessageExt]]:
        """Yield lists as `poll` returns them; each counts as consumed when the next is
        requested.
        """
        yield from self._iterate(self._inner.batches())

    def finish(self) -> None:
        """End all iterators after the current message or list.

        Callable from any thread and from signal handlers, because it never blocks.
        """
        if not self._inner.is_running:
            raise ClientStateError(unusable(self._inner.KIND, self._inner.state))
        loop_thread().soon(self._inner.finish)

    def commit(self, queues: MessageQueue | Iterable[MessageQueue] | None = None) -> None:
        """Commit everything returned so far, or only the offsets of the given queue or queues."""
        self._run(self._inner.commit(queues))

    def pause(self, queues: MessageQueue | Iterable[MessageQueue]) -> None:
        """Stop pulling from the given queue or queues."""
        self._on_loop(lambda: self._inner.pause(queues))

    def resume(self, queues: MessageQueue | Iterable[MessageQueue]) -> None:
        """Pull from the given queue or queues again."""
        self._on_loop(lambda: self._inner.resume(queues))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue from an offset of an assigned queue."""
        self._run(self._inner.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue | Iterable[MessageQueue]) -> None:
        """Continue from the oldest message of each given queue."""
        self._run(self._inner.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue | Iterable[MessageQueue]) -> None:
        """Continue after the newest message of each given queue."""
        self._run(self._inner.seek_to_end(queue))

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the committed offset of the group, or None if there is none.

        A broker answers 0 for a group without an offset as long as the queue's first message is in
        memory; in that case, `AdminClient.committed_offset` returns None.
        """
        return self._run(self._inner.committed(queue))

    def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the message stored nearest to a timestamp."""
        return self._run(self._inner.offset_for_timestamp(queue, timestamp_ms))
