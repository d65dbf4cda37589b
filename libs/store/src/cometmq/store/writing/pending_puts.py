# SPDX-License-Identifier: Apache-2.0
"""Puts that are stored but not yet answered, and the conditions that their answers wait for (pure).

A put may wait until its record is synced, until the replicas have it, or both. Each condition has
an offset up to which the log fulfils it; offsets only grow. Puts are answered in the order of the
log, so a put never overtakes an earlier one that still waits for something else.
"""

from collections import deque
from collections.abc import Mapping
from enum import IntFlag
from typing import Final, NamedTuple

from cometmq.store.pacing import has_passed
from cometmq.store.results import PutDone, PutResult, PutStatus


class Condition(IntFlag):
    """Conditions of a record that must hold before its put is answered."""

    NONE = 0
    FLUSHED = 1
    """The record is on this broker's disk."""
    REPLICATED = 2
    """The replicas that count have the record."""


TIMEOUTS: Final[Mapping[Condition, PutStatus]] = {
    Condition.FLUSHED: PutStatus.FLUSH_DISK_TIMEOUT,
    Condition.REPLICATED: PutStatus.FLUSH_SLAVE_TIMEOUT,
}
"""Condition -> status of a put that timed out waiting for it; the first unmet one counts."""


class _Pending(NamedTuple):
    offset: int  # the end of the batch
    needs: Condition
    since_ms: int
    done: PutDone
    result: PutResult


class PendingPuts:
    """The unanswered puts in the order of the log."""

    __slots__ = ("_last_needed", "_puts", "_reached")

    def __init__(self, reached: Mapping[Condition, int]) -> None:
        """Start with the offset up to which each condition is fulfilled."""
        self._puts: deque[_Pending] = deque()
        self._reached = dict(reached)
        self._last_needed = dict.fromkeys(TIMEOUTS, 0)  # the largest offset that waits for each

    def __len__(self) -> int:
        return len(self._puts)

    def is_needed(self, condition: Condition) -> bool:
        """Whether a put waits for this condition."""
        return bool(self._puts) and self._last_needed[condition] > self._reached[condition]

    def add(
        self, offset: int, needs: Condition, now_ms: int, done: PutDone, result: PutResult
    ) -> None:
        """Answer a put once the log fulfils its conditions up to `offset`, or on timeout."""
        for condition in needs:
            self._last_needed[condition] = offset
        self._puts.append(_Pending(offset, needs, now_ms, done, result))

    def advance(self, condition: Condition, offset: int) -> None:
        """Answer the puts for which this was the last condition."""
        self._reached[condition] = max(self._reached[condition], offset)
        while self._puts and not self._unmet(self._puts[0]):
            self._answer(PutStatus.PUT_OK)

    def retreat(self, offset: int) -> None:
        """Follow a log that was truncated."""
        for condition, reached in self._reached.items():
            self._reached[condition] = min(reached, offset)

    def expire(self, now_ms: int, timeout_ms: int) -> None:
        """Answer the puts that waited too long: stored, but a condition may not hold."""
        puts = self._puts
        while puts and has_passed(timeout_ms, since_ms=puts[0].since_ms, now_ms=now_ms):
            unmet = self._unmet(puts[0])
            self._answer(TIMEOUTS[next(iter(unmet))] if unmet else PutStatus.PUT_OK)

    def fail(self) -> None:
        """Refuse all pending puts: after a failed sync nothing proves what is on the disk."""
        while self._puts:
            self._answer(PutStatus.SERVICE_NOT_AVAILABLE)

    def _unmet(self, put: _Pending) -> Condition:
        unmet = Condition.NONE
        for condition, reached in self._reached.items():
            if put.needs & condition and reached < put.offset:
                unmet |= condition
        return unmet

    def _answer(self, status: PutStatus) -> None:
        put = self._puts.popleft()
        put.result.status = status
        put.done(put.result)
