# SPDX-License-Identifier: Apache-2.0
"""The failed attempts to send one message, and the queue of the next: round robin or by key, away
from slow or failing brokers.

The selectors for ordered sending use Java's hash rule, so that producers in any language choose the
same queue for a key.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any, Final

import msgspec

from cometmq.client.clock import TimeLimit, monotonic_ms
from cometmq.client.cluster.instance import ClientInstance
from cometmq.client.cluster.routes import Route
from cometmq.client.errors import (
    BrokerMissing,
    ClientError,
    InvalidArgument,
    NoNamesrv,
    RequesterGone,
    SendFailed,
    SendTimeout,
    no_route,
    shown,
)
from cometmq.client.message import Message
from cometmq.client.namespace import Namespace
from cometmq.client.settings import ProducerOptions
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.errors import (
    CommandError,
    ConnectFailed,
    ConnectionLost,
    Outage,
    Overloaded,
    RemoteProtocolError,
    RequestTimeout,
    TopicNotExist,
)
from cometmq.remoting.message.flags import java_hash

UNANSWERED: Final = (ConnectionLost, RequestTimeout, RemoteProtocolError)
"""Errors after which the broker may have stored the message."""

UNREACHED: Final = (ConnectFailed, Overloaded, BrokerMissing, NoNamesrv)
"""Errors after which certainly no broker has received the message."""

PASSING: Final = (Outage, RemoteProtocolError, RequesterGone)
"""Errors, other than a broker's refusal, after which another attempt may succeed.

Any other ClientError is a forbidden hook's refusal, which every attempt would meet.
"""

RETRY_LEFT_MS_MIN: Final = 10
"""A retry with less time could not be confirmed, but might store the message a second time."""

BACK_OFF_MS: Final = (50, 800)
"""The first and the longest pause between attempts that reach no broker."""

_BUSY_PAUSE_MS: Final = 100  # doubled at each attempt
_NAMED_MAX: Final = 3
"""If there were more attempts, an error names each broker once."""

_LASTING: Final = frozenset(
    (
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    )
)
"""Codes of refusals that do not go away with time, but that a different broker may not share."""


def is_unreached(error: Exception | None) -> bool:
    """Return whether no broker seems to have received the message.

    A proxy that accepts connections for a broker that is down (such as a service of Kubernetes or
    a published port of a container) closes them before anything is answered.
    """
    if isinstance(error, ConnectionLost):
        return not error.has_answered
    return isinstance(error, UNREACHED)


class Attempts(msgspec.Struct, gc=False):
    """The failed attempts to send a message."""

    brokers: list[str]
    """The brokers that were tried; an attempt that finds no master adds none."""
    count: int = 0
    unreached_count: int = 0
    """The attempts that reached no broker: they are limited by time only."""
    round: set[str] = msgspec.field(default_factory=set)
    """The brokers that were not reached since the last pause."""
    back_off_ms: int = BACK_OFF_MS[0]
    failure: Exception | None = None
    may_be_stored: bool = False
    lasting_count: int = 0
    gone: RequesterGone | None = None
    """The requester of a reply that a broker has stored, but could not push."""

    def may_begin(self, count_max: int, left_ms: int) -> bool:
        """Return whether a further attempt is allowed and has enough time.

        Attempts that reached no broker do not count, unless there are no retries at all: all of
        them would fail within milliseconds of a broker's death, long before a successor serves.
        """
        if not self.count:
            return left_ms >= 1
        counted = self.count if count_max == 1 else self.count - self.unreached_count
        return counted < count_max and left_ms >= RETRY_LEFT_MS_MIN

    def pause_ms(self, brokers: Iterable[str], left_ms: int) -> int:
        """Return how long to wait before the next attempt, which must have some time left.

        The other brokers are tried at once; after all `brokers` of the topic have failed, each
        pause is twice as long as the last one.
        """
        if not is_unreached(self.failure) or not self.round.issuperset(brokers):
            return 0
        self.round.clear()
        pause_ms, self.back_off_ms = self.back_off_ms, min(2 * self.back_off_ms, BACK_OFF_MS[1])
        return max(0, min(pause_ms, left_ms - 2 * RETRY_LEFT_MS_MIN))

    def note(self, error: Exception, *, cost_ms: int = 0) -> None:
        """Record why an attempt failed, and how long it took.

        Of several timeouts, the first is reported, because later attempts had only the remaining
        time.
        """
        if not (isinstance(error, RequestTimeout) and isinstance(self.failure, RequestTimeout)):
            self.failure = error
        if is_unreached(error):
            # An attempt that fails at once because of the route had no lookup to wait for.
            is_idle = isinstance(error, ClientError) and cost_ms < RETRY_LEFT_MS_MIN
            self.unreached_count += not is_idle
            self.round.update(self.brokers[-1:])
        if isinstance(error, RequesterGone):
            self.gone = error
        if isinstance(error, CommandError) and error.code in _LASTING:
            self.lasting_count += 1
        self.may_be_stored = self.may_be_stored or isinstance(error, UNANSWERED)

    def is_futile(self, brokers: Iterable[str]) -> bool:
        """Return whether the requester is gone and every broker that could reach it was tried."""
        return self.gone is not None and set(self.brokers).issuperset(brokers)

    def error(self, topic: str, limit: TimeLimit) -> Exception:
        """Return the error to raise after the last attempt.

        If every attempt was refused permanently, this is the last refusal, because SendFailed would
        invite the caller to retry later; for a topic that does not exist, it is NoRoute, as if the
        name servers had reported it. A stored reply whose requester is gone is not a failed send.
        """
        if self.gone is not None:
            return self.gone
        if self.failure is not None and self.lasting_count == self.count:
            if not isinstance(self.failure, TopicNotExist):
                return self.failure
            missing = no_route(topic, refused_by=self.brokers)
            missing.__cause__ = self.failure
            return missing
        error = self.gave_up(topic, limit)
        error.__cause__ = self.failure
        return error

    def gave_up(self, topic: str, limit: TimeLimit) -> SendFailed:
        """Describe the attempts in an error: SendTimeout if time ran out, otherwise SendFailed."""
        message = f"the message to the topic {topic}"
        if self.may_be_stored:
            start = f"no broker has confirmed {message}, which may be stored: gave up"
        else:
            start = f"{message} was not {'stored' if self.count else 'sent'}"
        failure, cost_ms = self.failure, limit.elapsed_ms()
        brokers = self.brokers if len(self.brokers) <= _NAMED_MAX else dict.fromkeys(self.brokers)
        is_late = cost_ms >= limit.timeout_ms or isinstance(failure, RequestTimeout)
        text = "".join(
            (
                start,
                {0: "", 1: " after 1 attempt"}.get(self.count, f" after {self.count} attempts"),
                f" in {cost_ms} ms",
                f" (its timeout is {limit.timeout_ms} ms)" if is_late else "",
                f" at {', '.join(brokers)}" if brokers else "",
                f": {failure}" if failure is not None else "",
            )
        )
        return (SendTimeout if is_late else SendFailed)(
            text,
            brokers=tuple(self.brokers),
            may_be_stored=self.may_be_stored,
            code=failure.code if isinstance(failure, CommandError | ClientError) else None,
        )


async def pause_if_busy(error: Exception, attempt: int, left_ms: int) -> None:
    """Wait before the next attempt if the broker refused this one because it is busy."""
    if isinstance(error, CommandError) and error.code == ResponseCode.SYSTEM_BUSY:
        pause_ms = min(_BUSY_PAUSE_MS << (attempt - 1), left_ms // 2)
        await asyncio.sleep(pause_ms / 1000)


AVOIDED_MS: Final = (
    (15_000, 30_000), (5_000, 10_000), (3_000, 6_000), (1_800, 5_000), (550, 2_000)
)  # fmt: skip
"""From which latency a broker is avoided, and for how long (the same values as in RocketMQ 5.3)."""

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
        """Return a queue of an available broker, else of the better half, else of any."""
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
    return next((avoided_ms for least_ms, avoided_ms in AVOIDED_MS if latency_ms >= least_ms), 0)


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
