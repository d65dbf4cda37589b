# SPDX-License-Identifier: Apache-2.0
"""Push consumers: a listener receives messages as soon as they are stored."""

import asyncio
from collections.abc import Collection
from contextlib import AsyncExitStack
from typing import Final, TypeVar

import msgspec

from cometmq.client.application_calls import (
    ABANDONED_ADVICE,
    CANCEL_GRACE_MS,
    check_function,
)
from cometmq.client.arguments import redelivery_level, timestamp, whole
from cometmq.client.clock import wall_ms
from cometmq.client.cluster.instance import ClientInstance
from cometmq.client.consume.delivery.deliveries import Delivery, OrderlyDelivery
from cometmq.client.consume.delivery.send_back import SENT_BACK, DropsFailed, SendBack
from cometmq.client.consume.delivery.stalls import Stalls
from cometmq.client.consume.group_consumer import GroupConsumer
from cometmq.client.consume.membership import Membership
from cometmq.client.consume.queues.first_offsets import QueueOffsets
from cometmq.client.consume.queues.locks import QueueLocks
from cometmq.client.consume.queues.offsets import OffsetStore
from cometmq.client.consume.queues.owned import OwnedQueues
from cometmq.client.consume.queues.parts import ConsumerParts
from cometmq.client.consume.queues.rebalance import AllocateStrategy
from cometmq.client.errors import InvalidArgument
from cometmq.client.listener import (
    AnyCaller,
    ConsumeResult,
    ConsumeWatch,
    Listener,
    ListenerCaller,
    OrderlyListener,
    OrderlyResult,
)
from cometmq.client.log import AnyLog
from cometmq.client.message import MessageExt, check_received
from cometmq.client.settings import CONCURRENCY_MAX, MessageModel, PushOptions
from cometmq.client.subscriptions import ExpressionType, MessageSelector, subscription
from cometmq.client.transfer.puller import Puller, PullStyle
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.names import ALL_TAGS, RETRY_PREFIX, retry_topic

_CLEAN_INTERVAL_MAX_MS: Final = 60_000

R = TypeVar("R", ConsumeResult, OrderlyResult)


class Pushing:
    """Assembles the parts of a running push consumer, and starts and stops them in order."""

    def __init__(
        self,
        parts: ConsumerParts,
        options: PushOptions,
        strategy: AllocateStrategy,
        listener: Listener | OrderlyListener,
        watch: ConsumeWatch | None,
    ) -> None:
        self._parts = parts
        self._options = options
        self.rates = parts.rates
        self.failed = (
            DropsFailed(parts.group, parts.instance.log)
            if parts.is_broadcasting
            else SendBack.of_group(parts.instance, parts.group, options)
        )
        """Takes the messages that were not consumed."""
        self._lost: asyncio.Queue[Collection[MessageQueue]] = asyncio.Queue()
        """The queues whose locks another member has taken."""
        locks = None
        if options.orderly and not parts.is_broadcasting:
            locks = QueueLocks(parts, lost=self._lost.put_nowait)
        self._caller: AnyCaller
        self._delivery: Delivery | OrderlyDelivery
        if options.orderly:
            self._caller = orderly = self._caller_of(listener, watch, OrderlyResult.SUCCESS)
            self._delivery = OrderlyDelivery(parts, orderly, self.failed, locks, options)
        else:
            self._caller = concurrent = self._caller_of(listener, watch, ConsumeResult.SUCCESS)
            self._delivery = Delivery(
                parts, concurrent, self.failed, batch_count_max=options.batch_count_max
            )
        parts.stack.callback(self._caller.close)
        style = PullStyle(
            count_max=options.pull_count_max,
            suspend_ms=options.suspend_ms,
            timeout_ms=options.pull_timeout_ms,
            has_subscription=options.post_subscription_when_pull,
            is_lite=False,
            commits=not parts.is_broadcasting,
        )
        puller = Puller(parts.instance, parts.group, style)
        self.queues = OwnedQueues(parts, self._delivery, puller, locks)
        self.member = Membership(parts, self.queues, strategy, caller=self._caller)

    def _caller_of(
        self, listener: Listener | OrderlyListener, watch: ConsumeWatch | None, success: R
    ) -> ListenerCaller[R]:
        return ListenerCaller(
            listener,
            success,
            group=self._parts.group,
            thread_count=CONCURRENCY_MAX,
            log=self._parts.instance.log,
            watch=watch,
            client=self._parts.callbacks.client,
        )

    async def start(self) -> None:
        """Rebalance, and start pulling and delivering."""
        background = self._parts.background
        self._delivery.resize(self._options.concurrency)
        await self.member.begin()
        self.queues.start()
        background.keep(self._keep_offsets, name="persist-offsets")
        background.keep(self._begin_lost_anew, name="locks-lost")
        stalls = Stalls(
            self._caller, stuck_ms=self._options.stuck_listener_ms, log=self._parts.instance.log
        )
        background.keep(stalls.run, name="stalls")
        if not self._parts.is_broadcasting:
            background.keep(self._return_late, name="return-late")

    async def stop(self) -> None:
        """Stop pulling, wait for the listener, and store the offsets."""
        log, group = self._parts.instance.log, self._parts.group
        await self.member.end()
        await self.queues.stop()
        running_count = await self._delivery.stop(self._options.drain_ms)
        if running_count:
            log.warning(
                "consumer.undrained",
                group=group,
                running_count=running_count,
                drain_ms=self._options.drain_ms,
            )
        await self.queues.close(is_drained=not running_count)
        # A listener may suppress its cancellation. Its queues are disowned, so no result counts.
        left_count = await self._parts.background.close_within(CANCEL_GRACE_MS / 1000)
        if left_count and (calling_count := len(self._caller.begins_ms)):
            log.warning(
                "listener.abandoned",
                group=group,
                listener=self._caller.name,
                running_count=calling_count,
                advice=ABANDONED_ADVICE,
            )

    def resize(self, concurrency: int) -> None:
        """Change the number of concurrent listener calls."""
        self._delivery.resize(concurrency)

    async def reset_to(self, timestamp_ms: int) -> None:
        """Continue consuming all owned queues from a timestamp."""
        bounds = QueueOffsets(self._parts.instance)
        for topic in tuple(self.member.topics):
            queues = self.queues.of_topic(topic)
            offsets = {queue: await bounds.at(queue, timestamp_ms) for queue in queues}
            await self.member.reset_offsets(topic, offsets)

    async def _keep_offsets(self) -> None:
        while True:
            await asyncio.sleep(self._options.persist_offset_interval_ms / 1000)
            await self.queues.store()

    async def _begin_lost_anew(self) -> None:
        """Drop queues that another member has locked; rebalancing takes back our share."""
        parts = self._parts
        while True:
            lost = await self._lost.get()
            parts.instance.log.warning("locks.lost", group=parts.group, count=len(lost))
            await self.queues.drop(lost, is_lost=True)
            parts.rebalance.set()

    async def _return_late(self) -> None:
        timeout_ms = self._options.consume_timeout_ms
        while True:
            await asyncio.sleep(min(timeout_ms, _CLEAN_INTERVAL_MAX_MS) / 1000)
            for process_queue in self.queues.process_queues:
                await self._delivery.give_back_late(process_queue, timeout_ms=timeout_ms)


class ConsumerStats(msgspec.Struct, frozen=True):
    """Counters of a consumer since it was started."""

    consumed_count: int
    failed_count: int


class PushConsumer(GroupConsumer[PushOptions, Pushing]):
    """Calls a listener with the messages of its topics; the members of a group share the queues.

    A message is consumed when the listener returns. If the listener raises, or returns
    `ConsumeResult.RECONSUME_LATER`, the message is redelivered later. If the option `orderly` is
    set, the messages of a queue are delivered one list at a time, and the listener returns
    `OrderlyResult`.
    """

    OPTIONS = PushOptions

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
        """Use the name servers in `namesrv`; if it is empty, use the option `namesrv`."""
        super().__init__(
            group,
            namesrv,
            options=options,
            strategy=strategy,
            offsets=offsets,
            log=log,
        )
        check_function(listener, "listener", "messages")
        self._listener = listener
        if self.options.message_model is MessageModel.CLUSTERING:
            retry = retry_topic(self._full_group)
            self._subscriptions[retry] = subscription(retry, version_ms=wall_ms())

    # -- subscriptions ------------------------------------------------------------------------

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

        All members of a group must have the same subscriptions, because a broker keeps only one per
        group and topic: members with a different one would miss messages. A member that sees a
        different subscription logs `subscription.mismatched`.
        """
        self._subscribe(self._topic(topic), expression, kind)

    # -- life ---------------------------------------------------------------------------------

    async def _enter(self, stack: AsyncExitStack) -> ClientInstance:
        if all(topic.startswith(RETRY_PREFIX) for topic in self._subscriptions):
            raise InvalidArgument(
                "this consumer has no subscription: call `consumer.subscribe(topic)` before the "
                "start"
            )
        return await super()._enter(stack)

    def _assemble(self, parts: ConsumerParts, watch: ConsumeWatch | None) -> Pushing:
        return Pushing(parts, self.options, self._strategy, self._listener, watch)

    # -- while running ------------------------------------------------------------------------

    def suspend(self) -> None:
        """Stop pulling; messages already pulled are still consumed."""
        self._started().queues.suspend(is_suspended=True)

    def resume(self) -> None:
        """Pull again after `suspend`."""
        self._started().queues.suspend(is_suspended=False)

    def resize(self, concurrency: int) -> None:
        """Change the number of concurrent listener calls (Java's updateCorePoolSize)."""
        self._started().resize(whole(concurrency, "concurrency", low=1, high=CONCURRENCY_MAX))

    async def send_message_back(self, message: MessageExt, delay_level: int = 0) -> bool:
        """Redeliver a message, or make it a dead letter (level -1); False if no broker took it."""
        check_received(message)
        level = redelivery_level(delay_level, level_max=self.options.delay_level_max)
        return await self._started().failed.send_back(message, level, SENT_BACK)

    async def reset_to_timestamp(self, timestamp_ms: int) -> None:
        """Continue consuming all owned queues from a timestamp (Java's resetOffsetByTimeStamp).

        Each queue continues with the message stored nearest to the timestamp; for the current time,
        this is the newest message, which is then redelivered.
        """
        await self._started().reset_to(timestamp(timestamp_ms))

    def stats(self) -> ConsumerStats:
        """Return the counters."""
        if self._work is None:
            return ConsumerStats(0, 0)
        return ConsumerStats(*self._work.rates.counts())
