# SPDX-License-Identifier: Apache-2.0
"""A member of a consumer group with a listener: what is behind a push consumer."""

from collections.abc import Mapping
from typing import Final

from cometmq.client.background import described
from cometmq.client.clock import monotonic_ms
from cometmq.client.delivery import Delivery
from cometmq.client.identity import unique_ids
from cometmq.client.instance import ClientInstance
from cometmq.client.listener import ConsumeResult, ListenerCaller
from cometmq.client.member import CONSUME_PASSIVELY, GroupMember
from cometmq.client.message import MessageExt, received
from cometmq.client.offsets import OffsetStore
from cometmq.client.process_queue import ProcessQueue
from cometmq.client.puller import PullStyle
from cometmq.client.readers import Limits
from cometmq.client.rebalance import AllocateStrategy
from cometmq.client.send_back import SendBack
from cometmq.client.sender import MessageSender
from cometmq.client.settings import ClientOptions, ProducerOptions, PushOptions
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.bodies.running_info import ConsumeMessageDirectlyResult
from cometmq.remoting.message.record import MessageRecord

INNER_PRODUCER: Final = "CLIENT_INNER_PRODUCER"
_CLEAN_INTERVAL_MAX_MS: Final = 60_000


class PushGroup(GroupMember):
    """A member whose messages go to a listener."""

    CONSUME_TYPE = CONSUME_PASSIVELY

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        *,
        options: PushOptions,
        subscriptions: Mapping[str, SubscriptionData],
        caller: ListenerCaller,
        offsets: OffsetStore,
        strategy: AllocateStrategy,
    ) -> None:
        """Assemble the parts; nothing runs before `start`."""
        self._options = options
        self._is_suspended = False
        super().__init__(
            instance,
            group,
            options=options,
            subscriptions=subscriptions,
            offsets=offsets,
            strategy=strategy,
        )
        self._caller = caller
        sender = MessageSender(
            instance, INNER_PRODUCER, _producer_options(options), ids=unique_ids(options)
        )
        send_back = SendBack(
            instance, group, sender, max_reconsume_times=options.max_reconsume_times
        )
        self._delivery = Delivery(
            caller,
            send_back,
            batch_count_max=options.batch_count_max,
            consumed=self._left,
            rates=self._rates,
            log=self._log,
        )

    async def start(self) -> None:
        """Share the queues, and begin to pull and to deliver."""
        self._delivery.start(self._background, concurrency=self._options.concurrency)
        await self._begin_sharing()
        self._background.keep(self._keep_offsets, name="persist-offsets")
        self._background.keep(self._return_late, name="return-late")

    async def stop(self) -> None:
        """Pull no more, wait for the listener, and store the offsets."""
        self._readers.stop()
        if not await self._delivery.stop(self._options.drain_ms):
            self._log.warning("consumer.undrained", group=self._group)
        await self._background.close()
        await self._readers.persist()

    def suspend(self, *, is_suspended: bool) -> None:
        """Stop pulling for now, or go on."""
        self._is_suspended = is_suspended
        self._readers.wake()

    def counts(self) -> tuple[int, int]:
        """Return how many messages were consumed, and how many failed."""
        return self._rates.counts()

    async def consume_directly(
        self, record: MessageRecord, broker_name: str
    ) -> ConsumeMessageDirectlyResult:
        """Give one message to the listener now, and say what it did with it."""
        begin_ms = monotonic_ms()
        message = received(record, broker_name)
        remark = None
        try:
            result = await self._caller.call([message])
            text = "CR_SUCCESS" if result == ConsumeResult.SUCCESS else "CR_LATER"
        except Exception as error:  # noqa: BLE001  # foreign code: the administrator asked for it
            text, remark = "CR_THROW_EXCEPTION", described(error)
        return ConsumeMessageDirectlyResult(
            consume_result=text, remark=remark, spent_time_mills=monotonic_ms() - begin_ms
        )

    # -- inside -------------------------------------------------------------------------------

    def _style(self) -> PullStyle:
        options = self._options
        return PullStyle(
            count_max=options.pull_count_max,
            suspend_ms=options.suspend_ms,
            timeout_ms=options.pull_timeout_ms,
            has_subscription=options.post_subscription_when_pull,
            is_lite=False,
        )

    def _sink(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        self._delivery.submit(process_queue, messages)

    def _may_read(self) -> bool:
        return not self._is_suspended

    def _concurrency(self) -> int:
        return self._options.concurrency

    def _pull_interval_ms(self) -> int:
        return self._options.pull_interval_ms

    def _limits(self, topic: str) -> Limits:
        """Return the bounds of one queue; those of a topic are divided among its own queues."""
        options = self._options
        count_max, bytes_max = options.queue_count_max, options.queue_bytes_max
        if options.topic_count_max or options.topic_bytes_max:
            queue_count = max(1, len(self._readers.of_topic(topic)))
            if options.topic_count_max:
                count_max = max(1, options.topic_count_max // queue_count)
            if options.topic_bytes_max:
                bytes_max = max(1, options.topic_bytes_max // queue_count)
        return Limits(count_max, bytes_max, options.queue_span_max)

    async def _keep_offsets(self) -> None:
        while True:
            await self._background.sleep(self._options.persist_offset_interval_ms)
            await self._readers.persist()
            self._rates.sample()

    async def _return_late(self) -> None:
        timeout_ms = self._options.consume_timeout_ms
        while True:
            await self._background.sleep(min(timeout_ms, _CLEAN_INTERVAL_MAX_MS))
            for process_queue in self._readers.process_queues:
                await self._delivery.give_back_late(process_queue, timeout_ms=timeout_ms)


def _producer_options(options: PushOptions) -> ProducerOptions:
    """Return options for sending in the name of a consumer, with what both have in common."""
    names = ClientOptions.__struct_fields__
    return ProducerOptions(**{name: getattr(options, name) for name in names})
