# SPDX-License-Identifier: Apache-2.0
"""Push consumers: a listener receives messages as soon as they are stored."""

from contextlib import AsyncExitStack

import msgspec

from cometmq.client.arguments import redelivery_level, timestamp, whole
from cometmq.client.clock import wall_ms
from cometmq.client.cluster.instance import ClientInstance
from cometmq.client.constructors import explaining
from cometmq.client.consume.delivery.observation import ConsumeWatch
from cometmq.client.consume.delivery.send_back import SENT_BACK
from cometmq.client.consume.group_consumer import GroupConsumer
from cometmq.client.consume.pushing import Pushing
from cometmq.client.consume.queues.offsets import OffsetStore
from cometmq.client.consume.queues.parts import ConsumerParts
from cometmq.client.consume.queues.rebalance import AllocateStrategy
from cometmq.client.errors import InvalidArgument
from cometmq.client.functions import check_function
from cometmq.client.listener import Listener, OrderlyListener
from cometmq.client.log import AnyLog
from cometmq.client.message import MessageExt, check_received
from cometmq.client.settings import CONCURRENCY_MAX, MessageModel, PushOptions
from cometmq.client.subscriptions import ExpressionType, MessageSelector, subscription
from cometmq.remoting.names import ALL_TAGS, RETRY_PREFIX, retry_topic


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
        """Redeliver a message through the group's retry topic, or make it a dead letter (level -1).

        Return whether a broker accepted it.
        """
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
        return ConsumerStats(*self._work.counts())
