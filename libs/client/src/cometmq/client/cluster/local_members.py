# SPDX-License-Identifier: Apache-2.0
"""The producers and consumers of one client instance."""

from collections.abc import Collection, Mapping
from typing import Protocol

from cometmq.client.errors import InvalidArgument
from cometmq.client.request_reply import PendingReplies
from cometmq.remoting.bodies.heartbeat import ConsumerData
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.running_info import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from cometmq.remoting.commands.transactions import CheckTransactionState
from cometmq.remoting.message.record import MessageRecord


class ConsumerMember(Protocol):
    """A consumer, as seen by its client instance and the brokers."""

    @property
    def topics(self) -> Collection[str]:
        """The topics whose routes the consumer needs."""

    def heartbeat_data(self) -> ConsumerData:
        """Return the group and its subscriptions for heartbeats."""

    def wake(self) -> None:
        """Rebalance now, because members or routes have changed."""

    async def reset_offsets(
        self, topic: str, offsets: Mapping[MessageQueue, int], *, sender: object = None
    ) -> None:
        """Continue consuming a topic from these offsets; `sender` is the broker's connection."""

    def consumed_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """Return the consumed offset of each owned queue of a topic."""

    async def running_info(self, *, with_stacks: bool = False) -> ConsumerRunningInfo:
        """Return the state of the consumer for administrators."""

    async def consume_directly(
        self, record: MessageRecord, broker_name: str
    ) -> ConsumeMessageDirectlyResult:
        """Call the listener with one message now, bypassing the queues."""


class TransactionMember(Protocol):
    """A transactional producer, as seen by its client instance."""

    def check(self, header: CheckTransactionState, record: MessageRecord, address: str) -> None:
        """Determine the state of a half message's transaction, and report it to the broker at
        `address`.
        """


class LocalMembers:
    """The producers and consumers of one client instance, which serve the requests of brokers."""

    def __init__(self) -> None:
        self.producers: set[str] = set()
        self.consumers: dict[str, ConsumerMember] = {}
        self.transaction_producers: dict[str, TransactionMember] = {}
        self.replies = PendingReplies()

    def __len__(self) -> int:
        return len(self.producers) + len(self.consumers)

    def groups(self) -> list[str]:
        return sorted(self.producers | self.consumers.keys())

    def topics(self) -> set[str]:
        return {topic for consumer in self.consumers.values() for topic in consumer.topics}

    def add_producer(self, group: str) -> None:
        if group in self.producers:
            raise InvalidArgument(
                f"this client already has a producer of the group {group}: use that one, or give "
                "one of them another group or instance_name"
            )
        self.producers.add(group)

    def add_consumer(self, group: str, consumer: ConsumerMember) -> None:
        """Include the group in heartbeats, and forward broker requests to the consumer."""
        if group in self.consumers:
            raise InvalidArgument(
                f"this client already has a consumer of the group {group}: use that one, or give "
                "one of them another group or instance_name"
            )
        self.consumers[group] = consumer

    def wake(self, topic: str | None = None) -> None:
        for consumer in self.consumers.values():
            if topic is None or topic in consumer.topics:
                consumer.wake()
