# SPDX-License-Identifier: Apache-2.0
"""Which status is told: one that came to stay. A queue at a limit must not ring all day."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from cometmq.spark.lag.columns import SEVERITIES, STATUSES

RAISE_AFTER: Final = 2
"""Windows in a row with another status until a worse one is told."""
CLEAR_AFTER: Final = 3
"""Until a better one is told."""

Series = tuple[str, str, str, str, int]
"""Cluster, group, broker, topic, queue."""


class Change(msgspec.Struct, frozen=True):
    """A status that is told from now on."""

    series: Series
    before: str | None
    """None: the series is new."""
    status: str


class _State(msgspec.Struct):
    told: str | None
    seen: str
    times: int


class Hysteresis:
    """Remembers what was told of each series; forgets those that are gone."""

    def __init__(self) -> None:
        """Know nothing; what is fine is not told as new."""
        self._states: dict[Series, _State] = {}

    def update(self, statuses: Mapping[Series, str]) -> list[Change]:
        """Take the statuses of one window of all series; return what has changed."""
        for gone in self._states.keys() - statuses.keys():
            del self._states[gone]
        return list(self._changes(statuses.items()))

    def _changes(self, statuses: Iterable[tuple[Series, str]]) -> Iterable[Change]:
        for series, status in statuses:
            state = self._states.setdefault(series, _State(None, status, 0))
            state.times = state.times + 1 if status == state.seen else 1
            state.seen = status
            if state.told is None and status == "UNKNOWN":
                continue  # so is every queue until there are enough snapshots
            if status != state.told and state.times >= _needed(state.told, status):
                if state.told is not None or STATUSES[status] != "ok":
                    yield Change(series, state.told, status)
                state.told = status


def _needed(told: str | None, status: str) -> int:
    rank = SEVERITIES.index
    before = 0 if told is None else rank(STATUSES[told])
    return RAISE_AFTER if rank(STATUSES[status]) > before or told is None else CLEAR_AFTER
