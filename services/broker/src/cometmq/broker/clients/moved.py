# SPDX-License-Identifier: Apache-2.0
"""Limits how often a pull whose offset is outside its queue stores an event: once per interval for
each group and queue (pure).
"""

from typing import Final

INTERVAL_MS: Final = 60_000
PLACES_MAX: Final = 10_000

Place = tuple[str, str, int]
"""Group, topic and queue id."""


class MovedReports:
    """When the last event about each group and queue was stored; times are monotonic."""

    def __init__(self) -> None:
        self._reported: dict[Place, int] = {}  # the oldest first

    def may_report(self, place: Place, now_ms: int) -> bool:
        """Return whether an event about this group and queue may be stored now; if
        so, note the time.
        """
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
