# SPDX-License-Identifier: Apache-2.0
"""Counts the electors that watch a member, by their calls to it (pure).

An elector requests the status of every member at an interval. It identifies itself in the metadata
of its calls, the mark; administrators' commands send no mark.
"""

from collections.abc import Callable
from typing import Final

ELECTOR_KEY: Final = "cometmq-elector"
"""The key in the metadata of a call; the value is a random id and the interval in ms."""
SILENCE_MS: Final = 5_000
INTERVALS: Final = 3
"""An elector is gone once it has been silent for SILENCE_MS, or for this many of its intervals."""
FIRST_MS: Final = 3_000
"""For this time after its start, a member cannot know whether there is an elector."""
ELECTORS_MAX: Final = 32
INTERVAL_MS_MAX: Final = 60_000


def elector_mark(name: str, interval_ms: int) -> str:
    """Return the metadata value of an elector's calls."""
    return f"{name};{interval_ms}"


class Electors:
    """The electors that have called a member lately."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """`now_ms` reads a monotonic clock."""
        self._now_ms = now_ms
        self._started_ms = now_ms()
        self._until_ms: dict[str, int] = {}
        """When each elector counts as gone, by its id."""

    def heard(self, mark: str) -> None:
        """Note a call of an elector; ignore a malformed mark."""
        name, _, interval = mark.partition(";")
        if not (interval.isascii() and interval.isdecimal()) or len(interval) > 6:
            return
        silence_ms = max(SILENCE_MS, INTERVALS * min(int(interval), INTERVAL_MS_MAX))
        self._until_ms.pop(name, None)
        self._until_ms[name] = self._now_ms() + silence_ms
        while len(self._until_ms) > ELECTORS_MAX:
            del self._until_ms[next(iter(self._until_ms))]

    @property
    def count(self) -> int | None:
        """The number of electors; None while the member has run for too short a time to know."""
        now_ms = self._now_ms()
        count = sum(until_ms > now_ms for until_ms in self._until_ms.values())
        return None if not count and now_ms - self._started_ms < FIRST_MS else count
