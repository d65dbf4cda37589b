# SPDX-License-Identifier: Apache-2.0
"""Figures of GET_BROKER_RUNTIME_INFO from copies of the totals: rates, from one copy per second,
and the totals at the last two midnights, which a timer asks for every 10 s.

Compatibility: as in RocketMQ, the totals restart at zero when the broker starts.
"""

from collections import deque
from collections.abc import Callable
from datetime import date, datetime
from typing import Final

import msgspec

from cometmq.broker.statistics.counters import BrokerStats

SAMPLE_COUNT_MAX: Final = 601  # both ends of the longest window
WINDOWS_S: Final = (10, 60, 600)


class Sample(msgspec.Struct, gc=False, frozen=True):
    at_ms: int
    put_count: int = 0
    get_count: int = 0
    found_count: int = 0
    miss_count: int = 0


class Rates:
    def __init__(self, stats: BrokerStats) -> None:
        self._stats = stats
        self.samples: deque[Sample] = deque(maxlen=SAMPLE_COUNT_MAX)

    def sample(self, now_ms: int, *, put_count: int) -> None:
        """Copy the totals; `put_count` is the store's number of messages."""
        stats = self._stats
        self.samples.append(
            Sample(now_ms, put_count, stats.get_count, stats.found_count, stats.miss_count)
        )

    def rate(self, field: str, window_s: int) -> float:
        """Return the growth per second of one field of `Sample` over the window."""
        if len(self.samples) < 2:
            return 0.0
        newest = self.samples[-1]
        oldest = self.samples[max(0, len(self.samples) - 1 - window_s)]
        elapsed_s = (newest.at_ms - oldest.at_ms) / 1000
        if elapsed_s <= 0:
            return 0.0
        return float(getattr(newest, field) - getattr(oldest, field)) / elapsed_s


class Totals(msgspec.Struct, frozen=True):
    """Message counts since the broker started."""

    put_count: int = 0
    get_count: int = 0


class History:
    def __init__(self, totals: Callable[[], Totals], *, now_ms: int) -> None:
        self.this_morning = Totals()
        self.yesterday_morning = Totals()
        self._totals = totals
        self._day = _local_day(now_ms)

    def sample(self, now_ms: int) -> None:
        """After midnight, keep a copy of the day's totals.

        A clock that is set back by less than a day repeats no midnight.
        """
        day = _local_day(now_ms)
        if day > self._day or (self._day - day).days > 1:
            self._day = day
            self.yesterday_morning = self.this_morning
            self.this_morning = self._totals()


def _local_day(now_ms: int) -> date:
    return datetime.fromtimestamp(now_ms / 1000).astimezone().date()
