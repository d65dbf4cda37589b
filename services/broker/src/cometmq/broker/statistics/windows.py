# SPDX-License-Identifier: Apache-2.0
"""Growth of counters over the last minute, hour and day (pure).

The figures of a source are copied here every ten seconds, every ten minutes and every hour. A
statistic is the difference between the newest and the oldest copy.

Compatibility: the intervals and the numbers of copies are RocketMQ's, so the figures of code 315
have the same meaning. As in RocketMQ, the first copy counts as growth from zero over one interval,
and a period without copies has zeros.
"""

from array import array
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from cometmq.remoting.bodies.stats import BrokerStatsData, StatsItem


class Period(NamedTuple):
    """The interval between two copies, and the number of copies that are kept."""

    interval_ms: int
    count_max: int


MINUTE: Final = Period(10_000, 7)
HOUR: Final = Period(600_000, 7)
DAY: Final = Period(3_600_000, 25)
PERIODS: Final = (MINUTE, HOUR, DAY)


class Window:
    """The copies of one period; each row holds a time and the figures."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows = array("q")

    def add(self, period: Period, at_ms: int, figures: Sequence[int]) -> None:
        """Append a copy of the current figures."""
        rows = self._rows
        width = len(figures) + 1
        if not rows:
            rows.append(at_ms - period.interval_ms)
            rows.extend([0] * len(figures))
        rows.append(at_ms)
        rows.extend(figures)
        if len(rows) > period.count_max * width:
            del rows[:width]

    def is_last(self, figures: Sequence[int]) -> bool:
        """Return whether the newest copy equals these figures."""
        return self._rows[-len(figures) :].tolist() == list(figures)

    def item(self, width: int, value_at: int, times_at: int | None) -> StatsItem:
        """Return the growth of the figure at index `value_at`; `times_at` is the index of the
        figure with the number of calls, None if there is none.
        """
        rows = self._rows
        if not rows:
            return StatsItem()
        first, last = rows[:width], rows[-width:]
        total = last[value_at + 1] - first[value_at + 1]
        elapsed_ms = last[0] - first[0]
        times = 0 if times_at is None else last[times_at + 1] - first[times_at + 1]
        return StatsItem(
            avgpt=total / times if times > 0 else 0.0,
            sum=total,
            tps=total * 1000 / elapsed_ms if elapsed_ms > 0 else 0.0,
        )


class Rounds:
    """The times at which copies were due; for each period, only the newest `count_max` are kept."""

    __slots__ = ("times",)

    def __init__(self) -> None:
        self.times = {period: deque[int](maxlen=period.count_max) for period in PERIODS}

    def begin(self, periods: Sequence[Period], at_ms: int) -> None:
        """Record that copies of these periods are due."""
        for period in periods:
            self.times[period].append(at_ms)


class Windows:
    """The windows of one source of figures, one per period."""

    __slots__ = ("_copied_ms", "_width", "_windows")

    def __init__(self, figure_count: int) -> None:
        self._copied_ms = 0
        self._width = figure_count + 1
        self._windows = {period: Window() for period in PERIODS}

    def add(self, periods: Sequence[Period], at_ms: int, figures: Sequence[int]) -> None:
        self._copied_ms = at_ms
        for period in periods:
            self._windows[period].add(period, at_ms, figures)

    def is_flat(self, figures: Sequence[int]) -> bool:
        """Return whether the figures equal the last copy of every period."""
        return self._windows[MINUTE].is_last(figures)

    def catch_up(self, rounds: Rounds, figures: Sequence[int]) -> None:
        """Add the copies that were skipped while the figures did not change."""
        for period, times in rounds.times.items():
            for at_ms in times:
                if at_ms > self._copied_ms:
                    self._windows[period].add(period, at_ms, figures)
        self._copied_ms = max(self._copied_ms, rounds.times[MINUTE][-1])

    def item(self, period: Period, value_at: int, times_at: int | None) -> StatsItem:
        return self._windows[period].item(self._width, value_at, times_at)

    def data(self, value_at: int, times_at: int | None) -> BrokerStatsData:
        """Return the growth of one figure in each period."""
        return BrokerStatsData(
            stats_day=self.item(DAY, value_at, times_at),
            stats_hour=self.item(HOUR, value_at, times_at),
            stats_minute=self.item(MINUTE, value_at, times_at),
        )
