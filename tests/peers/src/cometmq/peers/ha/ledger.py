# SPDX-License-Identifier: Apache-2.0
"""The ledger of the fault tests: sent, acknowledged, failed and received messages by position."""

from collections.abc import Iterator
from itertools import pairwise, takewhile
from time import monotonic
from typing import Final, NamedTuple, TypeAlias

_DISORDER_S: Final = 1.0
"""Acknowledgements are recorded in the order in which they arrive, to within this time."""

ORDERLY: Final = "orderly"
"""The consumer whose deliveries are checked."""
CONCURRENT: Final = "concurrent"
"""A consumer beside it, of which only the times matter."""

Place: TypeAlias = tuple[int, int]
"""Queue id and queue offset."""


class Acknowledged(NamedTuple):
    """One acknowledged send; times are monotonic seconds."""

    began: float
    ended: float
    place: Place


class Outage(NamedTuple):
    """The effect of one fault on senders."""

    again_s: float
    """Seconds from the fault until a send that began after it was acknowledged."""
    pause_s: float
    """The longest time without an acknowledgement."""
    failed_count: int


class Ledger:
    """All messages of a run, by number."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, Acknowledged] = {}
        self.failed: dict[int, tuple[float, str]] = {}
        """When and why a send failed; its message may be stored."""
        self.pending: dict[int, float] = {}
        """When each send without an outcome began."""
        self.senders: dict[int, int] = {}
        """The sender of each message; a sender waits for one answer before its next send."""
        self.deliveries: dict[str, dict[int, float]] = {ORDERLY: {}}
        """Consumer -> message -> when the consumer first received it, in monotonic seconds."""
        self.stored: dict[Place, int] = {}
        """The number of the message received at each place."""
        self.received: set[int] = set()
        self.repeated_count = 0
        """Deliveries of a place after the first."""
        self._ends: dict[int, int] = {}
        self._wrong: list[str] = []

    def receive(self, place: Place, number: int, at: float | None = None) -> None:
        """Record a delivery, now or at a time; an orderly consumer must receive new positions in
        order.
        """
        self.received.add(number)
        self.note_delivery(ORDERLY, number, monotonic() if at is None else at)
        if place in self.stored:
            self.repeated_count += 1
            if self.stored[place] != number:
                self._wrong.append(f"{place} held {self.stored[place]}, and later {number}")
            return
        queue_id, offset = place
        if offset <= self._ends.get(queue_id, -1):
            self._wrong.append(f"{place} came after {self._ends[queue_id]}")
        self.stored[place] = number
        self._ends[queue_id] = max(offset, self._ends.get(queue_id, -1))

    def lost(self) -> set[int]:
        """Return the acknowledged messages that no consumer has received."""
        return self.acknowledged.keys() - self.received

    def faults(self) -> list[str]:
        """Return one line for each violated guarantee."""
        found = list(self._wrong)
        found += [
            f"{number} is lost: {self.acknowledged[number]}" for number in sorted(self.lost())
        ]
        last: dict[tuple[int, int], int] = {}
        for number, sent in sorted(self.acknowledged.items()):
            there = self.stored.get(sent.place)
            if there not in (None, number):
                found.append(f"{number} was acknowledged at {sent.place}, where {there} is")
            queue_id, offset = sent.place
            key = (self.senders[number], queue_id)
            if offset <= last.get(key, -1):
                found.append(f"{number} at {sent.place} is before an earlier message of its sender")
            last[key] = offset
        found += [] if self.acknowledged else ["no message was acknowledged"]
        return found

    def is_again(self, moment: float) -> bool:
        """Return whether a send that began after `moment` is acknowledged."""
        recent = takewhile(lambda it: it.ended >= moment, self._newest_first())
        return any(it.began >= moment for it in recent)

    def _newest_first(self) -> Iterator[Acknowledged]:
        return reversed(self.acknowledged.values())

    def outage(self, since: float, until: float) -> Outage | None:
        """Return the senders' outage between two times, or None if no send was acknowledged."""
        # Newest first: otherwise a long run would read all its messages after each fault.
        recent = takewhile(lambda it: it.ended >= since - _DISORDER_S, self._newest_first())
        inside = [it for it in recent if since <= it.ended <= until]
        first = min((it.ended for it in inside if it.began >= since), default=None)
        if first is None:
            return None
        times = sorted(it.ended for it in inside)
        return Outage(
            first - since,
            max(later - earlier for earlier, later in pairwise([since, *times, until])),
            sum(since <= when <= until for when, _ in self.failed.values()),
        )

    def note_delivery(self, consumer: str, number: int, at: float) -> None:
        """Record when a consumer received a message."""
        self.deliveries.setdefault(consumer, {}).setdefault(number, at)

    def has_caught_up(self, moment: float) -> bool:
        """Return whether every consumer has received all messages acknowledged before `moment`."""
        sent = {number for number, one in self.acknowledged.items() if one.ended < moment}
        return all(sent <= times.keys() for times in self.deliveries.values())

    def standstill(self, consumer: str, since: float, until: float) -> float:
        """Return the longest time between two times without a delivery, or that a message waited
        for its delivery: a consumer may stand still in some queues only.
        """
        received = self.deliveries[consumer]
        times = sorted(when for when in received.values() if since <= when <= until)
        pauses = [later - earlier for earlier, later in pairwise([since, *times, until])]
        sent = ((number, one.ended) for number, one in self.acknowledged.items())
        waits = [
            received.get(number, until) - ended for number, ended in sent if since <= ended <= until
        ]
        return max(*pauses, *waits)
