# SPDX-License-Identifier: Apache-2.0
"""The same clients for programs without an event loop: each call waits for its result.

All clients of a process run on one loop, on one thread of their own. Options, messages and
errors are those of `cometmq.client`; listeners are plain functions, called on other threads.
"""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from cometmq import client
from cometmq.client.client_admin import ClientAdmin
from cometmq.client.hooks import ConsumeHook, ForbiddenHook, SendHook
from cometmq.client.listener import Listener
from cometmq.client.message import Message, MessageExt, SendResult
from cometmq.client.offsets import OffsetStore
from cometmq.client.producer import NO_ARGUMENT, ProducerStats
from cometmq.client.push_consumer import ConsumerStats
from cometmq.client.queue_selection import QueueSelector, by_hash
from cometmq.client.rebalance import AllocateStrategy
from cometmq.client.settings import ClientOptions, LitePullOptions, ProducerOptions, PushOptions
from cometmq.client.state import Client
from cometmq.client.subscriptions import ALL, ExpressionType, MessageSelector
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.log import NO_LOG, Log

T = TypeVar("T")
ClientT = TypeVar("ClientT", bound=Client)


class LoopThread:
    """An event loop on a thread of its own, until the process ends."""

    def __init__(self) -> None:
        """Start the thread."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="cometmq-client", daemon=True
        )
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work on the loop and wait for it; an interrupted wait cancels it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise client.ClientStateError("a listener on the loop must not call the sync facade")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


_LOOPS: Final[dict[int, LoopThread]] = {}
_LOOPS_LOCK: Final = threading.Lock()


def loop_thread() -> LoopThread:
    """Return the loop of this process; a child after a fork gets its own."""
    with _LOOPS_LOCK:
        process_id = os.getpid()
        found = _LOOPS.get(process_id)
        if found is None:
            found = _LOOPS[process_id] = LoopThread()
        return found


class SyncClient(Generic[ClientT]):
    """What all clients have: a life, and calls that wait."""

    def __init__(self, inner: ClientT) -> None:
        """Stand before an asynchronous client."""
        self._inner = inner

    @property
    def client_id(self) -> str:
        """The name under which brokers know this client."""
        return self._inner.client_id

    def start(self) -> None:
        """Start; a client starts once."""
        self._run(self._inner.start())

    def close(self) -> None:
        """Let what is under way end, and leave."""
        self._run(self._inner.close())

    def __enter__(self) -> Self:
        """Start."""
        self._run(self._inner.__aenter__())
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        self._run(self._inner.__aexit__(exc_type, exc, traceback))

    @staticmethod
    def _run(work: Coroutine[Any, Any, T]) -> T:
        return loop_thread().run(work)

    def _on_loop(self, function: Callable[[], T]) -> T:
        """Call what is no coroutine, but touches what belongs to the loop."""

        async def call() -> T:
            return function()

        return self._run(call())


WorkerT = TypeVar("WorkerT", client.Producer, client.PushConsumer, client.LitePullConsumer)


class WorkingClient(SyncClient[WorkerT]):
    """What producers and consumers have in common."""

    def call_admin(self, method: Callable[[ClientAdmin], Awaitable[T]]) -> T:
        """Return what an administration call gives: `call_admin(lambda a: a.queues("T"))`."""

        async def call() -> T:
            return await method(self._inner.admin)

        return self._run(call())


class Producer(WorkingClient[client.Producer]):
    """Sends messages; threads may share it."""

    def __init__(
        self,
        group: str,
        namesrv: str = "",
        *,
        options: ProducerOptions | None = None,
        log: Log = NO_LOG,
    ) -> None:
        """Prepare; `namesrv` stands for the option of that name."""
        super().__init__(client.Producer(group, namesrv, options=options, log=log))

    def send(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> SendResult:
        """Store a message and return where."""
        return self._run(self._inner.send(message, queue=queue, timeout_ms=timeout_ms))

    def send_ordered(
        self,
        message: Message,
        argument: Any,
        *,
        selector: QueueSelector = by_hash,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Store a message in the queue that `selector` chooses by `argument`."""
        return self._run(
            self._inner.send_ordered(message, argument, selector=selector, timeout_ms=timeout_ms)
        )

    def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Send a message without learning whether it was stored."""
        self._run(self._inner.send_oneway(message, queue=queue))

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Store messages of one topic in one queue by one request."""
        return self._run(self._inner.send_batch(messages, queue=queue, timeout_ms=timeout_ms))

    def split_batch(
        self, messages: Iterable[Message], *, bytes_max: int | None = None
    ) -> Iterable[list[Message]]:
        """Yield lists of messages that `send_batch` accepts."""
        return self._inner.split_batch(messages, bytes_max=bytes_max)

    def request(
        self,
        message: Message,
        timeout_ms: int | None = None,
        *,
        queue: MessageQueue | None = None,
        argument: Any = NO_ARGUMENT,
        selector: QueueSelector = by_hash,
    ) -> MessageExt:
        """Send a message and return what its consumer replies; NoReply if that takes too long."""
        return self._run(
            self._inner.request(
                message, timeout_ms, queue=queue, argument=argument, selector=selector
            )
        )

    def reply(self, request: MessageExt, body: bytes) -> SendResult:
        """Answer a consumed request; NotARequest if the message is none."""
        return self._run(self._inner.reply(request, body))

    def add_hook(self, hook: SendHook) -> None:
        """Have a hook see every attempt to send; it is called on the clients' thread."""
        self._inner.add_hook(hook)

    def add_forbidden_hook(self, hook: ForbiddenHook) -> None:
        """Have a hook decide whether a message may be sent."""
        self._inner.add_forbidden_hook(hook)

    def new_message_id(self) -> str:
        """Return a unique key for a message that may be sent twice."""
        return self._on_loop(self._inner.new_message_id)

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that messages of a topic may go to."""
        return self._run(self._inner.queues(topic))

    def stats(self) -> ProducerStats:
        """Return what was counted."""
        return self._inner.stats()


class PushConsumer(WorkingClient[client.PushConsumer]):
    """Gives messages to a listener on other threads, between `start` and `close`."""

    def __init__(
        self,
        group: str,
        namesrv: str = "",
        *,
        listener: Listener,
        options: PushOptions | None = None,
        strategy: AllocateStrategy | None = None,
        offsets: OffsetStore | None = None,
        log: Log = NO_LOG,
    ) -> None:
        """Prepare; `namesrv` stands for the option of that name."""
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

    def add_hook(self, hook: ConsumeHook) -> None:
        """Have a hook see every list of messages; it is called on the clients' thread."""
        self._inner.add_hook(hook)

    def subscribe(
        self,
        topic: str,
        expression: str | MessageSelector = ALL,
        *,
        kind: ExpressionType = ExpressionType.TAG,
    ) -> None:
        """Want the messages of a topic with one of the tags `A || B`, or what a selector says."""
        self._on_loop(lambda: self._inner.subscribe(topic, expression, kind=kind))

    def unsubscribe(self, topic: str) -> None:
        """Want no more messages of a topic."""
        self._run(self._inner.unsubscribe(topic))

    def suspend(self) -> None:
        """Pull no more for now."""
        self._on_loop(self._inner.suspend)

    def resume(self) -> None:
        """Pull again."""
        self._on_loop(self._inner.resume)

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that this member has at the moment."""
        return self._on_loop(lambda: self._inner.queues)

    def stats(self) -> ConsumerStats:
        """Return what was counted."""
        return self._on_loop(self._inner.stats)


class LitePullConsumer(WorkingClient[client.LitePullConsumer]):
    """Hands messages over when asked: `for message in consumer`."""

    def __init__(
        self,
        group: str,
        namesrv: str = "",
        *,
        options: LitePullOptions | None = None,
        strategy: AllocateStrategy | None = None,
        offsets: OffsetStore | None = None,
        log: Log = NO_LOG,
    ) -> None:
        """Prepare; `namesrv` stands for the option of that name."""
        super().__init__(
            client.LitePullConsumer(
                group, namesrv, options=options, strategy=strategy, offsets=offsets, log=log
            )
        )

    def add_hook(self, hook: ConsumeHook) -> None:
        """Have a hook see every list of messages; it is called on the clients' thread."""
        self._inner.add_hook(hook)

    def subscribe(
        self,
        topic: str,
        expression: str | MessageSelector = ALL,
        *,
        kind: ExpressionType = ExpressionType.TAG,
    ) -> None:
        """Want the messages of a topic with one of the tags `A || B`, or what a selector says."""
        self._on_loop(lambda: self._inner.subscribe(topic, expression, kind=kind))

    def unsubscribe(self, topic: str) -> None:
        """Want no more messages of a topic."""
        self._run(self._inner.unsubscribe(topic))

    def assign(
        self, queues: Iterable[MessageQueue], expression: str | MessageSelector = ALL
    ) -> None:
        """Read exactly these queues; before the start."""
        self._inner.assign(queues, expression)

    def poll(self, timeout_ms: int | None = None) -> list[MessageExt]:
        """Return some messages of one queue; an empty list if none come in time."""
        return self._run(self._inner.poll(timeout_ms))

    def next_message(self, timeout_ms: int | None = None) -> MessageExt | None:
        """Return one message; None if none comes in time."""
        return self._run(self._inner.next_message(timeout_ms))

    def __iter__(self) -> Iterator[MessageExt]:
        """Yield messages; each counts as consumed when the next is asked for."""
        while True:
            message = self.next_message()
            if message is not None:
                yield message

    def commit(self) -> None:
        """Store that everything returned so far is consumed."""
        self._run(self._inner.commit())

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are read at the moment."""
        return self._on_loop(lambda: self._inner.queues)

    def queues_of(self, topic: str) -> list[MessageQueue]:
        """Return all queues of a topic that can be read."""
        return self._run(self._inner.queues_of(topic))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Pull no more from these queues for now."""
        self._on_loop(lambda: self._inner.pause(queues))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Pull from these queues again."""
        self._on_loop(lambda: self._inner.resume(queues))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at an offset of an own queue."""
        self._run(self._inner.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue at the oldest message."""
        self._run(self._inner.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue behind the newest message."""
        self._run(self._inner.seek_to_end(queue))

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the stored offset of the group; None if there is none."""
        return self._run(self._inner.committed(queue))

    def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the message stored nearest to a moment."""
        return self._run(self._inner.offset_for_timestamp(queue, timestamp_ms))


class AdminClient(SyncClient[client.AdminClient]):
    """Administration: `admin.call(lambda a: a.topics())` calls any method of the other one."""

    def __init__(
        self, namesrv: str = "", *, options: ClientOptions | None = None, log: Log = NO_LOG
    ) -> None:
        """Prepare; `namesrv` stands for the option of that name."""
        super().__init__(client.AdminClient(namesrv, options=options, log=log))

    def call(self, method: Callable[[client.AdminClient], Awaitable[T]]) -> T:
        """Return what a method of the asynchronous admin client returns."""

        async def call() -> T:
            return await method(self._inner)

        return self._run(call())
