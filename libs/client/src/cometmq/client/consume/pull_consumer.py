# SPDX-License-Identifier: Apache-2.0
"""Pull consumers: the application chooses the queue and offset of each read, and keeps the offsets.

This is Java's DefaultMQPullConsumer. Java deprecates it in favour of lite pull, but only a pull
consumer can read from any position of any queue without a subscription. A scheduled pull calls a
function repeatedly for each owned queue, as Java's MQPullConsumerScheduleService.
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
from cometmq.client.arguments import redelivery_level, timestamp, whole, whole_or
from cometmq.client.cluster.lifecycle import is_of_parent
from cometmq.client.consume.delivery.send_back import SENT_BACK, SendBack
from cometmq.client.consume.group_consumer import GroupConsumer
from cometmq.client.consume.membership import Membership
from cometmq.client.consume.queues.ownership import RecordedOffsets, Shares
from cometmq.client.consume.queues.parts import ConsumerParts
from cometmq.client.consume.queues.rebalance import AllocateStrategy
from cometmq.client.errors import ClientStateError, InvalidArgument, no_route
from cometmq.client.listener import ConsumeWatch, ListenerError, traced
from cometmq.client.log import AnyLog, LimitedLog, log_of
from cometmq.client.message import MessageExt, check_received, check_topic
from cometmq.client.settings import PullOptions
from cometmq.client.subscriptions import ExpressionType, MessageSelector
from cometmq.client.transfer.pulled import Pulled
from cometmq.client.transfer.puller import Puller, PullStyle
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.errors import TopicNotExist
from cometmq.remoting.names import ALL_TAGS
from cometmq.remoting.transport.tasks import TaskSet, describe


class Pulling:
    """Assembles the parts of a running pull consumer, and serves its pulls."""

    def __init__(
        self, parts: ConsumerParts, options: PullOptions, strategy: AllocateStrategy
    ) -> None:
        self._parts = parts
        self.offsets = RecordedOffsets(parts)
        self._shares = Shares(parts, self.offsets)
        self.member = Membership(parts, self._shares, strategy)
        self.failed = SendBack.of_group(parts.instance, parts.group, options)
        self._puller = self._puller_of(options, 0, options.plain_pull_timeout_ms)
        self._waiting_puller = self._puller_of(options, options.suspend_ms, options.pull_timeout_ms)

    def _puller_of(self, options: PullOptions, suspend_ms: int, timeout_ms: int) -> Puller:
        style = PullStyle(
            count_max=options.pull_count_max,
            suspend_ms=suspend_ms,
            timeout_ms=timeout_ms,
            has_subscription=True,
            is_lite=False,
        )
        return Puller(self._parts.instance, self._parts.group, style)

    async def start(self) -> None:
        """Start rebalancing and storing offsets."""
        await self.member.begin()
        interval_ms = self._parts.options.persist_offset_interval_ms
        self._parts.background.keep(lambda: self.offsets.keep(interval_ms), name="persist-offsets")

    async def stop(self) -> None:
        """Revoke the queues, then store the offsets."""
        await self.member.end()
        await self._shares.revoke()
        await self._parts.background.close()
        for puller in (self._puller, self._waiting_puller):
            puller.close()
        await self.offsets.store()

    async def share_of(self, topic: str) -> list[MessageQueue]:
        """Return our share of a registered topic, rebalancing first if it is not known yet."""
        if self._shares.get(topic) is None and topic in self._parts.subscriptions:
            await self._parts.instance.routes.find(topic)
            await self.member.share()
        return sorted(self._shares.get(topic) or ())

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        wanted: SubscriptionData,
        count_max: int,
        *,
        is_waiting: bool,
    ) -> Pulled:
        """Read a queue from an offset; raise InvalidArgument if the queue does not exist, and
        NoRoute if its topic does not, even if the route was found before the topic was deleted.
        """
        routes = self._parts.instance.routes
        await routes.find_queue(queue)
        puller = self._waiting_puller if is_waiting else self._puller
        try:
            pulled = await puller.pull(
                queue, offset, wanted, commit_offset=None, count_max=count_max
            )
        except TopicNotExist as error:
            self._parts.instance.refreshes.outdated(queue.topic)
            raise no_route(queue.topic, refused_by=[queue.broker_name]) from error
        self.offsets.ends[queue] = pulled.max_offset
        return pulled


class PullConsumer(GroupConsumer[PullOptions, Pulling]):
    """Reads any queue from any offset: `await consumer.pull(queue, offset)`.

    The members of the group share the queues of the topics passed to `register`;
    `queues_in_balance` returns this member's share, and `on_assigned` and `on_revoked` report
    changes.
    """

    OPTIONS = PullOptions

    def register(self, topic: str) -> None:
        """Take a share of the queues of a topic (Java's registerTopics)."""
        self._subscribe(self._topic(topic))

    def _assemble(self, parts: ConsumerParts, watch: ConsumeWatch | None) -> Pulling:
        return Pulling(parts, self.options, self._strategy)

    # -- messages -----------------------------------------------------------------------------

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        count_max: int | None = None,
        expression: str | MessageSelector = ALL_TAGS,
        kind: ExpressionType = ExpressionType.TAG,
    ) -> Pulled:
        """Read a queue from an offset without waiting for messages.

        `status` is the outcome; `next_offset` is always the offset at which to continue.
        """
        return await self._pull(queue, offset, count_max, expression, kind, is_waiting=False)

    async def pull_block_if_not_found(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        count_max: int | None = None,
        expression: str | MessageSelector = ALL_TAGS,
        kind: ExpressionType = ExpressionType.TAG,
    ) -> Pulled:
        """Like `pull`, but wait up to `suspend_ms` for the first message."""
        return await self._pull(queue, offset, count_max, expression, kind, is_waiting=True)

    async def _pull(
        self,
        queue: MessageQueue,
        offset: int,
        count_max: int | None,
        expression: str | MessageSelector,
        kind: ExpressionType,
        *,
        is_waiting: bool,
    ) -> Pulled:
        queue = self._namespace.wrap_queue(queue)
        wanted = self._wanted(queue.topic, expression, kind)
        count = whole_or(self.options.pull_count_max, count_max, "count_max")
        offset = whole(offset, "offset")
        return await self._started().pull(queue, offset, wanted, count, is_waiting=is_waiting)

    async def send_message_back(self, message: MessageExt, delay_level: int = 0) -> bool:
        """Redeliver a message, or make it a dead letter (level -1); False if no broker took it."""
        check_received(message)
        level = redelivery_level(delay_level, level_max=self.options.delay_level_max)
        return await self._started().failed.send_back(message, level, SENT_BACK)

    # -- queues and offsets -------------------------------------------------------------------

    async def queues_in_balance(self, topic: str) -> list[MessageQueue]:
        """Return this member's share of the queues of a registered topic."""
        check_topic(topic)
        share = await self._started().share_of(self._namespace.wrap(topic))
        return [self._namespace.unwrap_queue(queue) for queue in share]

    async def fetch_offset(self, queue: MessageQueue, *, from_store: bool = False) -> int | None:
        """Return the offset of the group, or None if it has none.

        A broker answers 0 for a group without an offset as long as the queue's first message is in
        memory; in that case, `AdminClient.committed_offset` returns None.

        An offset recorded by `update_offset` takes precedence, unless `from_store` is set.
        """
        offsets = self._started().offsets
        return await offsets.find(self._namespace.wrap_queue(queue), from_store=from_store)

    def update_offset(self, queue: MessageQueue, offset: int) -> None:
        """Record the consumed offset, which is stored at intervals, by `commit`, and on close.

        An offset beyond the end of the queue, or for a queue that does not exist, is dropped: the
        next `commit` raises InvalidArgument.
        """
        queue, offset = self._namespace.wrap_queue(queue), whole(offset, "offset")
        self._started().offsets.note(queue, offset)

    async def commit(self) -> None:
        """Store all recorded offsets, and wait until they are stored.

        Raise InvalidArgument, after the other offsets are stored, if an offset was dropped because
        it is beyond the end of its queue, or because its queue does not exist.
        """
        await self._started().offsets.commit()

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message."""
        return await self._started().offsets.bounds.min(self._namespace.wrap_queue(queue))

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the exclusive end offset of a queue."""
        return await self._started().offsets.bounds.max(self._namespace.wrap_queue(queue))

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the message stored nearest to a timestamp."""
        queue = self._namespace.wrap_queue(queue)
        return await self._started().offsets.bounds.at(queue, timestamp(timestamp_ms))


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
