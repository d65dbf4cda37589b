# SPDX-License-Identifier: Apache-2.0
"""Selects queues round robin or by key, and avoids slow or failing brokers.

Everything here is pure: the clock and the random start are parameters. The selectors for ordered
sending use Java's hash rule, so that producers in any language choose the same queue for a key.
"""

import random
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final

from cometmq.client.clock import monotonic_ms
from cometmq.client.cluster.instance import ClientInstance
from cometmq.client.cluster.routes import Route
from cometmq.client.errors import InvalidArgument, shown
from cometmq.client.message import Message
from cometmq.client.namespace import Namespace
from cometmq.client.settings import ProducerOptions
from cometmq.client.transfer.attempts import Attempts
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.message.flags import java_hash

LATENCY_BOUNDS_MS: Final = (50, 100, 550, 1800, 3000, 5000, 15000)
"""A broker with at least this latency is avoided for the time at the same index of BACK_OFF_MS."""

BACK_OFF_MS: Final = (0, 0, 2000, 5000, 6000, 10000, 30000)
"""How long a broker is avoided after such a latency (the same values as in RocketMQ 5.3)."""

FAILURE_LATENCY_MS: Final = 30000
"""The latency that a failed send counts as."""

QueueSelector = Callable[[Sequence[MessageQueue], Any, Any], MessageQueue]
"""Takes (queues, message, argument) and returns one of the queues."""


class RoundRobin:
    """Chooses the queues round robin, avoiding the broker that has just failed."""

    def __init__(self, start: int = 0) -> None:
        """Producers pass a random `start`, so that they spread over the queues."""
        self._numbers = count(start)

    def next_number(self) -> int:
        return next(self._numbers)

    def choose(
        self, queues: Sequence[MessageQueue], *, not_broker: str | None = None
    ) -> MessageQueue:
        """Return the next queue, at a broker other than `not_broker` if possible."""
        assert queues
        for _ in queues:
            queue = queues[self.next_number() % len(queues)]
            if queue.broker_name != not_broker:
                return queue
        return queues[self.next_number() % len(queues)]


class LatencyFaults:
    """Remembers the latency of brokers, and avoids slow or failing ones for a while."""

    def __init__(self) -> None:
        self._faults: dict[str, tuple[int, int]] = {}  # broker: (latency_ms, available_from_ms)

    def note(self, broker_name: str, latency_ms: int, *, now_ms: int, failed: bool = False) -> None:
        counted_ms = FAILURE_LATENCY_MS if failed else latency_ms
        self._faults[broker_name] = (latency_ms, now_ms + back_off_ms(counted_ms))

    def is_available(self, broker_name: str, *, now_ms: int) -> bool:
        fault = self._faults.get(broker_name)
        return fault is None or now_ms >= fault[1]

    def choose(
        self,
        round_robin: RoundRobin,
        queues: Sequence[MessageQueue],
        *,
        now_ms: int,
        not_broker: str | None = None,
    ) -> MessageQueue:
        """Return a queue of an available broker.

        If there is none, return a queue of a broker in the better half, or else of any broker.
        """
        assert queues
        for _ in queues:
            queue = queues[round_robin.next_number() % len(queues)]
            if queue.broker_name != not_broker and self.is_available(
                queue.broker_name, now_ms=now_ms
            ):
                return queue
        better = self._better_half({queue.broker_name for queue in queues})
        candidates = [queue for queue in queues if queue.broker_name in better]
        return round_robin.choose(candidates or queues, not_broker=not_broker)

    def _better_half(self, broker_names: set[str]) -> set[str]:
        """Rank brokers by availability, then latency; return the better half, at least one."""
        ranked = sorted(
            broker_names, key=lambda name: (*reversed(self._faults.get(name, (0, 0))), name)
        )
        return set(ranked[: max(1, len(ranked) // 2)])


def back_off_ms(latency_ms: int) -> int:
    """Return the back-off of a broker after a send that took `latency_ms`."""
    for bound, back_off in zip(reversed(LATENCY_BOUNDS_MS), reversed(BACK_OFF_MS), strict=True):
        if latency_ms >= bound:
            return back_off
    return 0


def by_hash(queues: Sequence[MessageQueue], _message: Any, argument: Any) -> MessageQueue:
    """Return the queue for a key: Java's hash code modulo the number of queues, made positive.

    A str hashes like a Java String, an int like an Integer or Long, a bool like a Boolean; convert
    anything else to a str first.
    """
    remainder = abs(java_hash_code(argument)) % len(queues)
    return queues[remainder]


def by_random(queues: Sequence[MessageQueue], _message: Any, _argument: Any) -> MessageQueue:
    """Return a random queue."""
    return random.choice(queues)  # noqa: S311  # spreads load, hides nothing


def java_hash_code(value: Any) -> int:
    """Return the `hashCode()` of the corresponding Java value."""
    if isinstance(value, bool):
        return 1231 if value else 1237
    if isinstance(value, str):
        return java_hash(value)
    if isinstance(value, int):
        if -(1 << 31) <= value < 1 << 31:
            return value
        folded = (value ^ (value >> 32)) & 0xFFFF_FFFF
        return folded - (1 << 32) if folded >> 31 else folded
    raise InvalidArgument(
        "the argument that chooses the queue must be a string or a whole number, such as an order "
        f"id, not {shown(value)}"
    )


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
