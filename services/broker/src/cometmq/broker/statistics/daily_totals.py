# SPDX-License-Identifier: Apache-2.0
"""The totals at the last two midnights (pure); a timer calls `sample` every 10 s.

Compatibility: as in RocketMQ, the totals restart at zero when the broker starts.
"""

from collections.abc import Callable
from datetime import date, datetime
from typing import Final

import msgspec

SAMPLE_INTERVAL_MS: Final = 10_000


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
