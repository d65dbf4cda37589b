# SPDX-License-Identifier: Apache-2.0
"""Finds faults in a history of deliveries, and the causes of redeliveries.

The functions do no I/O. A group may redeliver a message only if its queue has moved to a different
member, or away and back, and only if the last owner had not committed the message.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from math import inf
from typing import Final, NamedTuple

from tests.load.journal import Delivery, Handover, Queue

SECOND_NS: Final = 1_000_000_000
COMMIT_NS: Final = 10 * SECOND_NS
"""Consumers commit every 5 s; the margin tolerates a loaded machine."""
CLOCKS_NS: Final = SECOND_NS
"""Tolerance between timestamps of logs and of journals."""
SETTLE_NS: Final = 45 * SECOND_NS
"""Members rebalance every 20 s even without a notification; the rest is a margin."""


class End(StrEnum):
    KILLED = "killed"
    LEFT = "left"
    AT_WORK = "at work"


class Life(NamedTuple):
    """The lifetime of a member's process."""

    member: str
    begin_ns: int
    end_ns: int
    end: End


class Cause(StrEnum):
    KILL = "kill"
    EARLY = "early"
    """A Java client that releases a queue stores its offset first, and ignores the result of the
    message in progress, which the next owner then gets again."""
    LEAVE = "leave"
    MOVE = "move"


ORDERLY_CAUSES: Final = frozenset({Cause.KILL, Cause.EARLY})
"""The only valid causes of a redelivery in an orderly group."""


Tenure = tuple[Queue, str, int]
"""One period in which one member owned one queue."""


class Repeat(NamedTuple):
    before: Delivery
    again: Delivery


def by_queue(deliveries: Iterable[Delivery]) -> dict[Queue, list[Delivery]]:
    queues: dict[Queue, list[Delivery]] = defaultdict(list)
    for delivery in sorted(deliveries, key=lambda one: one.begin_ns):
        queues[delivery.queue].append(delivery)
    return queues


def judge_order(deliveries: Sequence[Delivery], lives: Mapping[str, Life]) -> list[str]:
    """Return ordering violations in one queue of an orderly topic.

    Only one listener runs at a time, offsets are consecutive, and a new owner begins at most one
    offset past the last delivery.
    """
    wrong: list[str] = []
    owner, last, top, busy_until = ("", 0), -1, -1, 0.0
    for one in deliveries:
        if one.begin_ns < busy_until:
            wrong.append(f"{_place(one)} began at {one.member} while {owner[0]} was at {last}")
        if (one.member, one.period) == owner and one.offset != last + 1:
            wrong.append(f"{_place(one)} follows {last} at {one.member}")
        elif one.offset > top + 1:
            wrong.append(f"{_place(one)} at {one.member} leaves out what follows {top}")
        owner, last, top = (one.member, one.period), one.offset, max(top, one.offset)
        busy_until = max(busy_until, _end(one, lives))
    return wrong


def judge_keys(deliveries: Iterable[Delivery]) -> list[str]:
    """Return the keys whose first deliveries were not in the order of sending."""
    expected: Counter[tuple[str, str]] = Counter()
    seen: set[tuple[str, str]] = set()
    wrong: list[str] = []
    for one in sorted(deliveries, key=lambda one: one.begin_ns):
        topic = one.queue[0]
        if (topic, one.name) in seen:
            continue
        seen.add((topic, one.name))
        key, _, number = one.name.rpartition("-")
        if int(number) != expected[topic, key]:
            wrong.append(f"{topic}: {one.name} came where {expected[topic, key]} was expected")
        expected[topic, key] = int(number) + 1
    return wrong


def repeats(deliveries: Iterable[Delivery]) -> Iterator[Repeat]:
    """Yield each redelivery of one queue with the delivery before it."""
    before: dict[int, Delivery] = {}
    for one in deliveries:
        if one.offset in before:
            yield Repeat(before[one.offset], one)
        before[one.offset] = one


class Explainer:
    """Explains redeliveries by members' lifetimes, their periods with queues, and handovers."""

    def __init__(
        self,
        deliveries: Iterable[Delivery],
        lives: Mapping[str, Life],
        handovers: Iterable[Handover] = (),
    ) -> None:
        self._lives = lives
        self._handovers: dict[tuple[str, Queue], list[Handover]] = defaultdict(list)
        for handover in handovers:
            self._handovers[handover.member, handover.queue].append(handover)
        self._changes = sorted(
            moment for life in lives.values() for moment in (life.begin_ns, life.end_ns)
        )
        self._begins: dict[Tenure, list[int]] = defaultdict(list)
        for one in sorted(deliveries, key=lambda one: one.begin_ns):
            self._begins[_tenure(one)].append(one.begin_ns)

    def cause(self, repeat: Repeat) -> Cause | None:
        """Return the cause of a redelivery, or None if there is no legitimate one."""
        before, again = repeat
        if _tenure(before) == _tenure(again):
            return None
        begins = self._begins[_tenure(before)]
        last_ns = begins[bisect_right(begins, again.begin_ns) - 1]
        if last_ns - before.begin_ns > COMMIT_NS:
            return None  # it was committed long ago
        if last_ns == before.begin_ns and self._is_stored_early(repeat):
            return Cause.EARLY
        life = self._lives[before.member]
        if life.end_ns <= again.begin_ns and not self._is_left_behind(repeat):
            return Cause.KILL if life.end is End.KILLED else Cause.LEAVE
        taken_ns = self._begins[_tenure(again)][0]
        latest = bisect_right(self._changes, taken_ns) - 1
        is_near = latest >= 0 and taken_ns - self._changes[latest] <= SETTLE_NS
        return Cause.MOVE if is_near else None

    def _is_stored_early(self, repeat: Repeat) -> bool:
        """Return whether the previous owner released the queue before it finished the message."""
        before, again = repeat
        return any(
            one.offset == before.offset
            and before.begin_ns - CLOCKS_NS <= one.moment_ns <= again.begin_ns
            for one in self._handovers[before.member, before.queue]
        )

    def _is_left_behind(self, repeat: Repeat) -> bool:
        """Return whether the previous owner had consumed and committed the message when it left."""
        before, again = repeat
        return any(
            (one.offset is None or one.offset > before.offset)
            and before.begin_ns <= one.moment_ns <= again.begin_ns
            for one in self._handovers[before.member, before.queue]
        )


def _tenure(delivery: Delivery) -> Tenure:
    return delivery.queue, delivery.member, delivery.period


def _end(delivery: Delivery, lives: Mapping[str, Life]) -> float:
    if delivery.end_ns is not None:
        return delivery.end_ns
    life = lives[delivery.member]
    return life.end_ns if life.end is End.KILLED else inf


def _place(delivery: Delivery) -> str:
    topic, broker, queue_id = delivery.queue
    return f"{topic} {broker} {queue_id}: offset {delivery.offset}"
