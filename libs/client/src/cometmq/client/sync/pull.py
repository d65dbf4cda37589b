# SPDX-License-Identifier: Apache-2.0
"""The blocking pull consumers."""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import ClassVar, Self

from cometmq import client
from cometmq.client.application_calls import contained
from cometmq.client.constructors import explaining
from cometmq.client.consume.queues.rebalance import AllocateStrategy
from cometmq.client.errors import InvalidArgument
from cometmq.client.functions import check_function, is_coroutine_function
from cometmq.client.log import AnyLog
from cometmq.client.message import MessageExt
from cometmq.client.settings import PullOptions
from cometmq.client.subscriptions import ExpressionType, MessageSelector
from cometmq.client.sync.consumers import MemberConsumer, ReadingConsumer
from cometmq.client.sync.loop import loop_thread
from cometmq.client.transfer.puller import Pulled
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.names import ALL_TAGS


class PullConsumer(ReadingConsumer[client.PullConsumer, PullOptions]):
    """Reads any queue from any offset: `consumer.pull(queue, offset)`."""

    INNER = client.PullConsumer
    OPTIONS = PullOptions

    @classmethod
    def around(cls, inner: client.PullConsumer) -> Self:
        """Wrap an existing asynchronous consumer."""
        consumer = cls.__new__(cls)
        MemberConsumer.__init__(consumer, inner)
        return consumer

    def register(self, topic: str) -> None:
        """Take a share of the queues of a topic."""
        self._on_loop(lambda: self._inner.register(topic))

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        count_max: int | None = None,
        expression: str | MessageSelector = ALL_TAGS,
        kind: ExpressionType = ExpressionType.TAG,
    ) -> Pulled:
        """Read a queue from an offset without waiting for messages."""
        return self._run(
            self._inner.pull(queue, offset, count_max=count_max, expression=expression, kind=kind)
        )

    def pull_block_if_not_found(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        count_max: int | None = None,
        expression: str | MessageSelector = ALL_TAGS,
        kind: ExpressionType = ExpressionType.TAG,
    ) -> Pulled:
        """Like `pull`, but wait up to `suspend_ms` for the first message."""
        return self._run(
            self._inner.pull_block_if_not_found(
                queue, offset, count_max=count_max, expression=expression, kind=kind
            )
        )

    def send_message_back(self, message: MessageExt, delay_level: int = 0) -> bool:
        """Redeliver a message through the group's retry topic, or make it a dead letter (level
        -1).
        """
        return self._run(self._inner.send_message_back(message, delay_level))

    def queues_in_balance(self, topic: str) -> list[MessageQueue]:
        """Return this member's share of the queues of a registered topic."""
        return self._run(self._inner.queues_in_balance(topic))

    def fetch_offset(self, queue: MessageQueue, *, from_store: bool = False) -> int | None:
        """Return the offset of the group, or None if it has none.

        A broker answers 0 for a group without an offset as long as the queue's first message is in
        memory; in that case, `AdminClient.committed_offset` returns None.
        """
        return self._run(self._inner.fetch_offset(queue, from_store=from_store))

    def update_offset(self, queue: MessageQueue, offset: int) -> None:
        """Record the consumed offset, which is stored at intervals, by `commit`, and on close.

        An offset beyond the end of the queue, or for a queue that does not exist, is dropped: the
        next `commit` raises InvalidArgument.
        """
        self._on_loop(lambda: self._inner.update_offset(queue, offset))

    def commit(self) -> None:
        """Store all recorded offsets, and wait until they are stored.

        Raise InvalidArgument, after the other offsets are stored, if an offset was dropped because
        it is beyond the end of its queue, or because its queue does not exist.
        """
        self._run(self._inner.commit())

    def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message."""
        return self._run(self._inner.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """Return the exclusive end offset of a queue."""
        return self._run(self._inner.max_offset(queue))

    def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the message stored nearest to a timestamp."""
        return self._run(self._inner.search_offset(queue, timestamp_ms))


PullCallback = Callable[[PullConsumer, MessageQueue], int | None]
"""Pulls from a queue; returns the delay in ms until the next call, or None for 200 ms."""


class _ThreadsPull(client.ScheduledPull):
    _GRACE_MS = None  # a thread cannot be cancelled


class ScheduledPull:
    """Calls a function repeatedly for each owned queue, on other threads."""

    OPTIONS: ClassVar = PullOptions

    @explaining
    def __init__(
        self,
        group: str,
        namesrv: str = "",
        *,
        options: PullOptions | None = None,
        strategy: AllocateStrategy | None = None,
        concurrency: int = 20,
        log: AnyLog = None,
    ) -> None:
        """`concurrency` limits how many calls run at once, over all queues."""
        self._inner = _ThreadsPull(
            group, namesrv, options=options, strategy=strategy, concurrency=concurrency, log=log
        )
        self.consumer = PullConsumer.around(self._inner.consumer)
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="cometmq-pull")

    def register(self, topic: str, callback: PullCallback) -> None:
        """Call `callback` for the owned queues of a topic."""

        check_function(callback, "callback", "consumer", "queue")
        if is_coroutine_function(callback):
            raise InvalidArgument(
                "callback is a coroutine function, but this client calls it on a thread: write "
                "`def callback(consumer, queue)`, or use cometmq.client.ScheduledPull"
            )

        async def call(_: client.PullConsumer, queue: MessageQueue) -> int | None:
            loop = asyncio.get_running_loop()
            run = contextvars.copy_context().run  # the context identifies a callback
            running = loop.run_in_executor(
                self._pool, run, contained, callback, self.consumer, queue
            )
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                await asyncio.wait(
                    [running]
                )  # a thread cannot be cancelled, so its queue waits for it
                raise

        self._inner.register(topic, call)

    def start(self) -> None:
        """Take this member's share of the queues, and start calling the callbacks."""
        loop_thread().run(self._inner.start())

    def close(self) -> None:
        """Start no more calls, wait for running ones, store the offsets, and leave the group."""
        self._inner.consumer.check_outside_calls()
        loop_thread().run(self._inner.close())
        self._pool.shutdown()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
