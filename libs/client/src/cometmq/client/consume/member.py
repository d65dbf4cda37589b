# SPDX-License-Identifier: Apache-2.0
"""A member of a consumer group: its queues, its offsets, and its state as brokers see it.

`assignment` decides which queues the member owns, `readers` pulls from them, and `offsets` keeps
track of progress; `push_member` and `lite_pull_member` process the messages.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from functools import partial
from typing import ClassVar, Final, Generic, TypeVar

import msgspec

from cometmq.client.application_calls import Failures
from cometmq.client.clock import wall_ms
from cometmq.client.cluster.instance import ClientInstance
from cometmq.client.consume.delivery.observation import ConsumeWatch
from cometmq.client.consume.delivery.rates import ConsumeRates
from cometmq.client.consume.queues.agreement import Agreement
from cometmq.client.consume.queues.assignment import Assigner
from cometmq.client.consume.queues.first_offsets import (
    NewQueues,
    QueueOffsets,
    first_offset,
    first_offset_of_new_queue,
)
from cometmq.client.consume.queues.locks import QueueLocks
from cometmq.client.consume.queues.offsets import OffsetStore
from cometmq.client.consume.queues.ownership import Ownership, OwnershipCallbacks
from cometmq.client.consume.queues.process_queue import ProcessQueue
from cometmq.client.consume.queues.reader import Limits, ReadContext
from cometmq.client.consume.queues.readers import Readers
from cometmq.client.consume.queues.rebalance import AllocateStrategy
from cometmq.client.consume.running_info import option_properties, stacks, state_properties
from cometmq.client.message import MessageExt
from cometmq.client.settings import ConsumerOptions, MessageModel
from cometmq.client.transfer.puller import Puller, PullStyle
from cometmq.remoting.bodies.heartbeat import ConsumerData, SubscriptionData
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.running_info import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    ProcessQueueInfo,
)
from cometmq.remoting.message.record import MessageRecord
from cometmq.remoting.transport.tasks import TaskSet

CONSUME_PASSIVELY: Final = "CONSUME_PASSIVELY"
CONSUME_ACTIVELY: Final = "CONSUME_ACTIVELY"
"""The consume type: CONSUME_PASSIVELY for push by long polling, CONSUME_ACTIVELY for pull."""

SAMPLE_INTERVAL_S: Final = 5
"""Interval between calls that sample the rates; a sample is due every 10 s."""

STORE_MS_MAX: Final = 500
"""How long rebalancing waits for the offsets of consumed messages to be stored."""

OptionsT = TypeVar("OptionsT", bound=ConsumerOptions)


class MemberParts(msgspec.Struct, Generic[OptionsT]):
    """The parts that a member is assembled from."""

    instance: ClientInstance
    group: str
    options: OptionsT
    subscriptions: Mapping[str, SubscriptionData]
    offsets: OffsetStore
    strategy: AllocateStrategy
    callbacks: OwnershipCallbacks
    watch: ConsumeWatch | None = None


class GroupMember(ABC, Generic[OptionsT]):
    """The base of push and pull members."""

    CONSUME_TYPE: ClassVar[str]

    def __init__(self, parts: MemberParts[OptionsT]) -> None:
        self._instance = parts.instance
        self._group = parts.group
        self._subscriptions = parts.subscriptions
        self._offsets = parts.offsets
        self._options = parts.options
        self._strategy = parts.strategy
        self._watch = parts.watch
        self._client = parts.callbacks.client
        self._log = parts.instance.log
        self._begin_ms = wall_ms()
        self._background = TaskSet(self._log)
        self._rates = ConsumeRates()
        self._queue_offsets = QueueOffsets(parts.instance)
        self._new_queues = NewQueues(parts.instance.routes.was_absent)
        self._locks = self._make_locks()
        self._ownership = Ownership(
            parts.offsets,
            callbacks=parts.callbacks,
            locks=self._locks,
            namespace=parts.instance.namespace,
            background=self._background,
            failed=parts.instance.outages.failed,
            log=self._log,
        )
        self._readers = Readers(
            self._read_context(), self._background, self._first_offset, self._ownership
        )
        self._sharing: asyncio.Task[None] | None = None
        self._assigner = Assigner(
            parts.instance,
            parts.group,
            None if self.is_broadcasting else parts.strategy,
            topics=lambda: self.topics,
            interval_ms=parts.options.rebalance_interval_ms,
            take=self._share,
            store=self._store_before_sharing,
        )
        self._agreement = Agreement(
            parts.instance, parts.group, parts.subscriptions, parts.options.message_model
        )

    def _read_context(self) -> ReadContext:
        is_pushed = self.CONSUME_TYPE == CONSUME_PASSIVELY
        return ReadContext(
            group=self._group,
            puller=Puller(self._instance, self._group, self._style()),
            offsets=self._offsets,
            subscriptions=self._subscriptions,
            limits=self._limits,
            sink=self._sink,
            may_read=self._may_read,
            is_suspended=self._is_delivery_suspended,
            pulled=self._pulled,
            not_ready=self._instance.heartbeat_soon,
            outdated=self._instance.routes.outdated,
            failed=self._instance.outages.failed,
            log=self._log,
            may_commit=self._may_commit,
            pull_interval_ms=self._pull_interval_ms(),
            commits_by_pull=is_pushed and not self.is_broadcasting,
            takes_unreadable=is_pushed,
        )

    @property
    def is_broadcasting(self) -> bool:
        """Whether every member gets every message."""
        return self._options.message_model is MessageModel.BROADCASTING

    async def _begin_sharing(self) -> None:
        """Rebalance now, and whenever members or routes change."""
        if not await self._assigner.share():
            self._assigner.wake()
        self._sharing = self._background.keep(self._assigner.run, name="rebalance")
        self._background.keep(self._agreement.run, name="agreement")

    async def _end_sharing(self) -> None:
        """Stop rebalancing; the owned queues are kept."""
        if self._sharing is not None:
            self._sharing.cancel()
            await asyncio.wait([self._sharing])

    async def _store_before_sharing(self) -> None:
        """Store progress; if that takes long, as when a broker hangs, rebalance in the meantime."""
        if not self.is_broadcasting:
            task = self._background.spawn(self._store_progress(), name="store-progress")
            await asyncio.wait([task], timeout=STORE_MS_MAX / 1000)

    async def _share(self, shares: Mapping[str, Collection[MessageQueue]]) -> bool:
        """Take our shares; release the queues of topics that are unsubscribed during the call."""
        for topic, queues in shares.items():
            self._new_queues.note(topic, queues)
        is_complete = await self._take(shares)
        for topic in shares:
            if topic not in self.topics:
                await self.unsubscribed(topic)
        return is_complete

    async def unsubscribed(self, topic: str) -> None:
        """Release the queues of a topic."""
        self._new_queues.forget(topic)
        await self._take({topic: []})

    async def _take(self, shares: Mapping[str, Collection[MessageQueue]]) -> bool:
        """Own exactly these queues of each topic; return False if some could not be taken yet."""
        return await self._readers.take(shares)

    @property
    def queues(self) -> list[MessageQueue]:
        """The owned queues."""
        return self._readers.queues

    # -- the interface `ConsumerMember` for brokers ------------------------------------------

    @property
    def topics(self) -> Collection[str]:
        """The subscribed topics, including a push consumer's retry topic."""
        return self._subscriptions.keys()

    def heartbeat_data(self) -> ConsumerData:
        """Return the group and its subscriptions for heartbeats."""
        return ConsumerData(
            consume_from_where=self._options.consume_from,
            consume_type=self.CONSUME_TYPE,
            group_name=self._group,
            message_model=self._options.message_model,
            subscription_data_set=[self._subscriptions[topic] for topic in self.topics],
            unit_mode=self._options.unit_mode,
        )

    def wake(self) -> None:
        """Rebalance now."""
        self._assigner.wake()
        self._agreement.changed()

    def resubscribed(self, topic: str) -> None:
        """Rebalance, and pull again with the new subscription of a topic."""
        self._readers.resubscribed(topic)
        self.wake()

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue from these offsets in the queues that this member owns."""
        for queue, offset in offsets.items():
            if self._readers.get(queue) is not None:
                await self._readers.reset(queue, offset)
        self._log.info("offsets.reset", group=self._group, topic=topic)

    def consumed_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """Return the consumed offset of each owned queue of a topic."""
        return {
            held.queue: held.committable
            for held in self._readers.process_queues
            if held.queue.topic == topic
        }

    def running_info(self, *, with_stacks: bool = False) -> ConsumerRunningInfo:
        """Return the state of the consumer, with the stacks of its tasks if requested.

        Compatibility: as in Java, push consumers list every subscribed topic with its rates.
        """
        is_pushed = self.CONSUME_TYPE == CONSUME_PASSIVELY
        return ConsumerRunningInfo(
            jstack=stacks() if with_stacks else None,
            properties={
                **option_properties(self._options),
                **state_properties(
                    list(self._instance.namesrv.addresses),
                    self.CONSUME_TYPE,
                    begin_ms=self._begin_ms,
                ),
                "consumerGroup": self._group,
                "allocateMessageQueueStrategy": self._strategy.name,
                "offsetStore": type(self._offsets).__name__,
            },
            subscription_set=list(self._subscriptions.values()),
            mq_table={held.queue: self._info(held) for held in self._readers.process_queues},
            status_table=self._rates.statuses(self.topics if is_pushed else ()),
        )

    def _info(self, held: ProcessQueue) -> ProcessQueueInfo:
        info = held.info(self._offsets.position(held.queue) or 0)
        if self._locks is not None:
            info.locked = self._locks.is_valid(held.queue)
            info.last_lock_timestamp = self._locks.granted_ms(held.queue)
        return info

    @abstractmethod
    async def consume_directly(
        self, record: MessageRecord, broker_name: str
    ) -> ConsumeMessageDirectlyResult:
        """Call the listener with one message now, bypassing the queues."""

    # -- defined by each kind of consumer ----------------------------------------------------

    @abstractmethod
    async def _store_progress(self) -> None:
        """Store progress now instead of at the next interval."""

    @abstractmethod
    def _style(self) -> PullStyle:
        """Return the pull flags of this kind of consumer."""

    @abstractmethod
    def _sink(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        """Process pulled messages."""

    @abstractmethod
    def _may_read(self) -> bool:
        """Return whether the consumer as a whole may pull now."""

    def _is_delivery_suspended(self) -> bool:
        return False

    def _make_locks(self) -> QueueLocks | None:
        """Return the queue locks of an orderly consumer, or None for any other."""
        return None

    def _may_commit(self, queue: MessageQueue) -> bool:
        return self._locks is None or self._locks.is_valid(queue)

    def _pull_interval_ms(self) -> int:
        return 0

    def _limits(self, topic: str) -> Limits:
        del topic
        options = self._options
        return Limits(options.queue_count_max, options.queue_bytes_max, options.queue_span_max)

    async def _sample_rates(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_INTERVAL_S)
            self._rates.sample()

    def _pulled(self, topic: str, count: int, ms: int) -> None:
        self._rates.note_pull(topic, count=count, ms=ms)

    async def _first_offset(self, queue: MessageQueue) -> int:
        with Failures():
            offsets, new = self._queue_offsets, self._new_queues
            find = None
            if self.is_broadcasting and queue in new:
                find = partial(first_offset_of_new_queue, queue, self._group, offsets, new)
            return await first_offset(queue, self._offsets, offsets, self._options, new_queue=find)

    def _left(self, process_queue: ProcessQueue, offset: int) -> None:
        """Advance the offset past consumed messages, and wake the reader, which has room again."""
        with Failures():
            self._offsets.update(process_queue.queue, offset)
        reader = self._readers.get(process_queue.queue)
        if reader is not None:
            reader.progressed()
