# SPDX-License-Identifier: Apache-2.0
"""Scheduled pulls whose callbacks run on threads."""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from cometmq import client
from cometmq.client.application_calls import (
    check_function,
    contained,
    explaining,
    is_coroutine_function,
)
from cometmq.client.consume.queues.rebalance import AllocateStrategy
from cometmq.client.errors import InvalidArgument
from cometmq.client.log import AnyLog
from cometmq.client.settings import PullOptions
from cometmq.client.sync.clients import PullConsumer
from cometmq.client.sync.loop import Lifecycle
from cometmq.remoting.bodies.queues import MessageQueue

PullCallback = Callable[[PullConsumer, MessageQueue], int | None]
"""Pulls from a queue; returns the delay in ms until the next call, or None for 200 ms."""


class _ThreadsPull(client.ScheduledPull):
    _GRACE_MS = None  # a thread cannot be cancelled

    def __init__(self, group: str, namesrv: str, *, concurrency: int, **more: Any) -> None:
        super().__init__(group, namesrv, concurrency=concurrency, **more)
        self.pool = ThreadPoolExecutor(concurrency, thread_name_prefix="cometmq-pull")

    async def close(self) -> None:
        await super().close()
        self.pool.shutdown(wait=False)  # no call is running


class ScheduledPull(Lifecycle):
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
                self._inner.pool, run, contained, callback, self.consumer, queue
            )
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                await asyncio.wait([running])  # the queue waits for its thread
                raise

        self._inner.register(topic, call)
