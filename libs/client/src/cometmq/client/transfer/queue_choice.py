# SPDX-License-Identifier: Apache-2.0
"""Chooses the queue of each send: the next in turn, or that of an application's selector."""

import random
from collections.abc import Sequence
from typing import Any

from cometmq.client.clock import monotonic_ms
from cometmq.client.cluster.instance import ClientInstance
from cometmq.client.cluster.routes import Route
from cometmq.client.errors import InvalidArgument
from cometmq.client.message import Message
from cometmq.client.namespace import Namespace
from cometmq.client.settings import ProducerOptions
from cometmq.client.shown import shown
from cometmq.client.transfer.attempts import Attempts
from cometmq.client.transfer.queue_selection import LatencyFaults, QueueSelector, RoundRobin
from cometmq.remoting.bodies.queues import MessageQueue


class QueueChoice:
    """The turns of one sender in each topic, and what it knows of slow brokers."""

    def __init__(
        self, instance: ClientInstance, options: ProducerOptions, namespace: Namespace
    ) -> None:
        """Start with a random queue, so that producers spread over the queues."""
        self._instance = instance
        self._avoids_slow_brokers = options.avoid_slow_brokers
        self._namespace = namespace
        self._robins: dict[str, RoundRobin] = {}
        self._faults = LatencyFaults()

    def choose(self, route: Route, tried: Attempts | None = None) -> MessageQueue:
        """Return the next queue, if possible at a broker that has not just failed."""
        queues = self._instance.reachable(route.publish_queues)
        failed_broker = tried.brokers[-1] if tried and tried.brokers else None
        if tried and len(tried.round) > 1:
            queues = [one for one in queues if one.broker_name not in tried.round] or queues
        robin = self._robins.get(route.topic)
        if robin is None:
            start = random.randrange(1 << 16)  # noqa: S311  # spreads load, hides nothing
            robin = self._robins[route.topic] = RoundRobin(start)
        if not self._avoids_slow_brokers:
            return robin.choose(queues, not_broker=failed_broker)
        return self._faults.choose(robin, queues, now_ms=monotonic_ms(), not_broker=failed_broker)

    def choose_by(
        self, selector: QueueSelector, route: Route, message: Message, argument: Any
    ) -> MessageQueue:
        """Return the queue chosen by a selector."""
        if not callable(selector):
            raise InvalidArgument(
                f"selector is {shown(selector)}, which cannot be called: give a function "
                "`def selector(queues, message, argument)` that returns one of the queues"
            )
        queues: Sequence[MessageQueue] = route.publish_queues
        if self._namespace:
            queues = [self._namespace.unwrap_queue(queue) for queue in queues]
        queue = selector(queues, message, argument)
        if not isinstance(queue, MessageQueue):
            raise InvalidArgument(f"the selector must return one of its queues, not {shown(queue)}")
        if queue.topic != message.topic:
            raise InvalidArgument(f"the selector chose a queue of the topic {queue.topic}")
        return self._namespace.wrap_queue(queue)

    def note(self, broker_name: str, begin_ms: int, *, failed: bool) -> None:
        """Note the outcome of a send that began at `begin_ms`."""
        if self._avoids_slow_brokers:
            now_ms = monotonic_ms()
            self._faults.note(broker_name, now_ms - begin_ms, now_ms=now_ms, failed=failed)
