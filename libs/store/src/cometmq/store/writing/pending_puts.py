# SPDX-License-Identifier: Apache-2.0
"""Stored puts that are not yet answered, and the conditions that they are waiting for (pure).

A put may wait until its record is synced, until the replicas have it, or both. For each condition
there is an offset up to which the log fulfils it; these offsets grow, except when the log is
truncated. Puts are answered in log order, so a put never overtakes an earlier one that is still
waiting for a different condition.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from cometmq.store.results import PutDone, PutResult, PutStatus


class Condition(IntEnum):
    """A condition that a record may have to meet before its put is answered."""

    FLUSHED = 0
    """The record is on this broker's disk."""
    REPLICATED = 1
    """The required replicas have the record."""


Conditions: TypeAlias = tuple[Condition, ...]
"""Conditions in the order of their numbers. An IntFlag would cost 1 us for each test of a bit."""

_FLUSHED: Final[Conditions] = (Condition.FLUSHED,)

TIMEOUTS: Final[Mapping[Condition, PutStatus]] = {
    Condition.FLUSHED: PutStatus.FLUSH_DISK_TIMEOUT,
    Condition.REPLICATED: PutStatus.FLUSH_SLAVE_TIMEOUT,
}
"""The status of a put that timed out, by the condition for which it waited. As in RocketMQ, the
last unmet condition determines the status.
"""


class _Pending(NamedTuple):
    offset: int  # the end of the batch
    needs: Conditions
    since_ms: int
    done: PutDone
    result: PutResult


class PendingPuts:
    """Keeps the unanswered puts, in log order, and answers each once its conditions are met."""

    __slots__ = (
        "_answered_since_ms",
        "_last_needed",
        "_puts",
        "_reached",
        "answered_count",
        "count",
    )

    def __init__(self, reached: Mapping[Condition, int]) -> None:
        """Start with the offset up to which each condition is already fulfilled."""
        self._puts: deque[_Pending] = deque()
        self.count = 0
        """The number of requests; a run has several."""
        self.answered_count = self._answered_since_ms = 0
        """The number of messages answered since `take_answered`."""
        # By the number of the condition: a dict would cost 0.3 us for each hash of an enum.
        self._reached = [reached[condition] for condition in Condition]
        self._last_needed = [0] * len(Condition)  # largest offset waiting for each condition

    def __len__(self) -> int:
        return self.count

    def take_answered(self) -> tuple[int, int]:
        """Return how many messages were answered since the last call, and the time at which the
        oldest of them began to wait.
        """
        count, self.answered_count = self.answered_count, 0
        return count, self._answered_since_ms

    def is_needed(self, condition: Condition, beyond: int = 0) -> bool:
        """Return whether any put is waiting for this condition, at an offset beyond a given one."""
        needed = self._last_needed[condition]
        return bool(self._puts) and needed > beyond and needed > self._reached[condition]

    def flushing(self, offset: int) -> tuple[list[PutDone], bool]:
        """Return the callbacks of the puts of the newest commit, which ends at `offset`, that wait
        only for a sync and then succeed, in log order. Also return whether no other put of this
        commit is waiting.
        """
        dones: list[PutDone] = []
        is_all = True
        for put in reversed(self._puts):
            if put.offset != offset:
                break
            if put.needs == _FLUSHED and put.result.status is PutStatus.PUT_OK:
                dones.append(put.done)
            else:
                is_all = False
        dones.reverse()
        return dones, is_all

    def add(
        self, offset: int, needs: Conditions, now_ms: int, done: PutDone, result: PutResult
    ) -> None:
        """Register a put, to be answered once the log fulfils its conditions up to `offset`, or on
        timeout.

        If `result` has a status other than PUT_OK, the answer keeps it, unless the put fails.
        """
        for condition in needs:
            self._last_needed[condition] = offset
        self._puts.append(_Pending(offset, needs, now_ms, done, result))
        self.count += result.request_count

    def advance(self, condition: Condition, offset: int) -> None:
        """Raise the condition's offset; answer the puts that now have no unmet condition."""
        self._reached[condition] = max(self._reached[condition], offset)
        puts, reached = self._puts, self._reached
        while puts:
            put = puts[0]
            for needed in put.needs:
                if reached[needed] < put.offset:
                    return
            self._answer(PutStatus.PUT_OK)

    def retreat(self, offset: int) -> None:
        """Lower the fulfilled offsets after the log was truncated."""
        self._reached = [min(reached, offset) for reached in self._reached]

    def expire(self, now_ms: int, timeouts_ms: Sequence[int]) -> None:
        """Answer the puts whose unmet conditions have all timed out; their messages are stored.

        `timeouts_ms` holds the timeout of each condition, in the order of their numbers.
        """
        puts = self._puts
        shortest_ms = min(timeouts_ms)
        while puts:
            since_ms = puts[0].since_ms
            if since_ms <= now_ms < since_ms + shortest_ms:
                return
            unmet = self._unmet(puts[0])
            if not all(
                has_passed(timeouts_ms[condition], since_ms=since_ms, now_ms=now_ms)
                for condition in unmet
            ):
                return
            status = PutStatus.PUT_OK
            for condition in unmet:
                status = TIMEOUTS[condition]
            self._answer(status)

    def fail(self) -> None:
        """Refuse all pending puts, because a sync failed or their records may be truncated."""
        while self._puts:
            self._puts[0].result.status = PutStatus.SERVICE_NOT_AVAILABLE
            self._answer(PutStatus.SERVICE_NOT_AVAILABLE)

    def _unmet(self, put: _Pending) -> list[Condition]:
        reached, offset = self._reached, put.offset
        return [condition for condition in put.needs if reached[condition] < offset]

    def _answer(self, status: PutStatus) -> None:
        put = self._puts.popleft()
        self.count -= put.result.request_count
        if not self.answered_count:
            self._answered_since_ms = put.since_ms
        self.answered_count += put.result.message_count
        if put.result.status is PutStatus.PUT_OK:
            put.result.status = status
        put.done(put.result)


def has_passed(interval_ms: int, *, since_ms: int, now_ms: int) -> bool:
    """Return whether an interval has passed; a start time in the future counts as passed."""
    return not since_ms <= now_ms < since_ms + interval_ms
