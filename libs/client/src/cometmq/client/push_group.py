# SPDX-License-Identifier: Apache-2.0
"""One member of a consumer group at work: the parts of a push consumer, and what brokers see.

`assignment` decides which queues are ours, `readers` pull them, `delivery` calls the listener,
`offsets` remember how far we are, `send_back` returns what was not consumed.
"""

from collections.abc import Collection, Mapping
from typing import Final

from cometmq.client.assignment import Assigner
from cometmq.client.background import Background, described
from cometmq.client.clock import monotonic_ms, wall_ms
from cometmq.client.delivery import Delivery
from cometmq.client.first_offsets import QueueOffsets, first_offset
from cometmq.client.identity import unique_ids
from cometmq.client.instance import ClientInstance
from cometmq.client.listener import ConsumeResult, ListenerCaller
from cometmq.client.message import received
from cometmq.client.offsets import OffsetStore
from cometmq.client.process_queue import ProcessQueue
from cometmq.client.puller import Puller, PullStyle
from cometmq.client.readers import Limits, ReadContext, Readers
from cometmq.client.rebalance import AllocateStrategy
from cometmq.client.send_back import SendBack
from cometmq.client.sender import MessageSender
from cometmq.client.settings import ClientOptions, MessageModel, ProducerOptions, PushOptions
from cometmq.remoting.bodies.heartbeat import ConsumerData, SubscriptionData
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.running_info import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from cometmq.remoting.log import Log
from cometmq.remoting.message.record import MessageRecord
from cometmq.remoting.versions import CURRENT_VERSION

CONSUME_PASSIVELY: Final = "CONSUME_PASSIVELY"
INNER_PRODUCER: Final = "CLIENT_INNER_PRODUCER"
_CLEAN_INTERVAL_MAX_MS: Final = 60_000


class PushGroup:
    """A running member of a consumer group with a listener."""

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
        self._instance = instance
        self._group = group
        self._options = options
        self._subscriptions = subscriptions
        self._caller = caller
        self._offsets = offsets
        self._log: Log = instance.log
        self._begin_ms = wall_ms()
        self.is_suspended = False
        self._background = Background(self._log)
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
            consumed=self._consumed,
            log=self._log,
        )
        self._readers = Readers(self._read_context(), self._background, self._first_offset)
        self._queue_offsets = QueueOffsets(instance)
        self._assigner = Assigner(
            instance,
            group,
            strategy,
            topics=lambda: self.topics,
            interval_ms=options.rebalance_interval_ms,
            take=self._readers.take,
        )

    # -- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Share the queues, and begin to pull and to deliver."""
        self._delivery.start(self._background, concurrency=self._options.concurrency)
        spawn = self._background.spawn
        if not await self._assigner.share():
            self._assigner.wake()
        spawn(self._assigner.run(), name="rebalance")
        spawn(self._keep_offsets(), name="persist-offsets")
        spawn(self._return_late(), name="return-late")

    async def stop(self) -> None:
        """Pull no more, wait for the listener, and store the offsets."""
        self._readers.stop()
        if not await self._delivery.stop(self._options.drain_ms):
            self._log.warning("consumer.undrained", group=self._group)
        await self._readers.persist()
        await self._background.close()

    def resume(self, *, is_suspended: bool) -> None:
        """Pull again, or stop pulling for now."""
        self.is_suspended = is_suspended
        self._readers.wake()

    async def unsubscribed(self, topic: str) -> None:
        """Give the queues of a topic up."""
        await self._readers.take(topic, [])

    # -- what brokers see: ConsumerMember -----------------------------------------------------

    @property
    def topics(self) -> Collection[str]:
        """The subscribed topics, among them the group's retry topic."""
        return self._subscriptions.keys()

    def heartbeat_data(self) -> ConsumerData:
        """Return the group and its subscriptions for heartbeats."""
        return ConsumerData(
            consume_from_where=self._options.consume_from,
            consume_type=CONSUME_PASSIVELY,
            group_name=self._group,
            message_model=MessageModel.CLUSTERING,
            subscription_data_set=list(self._subscriptions.values()),
        )

    def wake(self) -> None:
        """Share the queues now."""
        self._assigner.wake()

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at these offsets in the own queues among them."""
        for queue, offset in offsets.items():
            if self._readers.get(queue) is not None:
                await self._readers.seek(queue, offset)
        self._log.info("offsets.reset", group=self._group, topic=topic)

    def consumed_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """Return how far each own queue of a topic is."""
        return {
            held.queue: held.committable
            for held in self._readers.process_queues
            if held.queue.topic == topic
        }

    def running_info(self) -> ConsumerRunningInfo:
        """Return what the consumer does."""
        properties = {
            "PROP_NAMESERVER_ADDR": ";".join(self._instance.namesrv.addresses),
            "PROP_CONSUME_TYPE": CONSUME_PASSIVELY,
            "PROP_CONSUME_ORDERLY": "false",
            "PROP_THREADPOOL_CORE_SIZE": str(self._options.concurrency),
            "PROP_CONSUMER_START_TIMESTAMP": str(self._begin_ms),
            "PROP_CLIENT_VERSION": str(CURRENT_VERSION),
        }
        return ConsumerRunningInfo(
            properties=properties,
            subscription_set=list(self._subscriptions.values()),
            mq_table={
                held.queue: held.info(self._offsets.position(held.queue) or 0)
                for held in self._readers.process_queues
            },
            status_table=self._delivery.rates.statuses(),
        )

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

    @property
    def queues(self) -> list[MessageQueue]:
        """The own queues, the retry topic's among them."""
        return self._readers.queues

    def counts(self) -> tuple[int, int]:
        """Return how many messages were consumed, and how many failed."""
        return self._delivery.rates.counts()

    def _read_context(self) -> ReadContext:
        options = self._options
        style = PullStyle(
            count_max=options.pull_count_max,
            suspend_ms=options.suspend_ms,
            timeout_ms=options.pull_timeout_ms,
            has_subscription=options.post_subscription_when_pull,
            is_lite=False,
        )
        return ReadContext(
            puller=Puller(self._instance, self._group, style),
            offsets=self._offsets,
            subscriptions=self._subscriptions,
            limits=self._limits,
            sink=self._delivery.submit,
            may_read=lambda: not self.is_suspended,
            not_ready=self._instance.heartbeat_soon,
            log=self._log,
            pull_interval_ms=options.pull_interval_ms,
        )

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

    async def _first_offset(self, queue: MessageQueue) -> int:
        return await first_offset(queue, self._offsets, self._queue_offsets, self._options)

    def _consumed(self, process_queue: ProcessQueue, offset: int) -> None:
        self._offsets.update(process_queue.queue, offset)
        reader = self._readers.get(process_queue.queue)
        if reader is not None:
            reader.progressed()

    async def _keep_offsets(self) -> None:
        while True:
            await self._background.sleep(self._options.persist_offset_interval_ms)
            await self._readers.persist()
            self._delivery.rates.sample()

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
