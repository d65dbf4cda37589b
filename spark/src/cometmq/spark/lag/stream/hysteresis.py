# SPDX-License-Identifier: Apache-2.0
"""Damps status changes, because a queue that hovers at a limit must not raise an alert every
minute.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from cometmq.spark.lag.columns import SEVERITIES, STATUSES

RAISE_AFTER: Final = 2
"""Consecutive windows before a worse status is announced."""
CLEAR_AFTER: Final = 3
"""Consecutive windows before a better status is announced."""
FORGET_AFTER: Final = 24 * 60
"""Consecutive windows without any series of a broker before its series are dropped: a day."""

Series = tuple[str, str, str, str, int]
"""Cluster, group, broker, topic, queue."""


class Change(msgspec.Struct, frozen=True):
    """An announced change of a series' status."""

    series: Series
    before: str | None
    """The status announced before; None if the series is new."""
    status: str


class _State(msgspec.Struct):
    announced: str | None
    seen: str
    times: int
    absent: int = 0


class Hysteresis:
    """Keeps the announced status of each series, and drops series that no longer exist.

    A broker that does not answer has no series in a window. Its series continue when it answers
    again: consecutive windows of a series are those in which its broker answered.
    """

    def __init__(self) -> None:
        self._states: dict[Series, _State] = {}

    def update(self, statuses: Mapping[Series, str]) -> list[Change]:
        """Apply the statuses of all series in one window; return the changes to announce."""
        self._drop_absent(statuses)
        return list(self._changes(statuses.items()))

    def _drop_absent(self, statuses: Mapping[Series, str]) -> None:
        answered = {_broker(series) for series in statuses}
        for series in self._states.keys() - statuses.keys():
            state = self._states[series]
            state.absent += 1
            if _broker(series) in answered or state.absent >= FORGET_AFTER:
                del self._states[series]

    def _changes(self, statuses: Iterable[tuple[Series, str]]) -> Iterable[Change]:
        for series, status in statuses:
            state = self._states.setdefault(series, _State(None, status, 0))
            state.times = state.times + 1 if status == state.seen else 1
            state.seen = status
            state.absent = 0
            if state.announced is None and status == "UNKNOWN":
                continue  # every queue starts as UNKNOWN until there are enough snapshots
            if status != state.announced and state.times >= _needed(state.announced, status):
                if state.announced is not None or STATUSES[status] != "ok":
                    yield Change(series, state.announced, status)
                state.announced = status


def _broker(series: Series) -> tuple[str, str]:
    cluster, _, broker, _, _ = series
    return cluster, broker


def _needed(announced: str | None, status: str) -> int:
    rank = SEVERITIES.index
    before = 0 if announced is None else rank(STATUSES[announced])
    is_worse = rank(STATUSES[status]) > before or announced is None
    return RAISE_AFTER if is_worse else CLEAR_AFTER
