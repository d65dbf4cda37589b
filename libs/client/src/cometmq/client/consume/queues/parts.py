# SPDX-License-Identifier: Apache-2.0
"""The objects that all parts of one consumer share."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack

import msgspec

from cometmq.client.cluster.instance import ClientInstance
from cometmq.client.consume.queues.offsets import OffsetStore
from cometmq.client.consume.queues.rates import ConsumeRates
from cometmq.client.settings import ConsumerOptions, MessageModel
from cometmq.client.turns import APART_MS, Wakeup
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.transport.tasks import TaskSet

QueuesCallback = Callable[[list[MessageQueue]], Awaitable[None] | None]
"""A coroutine function, or a plain function, which is called on a thread."""


class OwnershipCallbacks(msgspec.Struct):
    """Callbacks about owned queues, except the retry topic's queues."""

    group: str
    """Names the group in log entries."""
    client: object = None
    """The consumer, which the callbacks cannot close."""
    assigned: QueuesCallback | None = None
    revoked: QueuesCallback | None = None


class ConsumerParts(msgspec.Struct):
    """The objects that all parts of one consumer share."""

    instance: ClientInstance
    group: str
    """The full name of the group."""
    options: ConsumerOptions
    subscriptions: Mapping[str, SubscriptionData]
    offsets: OffsetStore
    callbacks: OwnershipCallbacks
    background: TaskSet
    stack: AsyncExitStack = msgspec.field(default_factory=AsyncExitStack)
    """Closed with the consumer, even if its start fails."""
    rates: ConsumeRates = msgspec.field(default_factory=ConsumeRates)
    rebalance: Wakeup = msgspec.field(default_factory=lambda: Wakeup(apart_ms=APART_MS))
    """Set to rebalance now. Compatibility: Java rebalances as often as brokers ask for it."""

    @property
    def is_broadcasting(self) -> bool:
        """Whether every member gets every message."""
        return self.options.message_model is MessageModel.BROADCASTING
