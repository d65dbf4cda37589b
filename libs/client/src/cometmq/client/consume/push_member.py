# SPDX-License-Identifier: Apache-2.0
"""The group member of a push consumer: it passes messages to a listener."""

import asyncio
from collections.abc import Collection
from typing import Final, Protocol

from cometmq.client.application_calls import ABANDONED_ADVICE, CANCEL_GRACE_MS, original
from cometmq.client.clock import monotonic_ms
from cometmq.client.consume.delivery.concurrent import Delivery
from cometmq.client.consume.delivery.orderly import OrderlyDelivery, OrderlyLimits
from cometmq.client.consume.delivery.send_back import SENT_BACK, SendBack
from cometmq.client.consume.delivery.stalls import Stalls
from cometmq.client.consume.member import CONSUME_PASSIVELY, GroupMember, MemberParts
from cometmq.client.consume.queues.lock_guards import AlwaysOurs, LockGuards
from cometmq.client.consume.queues.locks import QueueLocks
from cometmq.client.consume.queues.process_queue import ProcessQueue
from cometmq.client.consume.queues.reader import Limits
from cometmq.client.identity import unique_ids
from cometmq.client.listener import (
    ConsumeResult,
    Listener,
    ListenerCaller,
    OrderlyAction,
    OrderlyListener,
    OrderlyResult,
)
from cometmq.client.message import MessageExt, received
from cometmq.client.settings import CONCURRENCY_MAX, PushOptions, producer_options
from cometmq.client.transfer.puller import PullStyle
from cometmq.client.transfer.sender import MessageSender
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.running_info import ConsumeMessageDirectlyResult
from cometmq.remoting.log import Log
from cometmq.remoting.message.record import MessageRecord
from cometmq.remoting.names import INNER_PRODUCER_GROUP
from cometmq.remoting.transport.tasks import TaskSet, describe

_CLEAN_INTERVAL_MAX_MS: Final = 60_000

_CONCURRENT_NAMES: Final = {True: "CR_SUCCESS", False: "CR_LATER"}
_ORDERLY_NAMES: Final = {
    OrderlyAction.COMMIT: "CR_SUCCESS",
    OrderlyAction.HOLD: "CR_SUCCESS",
    OrderlyAction.ROLLBACK: "CR_ROLLBACK",
    OrderlyAction.SUSPEND: "CR_LATER",
}


class Delivers(Protocol):
    """A delivery mode: concurrent or orderly."""

    def start(self, background: TaskSet, *, concurrency: int) -> None:
        """Start the delivery tasks."""

    def resize(self, concurrency: int) -> None:
        """Change the number of concurrent listener calls."""

    def submit(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        """Queue messages of one process queue for the listener."""

    async def give_back_late(self, process_queue: ProcessQueue, *, timeout_ms: int) -> None:
        """Send back messages that the listener has kept for longer than `timeout_ms`."""

    async def stop(self, drain_ms: int) -> int:
        """Start no more calls; wait up to `drain_ms` and return how many calls are still
        running.
        """


class DropsFailed:
    """Drops failed messages, because broadcasting has no redelivery."""

    def __init__(self, group: str, log: Log) -> None:
        self._group = group
        self._log = log

    async def send_back(self, message: MessageExt, delay_level: int, error: str) -> bool:
        """Log and drop a message."""
        self._log.warning(
            "message.dropped",
            group=self._group,
            topic=message.topic,
            message_id=message.message_id,
            level=delay_level,
            error=error,
        )
        return True

    async def give_up(self, message: MessageExt, error: str) -> bool:
        """Log and drop a message."""
        return await self.send_back(message, 0, error)


class PushGroup(GroupMember[PushOptions]):
    """A member that delivers its messages to a listener."""

    CONSUME_TYPE = CONSUME_PASSIVELY

    def __init__(
        self, parts: MemberParts[PushOptions], listener: Listener | OrderlyListener
    ) -> None:
        self._is_suspended = False
        super().__init__(parts)
        self._failed = (
            DropsFailed(self._group, self._log) if self.is_broadcasting else self._send_back()
        )
        self._caller: ListenerCaller[ConsumeResult] | ListenerCaller[OrderlyResult]
        self._delivery: Delivers
        if self._options.orderly:
            self._deliver_in_order(listener)
        else:
            self._deliver_concurrently(listener)

    def _send_back(self) -> SendBack:
        options = self._options
        sender = MessageSender(
            self._instance, INNER_PRODUCER_GROUP, producer_options(options), ids=unique_ids(options)
        )
        return SendBack(
            self._instance, self._group, sender, max_reconsume_times=options.max_reconsume_times
        )

    def _deliver_concurrently(self, listener: Listener | OrderlyListener) -> None:
        options = self._options
        self._caller = caller = ListenerCaller(
            listener,
            ConsumeResult.SUCCESS,
            group=self._group,
            thread_count=CONCURRENCY_MAX,
            log=self._log,
            watch=self._watch,
            client=self._client,
        )
        self._delivery = Delivery(
            caller,
            self._failed,
            batch_count_max=options.batch_count_max,
            consumed=self._left,
            rates=self._rates,
            log=self._log,
        )

    def _deliver_in_order(self, listener: Listener | OrderlyListener) -> None:
        options = self._options
        self._caller = caller = ListenerCaller(
            listener,
            OrderlyResult.SUCCESS,
            group=self._group,
            thread_count=CONCURRENCY_MAX,
            log=self._log,
            watch=self._watch,
            client=self._client,
        )
        times_max = options.max_reconsume_times
        self._delivery = OrderlyDelivery(
            caller,
            self._failed,
            AlwaysOurs()
            if self._locks is None
            else LockGuards(self._locks, begin_anew=self._begin_anew),
            limits=OrderlyLimits(
                options.batch_count_max,
                options.suspend_queue_ms,
                None if times_max < 0 else times_max,
            ),
            consumed=self._left,
            rates=self._rates,
            log=self._log,
        )

    def _make_locks(self) -> QueueLocks | None:
        if not self._options.orderly or self.is_broadcasting:
            return None
        return QueueLocks(self._instance, self._group, self._offsets, lost=self._locks_lost)

    def _locks_lost(self, queues: Collection[MessageQueue]) -> None:
        """Leave queues that another member has locked; rebalancing takes back our share."""
        self._background.spawn(self._begin_anew(queues), name="locks-lost")

    async def _begin_anew(self, queues: Collection[MessageQueue]) -> None:
        """Drop queues and everything pulled from them, then rebalance to take back our share."""
        self._log.warning("locks.lost", group=self._group, count=len(queues))
        await self._readers.drop(queues, is_lost=True)
        self._assigner.wake()

    def wake(self) -> None:
        """Rebalance now."""
        super().wake()
        if self._locks is not None:
            self._locks.renew_soon()

    async def start(self) -> None:
        """Rebalance, and start pulling and delivering."""
        self._delivery.start(self._background, concurrency=self._options.concurrency)
        await self._begin_sharing()
        self._background.keep(self._keep_offsets, name="persist-offsets")
        self._background.keep(self._sample_rates, name="rates")
        stalls = Stalls(self._caller, stuck_ms=self._options.stuck_listener_ms, log=self._log)
        self._background.keep(stalls.run, name="stalls")
        if not self.is_broadcasting:
            self._background.keep(self._return_late, name="return-late")
        if self._locks is not None:
            self._background.keep(self._locks.run, name="locks")

    async def stop(self) -> None:
        """Stop pulling, wait for the listener, and store the offsets."""
        await self._end_sharing()
        self._readers.stop()
        running_count = await self._delivery.stop(self._options.drain_ms)
        if running_count:
            self._log.warning(
                "consumer.undrained",
                group=self._group,
                running_count=running_count,
                drain_ms=self._options.drain_ms,
            )
        await self._readers.close(is_drained=not running_count)
        # A listener may suppress its cancellation. Its queues are disowned, so no result counts.
        left_count = await self._background.close_within(CANCEL_GRACE_MS / 1000)
        if left_count and (calling_count := len(self._caller.begins_ms)):
            self._log.warning(
                "listener.abandoned",
                group=self._group,
                listener=self._caller.name,
                running_count=calling_count,
                advice=ABANDONED_ADVICE,
            )

    def close_caller(self) -> None:
        """Release the listener's threads."""
        self._caller.close()

    def suspend(self, *, is_suspended: bool) -> None:
        """Pause or resume pulling."""
        self._is_suspended = is_suspended
        self._readers.wake()

    def resize(self, concurrency: int) -> None:
        """Change the number of concurrent listener calls."""
        self._delivery.resize(concurrency)

    async def give_back(self, message: MessageExt, delay_level: int) -> bool:
        """Redeliver a message as if the listener had failed."""
        return await self._failed.send_back(message, delay_level, SENT_BACK)

    async def reset_to(self, timestamp_ms: int) -> None:
        """Continue consuming all owned queues from a timestamp."""
        for topic in tuple(self.topics):
            queues = self._readers.of_topic(topic)
            offsets = {queue: await self._queue_offsets.at(queue, timestamp_ms) for queue in queues}
            await self.reset_offsets(topic, offsets)

    def counts(self) -> tuple[int, int]:
        """Return how many messages were consumed, and how many failed."""
        return self._rates.counts()

    async def consume_directly(
        self, record: MessageRecord, broker_name: str
    ) -> ConsumeMessageDirectlyResult:
        """Pass one message to the listener now, and return its result."""
        begin_ms = monotonic_ms()
        message = received(record, broker_name, self._instance.namespace)
        answer = ConsumeMessageDirectlyResult(order=self._options.orderly)
        try:
            result = await self._caller.call([message])
        except Exception as error:  # noqa: BLE001  # application code: the administrator receives the error
            answer.consume_result, answer.remark = "CR_THROW_EXCEPTION", describe(original(error))
        else:
            if isinstance(result, OrderlyResult):
                answer.consume_result = _ORDERLY_NAMES[result.action]
                answer.auto_commit = result.action is not OrderlyAction.HOLD
            else:
                is_consumed = result.consumed_count is None or result.consumed_count > 0
                answer.consume_result = _CONCURRENT_NAMES[is_consumed]
        answer.spent_time_mills = monotonic_ms() - begin_ms
        return answer

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
        return True

    def _is_delivery_suspended(self) -> bool:
        return self._is_suspended

    def _pull_interval_ms(self) -> int:
        return self._options.pull_interval_ms

    def _limits(self, topic: str) -> Limits:
        """Return the limits of one queue; per-topic limits are divided among the topic's owned
        queues.
        """
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
            await asyncio.sleep(self._options.persist_offset_interval_ms / 1000)
            await self._store_progress()

    async def _store_progress(self) -> None:
        await self._readers.persist()

    async def _return_late(self) -> None:
        timeout_ms = self._options.consume_timeout_ms
        while True:
            await asyncio.sleep(min(timeout_ms, _CLEAN_INTERVAL_MAX_MS) / 1000)
            for process_queue in self._readers.process_queues:
                await self._delivery.give_back_late(process_queue, timeout_ms=timeout_ms)
