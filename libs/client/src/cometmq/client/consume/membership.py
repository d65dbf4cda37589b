# SPDX-License-Identifier: Apache-2.0
"""Membership of a consumer group: heartbeats, rebalancing, and the requests of brokers.

A membership computes which queues belong to this member. It passes them to `OwnedQueues`, whose
readers pull at once, or to the `Shares` of a pull consumer, whose application pulls.
"""

import asyncio
from collections.abc import Collection, Mapping
from typing import Final

from cometmq.client.application_calls import original
from cometmq.client.clock import monotonic_ms, wall_ms
from cometmq.client.cluster.heartbeats import RETRY_SOON_MS
from cometmq.client.consume.queues.agreement import Agreement
from cometmq.client.consume.queues.owned import OwnedQueues
from cometmq.client.consume.queues.ownership import Shares
from cometmq.client.consume.queues.parts import ConsumerParts
from cometmq.client.consume.queues.rates import option_properties, stacks, state_properties
from cometmq.client.consume.queues.rebalance import AllocateStrategy, Assigner
from cometmq.client.listener import AnyCaller, ConsumeResult, OrderlyAction, OrderlyResult
from cometmq.client.message import MessageExt, plain_body, received
from cometmq.client.transfer.pulled import QUEUE_OFFSET_MAX
from cometmq.remoting.bodies.heartbeat import ConsumerData
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.running_info import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from cometmq.remoting.errors import ServerError, SystemBusy
from cometmq.remoting.message.record import MessageRecord
from cometmq.remoting.transport.tasks import describe

CONSUME_PASSIVELY: Final = "CONSUME_PASSIVELY"
CONSUME_ACTIVELY: Final = "CONSUME_ACTIVELY"
"""The consume type: CONSUME_PASSIVELY for push by long polling, CONSUME_ACTIVELY for pull."""

DIRECT_CALLS_MAX: Final = 4
"""Messages that brokers may pass to the listener directly at the same time: each may expand to
32 MiB, which stay in memory until the listener returns.
"""

STORE_MS_MAX: Final = 500
"""How long rebalancing waits for the offsets of consumed messages to be stored."""


class Membership:
    """Rebalances one consumer, and answers for it as a `ConsumerMember`."""

    def __init__(
        self,
        parts: ConsumerParts,
        queues: OwnedQueues | Shares,
        strategy: AllocateStrategy,
        *,
        caller: AnyCaller | None = None,
        is_assigned: bool = False,
    ) -> None:
        """`caller` calls the listener of a push consumer; with `is_assigned`, the application has
        chosen the queues.
        """
        self._parts = parts
        self._queues = queues
        self._strategy = strategy
        self._caller = caller
        self._is_assigned = is_assigned
        self._consume_type = CONSUME_ACTIVELY if caller is None else CONSUME_PASSIVELY
        self._begin_ms = wall_ms()
        self._assigner = Assigner(parts, strategy)
        self._agreement = Agreement(parts)
        self._sharing: asyncio.Task[None] | None = None
        self._direct_calls = 0

    # -- sharing ------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Rebalance now, and whenever members or routes change."""
        if not await self.share():
            self._parts.rebalance.set()
        self._sharing = self._parts.background.keep(self._keep_sharing, name="rebalance")
        self._parts.background.keep(self._agreement.run, name="agreement")

    async def end(self) -> None:
        """Stop rebalancing; the owned queues are kept."""
        if self._sharing is not None:
            self._sharing.cancel()
            await asyncio.wait([self._sharing])

    async def _keep_sharing(self) -> None:
        is_complete, interval_ms = True, self._parts.options.rebalance_interval_ms
        while True:
            if await self._parts.rebalance.wait(interval_ms if is_complete else RETRY_SOON_MS):
                # A new member may look up its offsets before this one has computed its new share;
                # without this, it would receive the messages consumed since the last commit again.
                await self._store()
            is_complete = await self.share()

    async def _store(self) -> None:
        """Store progress; if that takes long, as when a broker hangs, rebalance in the meantime."""
        if not self._parts.is_broadcasting:
            task = self._parts.background.spawn(self._queues.store(), name="store-progress")
            await asyncio.wait([task], timeout=STORE_MS_MAX / 1000)

    async def share(self) -> bool:
        """Rebalance every topic once; return False if a retry is needed soon."""
        shares, is_complete = await self._assigner.shares(self.topics)
        is_complete = await self._queues.take(shares) and is_complete
        for topic in shares:
            if topic not in self.topics:  # unsubscribed during the call
                await self._queues.leave(topic)
        return is_complete

    @property
    def queues(self) -> list[MessageQueue]:
        return self._queues.queues

    async def unsubscribed(self, topic: str) -> None:
        await self._queues.leave(topic)

    def resubscribed(self, topic: str) -> None:
        """Rebalance, and pull again with the new subscription of a topic."""
        self._queues.resubscribed(topic)
        self.wake()

    # -- the interface `ConsumerMember` for brokers -------------------------------------------

    @property
    def topics(self) -> Collection[str]:
        """The topics, with the retry topic; none if the application has chosen the queues."""
        return () if self._is_assigned else self._parts.subscriptions.keys()

    def heartbeat_data(self) -> ConsumerData:
        parts = self._parts
        return ConsumerData(
            consume_from_where=parts.options.consume_from,
            consume_type=self._consume_type,
            group_name=parts.group,
            message_model=parts.options.message_model,
            subscription_data_set=[parts.subscriptions[topic] for topic in self.topics],
            unit_mode=parts.options.unit_mode,
        )

    def wake(self) -> None:
        self._parts.rebalance.set()
        self._agreement.changed()
        self._queues.renew_now()

    async def reset_offsets(
        self, topic: str, offsets: Mapping[MessageQueue, int], *, sender: object = None
    ) -> None:
        """Continue from these offsets in the queues that this member owns.

        `sender` is the connection of the broker that asks; None stands for the application. Raise
        ServerError, before anything changes, if no queue can have one of the offsets, or if a queue
        is not the sender's: one broker must not let a group skip the messages of another.
        """
        instance, group = self._parts.instance, self._parts.group
        for queue, offset in offsets.items():
            if not 0 <= offset <= QUEUE_OFFSET_MAX:
                raise ServerError(f"{offset} is no offset of {queue.topic}, queue {queue.queue_id}")
            if sender is not None and not instance.is_connection_to(queue.broker_name, sender):
                facts = {"group": group, "topic": topic, "broker": queue.broker_name}
                instance.log.warning("offsets.reset_refused", **facts)
                raise ServerError(f"only {queue.broker_name} may reset the offsets of its queues")
        for queue, offset in offsets.items():
            await self._queues.reset(queue, offset)
        instance.log.info("offsets.reset", group=group, topic=topic)

    def consumed_offsets(self, topic: str) -> dict[MessageQueue, int]:
        return self._queues.consumed_offsets(topic)

    def running_info(self, *, with_stacks: bool = False) -> ConsumerRunningInfo:
        """Return the state of the consumer, with the stacks of its tasks if requested.

        Compatibility: as in Java, push consumers list every subscribed topic with its rates.
        """
        parts = self._parts
        return ConsumerRunningInfo(
            jstack=stacks() if with_stacks else None,
            properties={
                **option_properties(parts.options),
                **state_properties(
                    list(parts.instance.namesrv.addresses),
                    self._consume_type,
                    begin_ms=self._begin_ms,
                ),
                "consumerGroup": parts.group,
                "allocateMessageQueueStrategy": self._strategy.name,
                "offsetStore": type(parts.offsets).__name__,
            },
            subscription_set=list(parts.subscriptions.values()),
            mq_table=self._queues.infos(),
            status_table=parts.rates.statuses(() if self._caller is None else self.topics),
        )

    async def consume_directly(
        self, record: MessageRecord, broker_name: str
    ) -> ConsumeMessageDirectlyResult:
        """Call the listener with one message now, bypassing the queues."""
        if self._caller is None:
            raise ServerError(f"the consumer group {self._parts.group} pulls: it has no listener")
        if self._direct_calls >= DIRECT_CALLS_MAX:
            raise SystemBusy(f"{self._direct_calls} messages are being consumed directly: wait")
        self._direct_calls += 1
        try:
            body = await plain_body(record.body, record.sys_flag)
            message = received(record, broker_name, self._parts.instance.namespace, body=body)
            return await consume_directly(self._caller, message)
        finally:
            self._direct_calls -= 1


_ORDERLY_NAMES: Final = {
    OrderlyAction.COMMIT: "CR_SUCCESS",
    OrderlyAction.HOLD: "CR_SUCCESS",
    OrderlyAction.ROLLBACK: "CR_ROLLBACK",
    OrderlyAction.SUSPEND: "CR_LATER",
}


async def consume_directly(caller: AnyCaller, message: MessageExt) -> ConsumeMessageDirectlyResult:
    """Pass one message to the listener now, and return its result."""
    begin_ms = monotonic_ms()
    answer = ConsumeMessageDirectlyResult(order=caller.is_orderly)
    try:
        result: ConsumeResult | OrderlyResult = await caller.call([message])
    except Exception as error:  # noqa: BLE001  # application code: the administrator receives the error
        answer.consume_result, answer.remark = "CR_THROW_EXCEPTION", describe(original(error))
    else:
        if isinstance(result, OrderlyResult):
            answer.consume_result = _ORDERLY_NAMES[result.action]
            answer.auto_commit = result.action is not OrderlyAction.HOLD
        else:
            is_consumed = result.consumed_count is None or result.consumed_count > 0
            answer.consume_result = "CR_SUCCESS" if is_consumed else "CR_LATER"
    answer.spent_time_mills = monotonic_ms() - begin_ms
    return answer
