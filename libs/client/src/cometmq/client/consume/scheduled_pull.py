# SPDX-License-Identifier: Apache-2.0
"""Scheduled pulls: call a function repeatedly for each owned queue.

This is the counterpart of Java's MQPullConsumerScheduleService.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, ClassVar, Final, Self

from cometmq.client.application_calls import (
    ABANDONED_ADVICE,
    CANCEL_GRACE_MS,
    calling,
    check_function,
    original,
)
from cometmq.client.arguments import whole, whole_or
from cometmq.client.cluster.lifecycle import is_of_parent
from cometmq.client.consume.pull_consumer import PullConsumer
from cometmq.client.consume.queues.rebalance import AllocateStrategy
from cometmq.client.errors import ClientStateError, InvalidArgument
from cometmq.client.listener import ListenerError, traced
from cometmq.client.log import AnyLog, LimitedLog, log_of
from cometmq.client.message import check_topic
from cometmq.client.settings import PullOptions
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.transport.tasks import TaskSet, describe

PullCallback = Callable[[PullConsumer, MessageQueue], Awaitable[int | None]]
"""Pulls from a queue; returns the delay in ms until the next call, or None for 200 ms."""

DELAY_MS: Final = 200


class ScheduledPull:
    """Shares the queues of topics among the group, and calls a function for each owned queue.

    Each queue has at most one call at a time, which is cancelled when the queue is revoked.
    """

    OPTIONS: ClassVar = PullOptions
    _GRACE_MS: ClassVar[int | None] = CANCEL_GRACE_MS
    """Time limit for cancelled calls to end; None means no limit."""

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
        self.consumer = PullConsumer(group, namesrv, options=options, strategy=strategy, log=log)
        self.consumer.on_assigned(self._assigned)
        self.consumer.on_revoked(self._revoked)
        self._callbacks: dict[str, PullCallback] = {}
        self._tasks: dict[MessageQueue, asyncio.Task[None]] = {}
        self._started = asyncio.Event()
        self._slots = asyncio.Semaphore(whole(concurrency, "concurrency", low=1))
        self._log = LimitedLog(log_of(log))
        self._background = TaskSet(self._log)

    def register(self, topic: str, callback: PullCallback) -> None:
        """Call `callback` for the owned queues of a topic."""
        check_function(callback, "callback", "consumer", "queue")
        check_topic(topic)
        if topic in self._callbacks:
            raise ClientStateError(f"the topic {topic} already has a callback")
        self._callbacks[topic] = callback
        self.consumer.register(topic)

    async def _assigned(self, queues: list[MessageQueue]) -> None:
        for queue in queues:
            name = f"pull-{queue.topic}-{queue.queue_id}"
            self._tasks[queue] = self._background.keep(partial(self._run, queue), name=name)

    async def _revoked(self, queues: list[MessageQueue]) -> None:
        tasks = [task for queue in queues if (task := self._tasks.pop(queue, None)) is not None]
        for task in tasks:
            task.cancel()
        if not tasks:
            return
        timeout_s = None if self._GRACE_MS is None else self._GRACE_MS / 1000
        _, late = await asyncio.wait(tasks, timeout=timeout_s)
        if late:
            self._log.warning(
                "callback.abandoned",
                group=self.consumer.group,
                callback="register",
                running_count=len(late),
                advice=ABANDONED_ADVICE,
            )

    async def _run(self, queue: MessageQueue) -> None:
        callback = self._callbacks[queue.topic]
        await self._started.wait()  # queues are assigned before the consumer can be used
        while True:
            async with self._slots:
                delay_s = await self._call(callback, queue)
            await asyncio.sleep(delay_s)

    async def _call(self, callback: PullCallback, queue: MessageQueue) -> float:
        """Call the function; return the seconds until its next call, even after a failure."""
        try:
            with calling(self.consumer, "the callback"):
                delay_ms = await _awaitable(callback(self.consumer, queue))
            return whole_or(DELAY_MS, delay_ms, "the delay that a callback returns", low=0) / 1000
        except Exception as error:  # noqa: BLE001  # application code: called again later
            cause = original(error)
            self._failed(queue, error=describe(cause), exc_info=traced(cause))
        return DELAY_MS / 1000

    def _failed(self, queue: MessageQueue, **facts: object) -> None:
        self._log.warning(
            "callback.failed",
            group=self.consumer.group,
            callback="register",
            topic=queue.topic,
            queue_id=queue.queue_id,
            **facts,
        )

    async def start(self) -> None:
        """Take this member's share of the queues, and start calling the callbacks."""
        if not self._callbacks:
            raise InvalidArgument("nothing to pull: call `register(topic, callback)` first")
        await self.consumer.start()
        self._started.set()

    async def close(self) -> None:
        """Cancel the calls, store the offsets, and leave the group; not allowed in a callback."""
        self.check_outside_calls()
        await self._revoked(list(self._tasks))
        await self.consumer.close()

    def check_outside_calls(self) -> None:
        """Raise ClientStateError if called from a callback."""
        self.consumer.check_outside_calls()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close, unless this is a forked child."""
        if not is_of_parent(self.consumer):
            await self.close()


def _awaitable(called: Any) -> Awaitable[int | None]:
    if not isinstance(called, Awaitable):
        raise ListenerError(
            "the callback is a plain function: declare it with `async def`, or use "
            "cometmq.client.sync.ScheduledPull, which calls plain functions on threads"
        )
    return called
