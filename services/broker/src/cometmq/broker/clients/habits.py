# SPDX-License-Identifier: Apache-2.0
"""What clients' libraries do without their users' knowledge, by group (pure): dead letters at the
first failure, and transaction checks that connected producers never answer.

Also bounds the events about pulls outside their queues.

Invariant: the table is bounded; the entry that was renewed least recently is evicted first.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from cometmq.remoting.bodies.overview import GroupHabit, Habit
from cometmq.remoting.log import NO_LOG, Log

ENTRIES_MAX: Final = 200
CHECKS_MIN: Final = 3
"""Unanswered checks of a producer group that cause a warning; usually over more than a minute."""
CHECKS_KEPT: Final = 16


class Habits:
    """A warning is logged once a group, until its entry is evicted or its producers answer."""

    def __init__(self, log: Log = NO_LOG) -> None:
        self._log = log
        self._entries: dict[tuple[Habit, str], GroupHabit] = {}
        self._checks: dict[str, deque[int]] = {}
        """Offsets of the half messages of which a group's producers were asked in vain."""

    def dead_at_once(self, group: str, now_ms: int) -> None:
        """Note a dead letter at the first failure, because the consumer allows no retry."""
        if self._note(Habit.DEAD_AT_ONCE, group, 1, now_ms):
            self._log.warning("group.dead_letters_at_once", group=group)

    def asked(self, group: str, offset: int, now_ms: int, is_closed: Callable[[int], bool]) -> None:
        """Note a check of a half message; `is_closed` tells which half messages have ended."""
        checks = self._checks.pop(group, None)
        if checks is None or any(map(is_closed, checks)):
            self.answered(group)
            checks = deque(maxlen=CHECKS_KEPT)
        if len(self._checks) >= ENTRIES_MAX:
            del self._checks[next(iter(self._checks))]
        checks.append(offset)
        self._checks[group] = checks
        count = len(checks)
        if count >= CHECKS_MIN and self._note(Habit.CHECKS_UNANSWERED, group, count, now_ms):
            self._log.warning("producers.silent", group=group, checks=count)

    def answered(self, group: str) -> None:
        """Note that a producer of the group has answered a check."""
        self._checks.pop(group, None)
        self._entries.pop((Habit.CHECKS_UNANSWERED, group), None)

    def newest(self) -> list[GroupHabit]:
        """Return all entries, the newest first."""
        return list(self._entries.values())[::-1]

    def _note(self, habit: Habit, group: str, count: int, now_ms: int) -> bool:
        """Renew an entry, and return whether it is new."""
        old = self._entries.pop((habit, group), None)
        if old is None and len(self._entries) >= ENTRIES_MAX:
            del self._entries[next(iter(self._entries))]
        first_ms = now_ms if old is None else old.first_ms
        if old is not None and habit is Habit.DEAD_AT_ONCE:
            count += old.count
        self._entries[habit, group] = GroupHabit(habit, group, count, first_ms, now_ms)
        return old is None


INTERVAL_MS: Final = 60_000
PLACES_MAX: Final = 10_000

Place = tuple[str, str, int]
"""Group, topic and queue id."""


class MovedReports:
    """When the last event about each group and queue was stored; times are monotonic."""

    def __init__(self) -> None:
        self._reported: dict[Place, int] = {}  # the oldest first

    def may_report(self, place: Place, now_ms: int) -> bool:
        """Return whether an event about this place may be stored now; if so, note the time."""
        reported_ms = self._reported.get(place)
        if reported_ms is not None and now_ms - reported_ms < INTERVAL_MS:
            return False
        self._reported.pop(place, None)
        if len(self._reported) >= PLACES_MAX:
            oldest = next(iter(self._reported))
            if now_ms - self._reported[oldest] < INTERVAL_MS:
                return False
            del self._reported[oldest]
        self._reported[place] = now_ms
        return True
