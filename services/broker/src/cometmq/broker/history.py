# SPDX-License-Identifier: Apache-2.0
"""What the counters were before: totals at midnight and the recent rate of each group (pure).

A timer calls `sample` every 10 s; nothing here runs per message.
"""

from datetime import date, datetime
from typing import Final

import msgspec

from cometmq.broker.stats import BrokerStats

SAMPLE_INTERVAL_MS: Final = 10_000


class Totals(msgspec.Struct, frozen=True):
    """Messages since the broker's start."""

    put_count: int = 0
    get_count: int = 0


class GroupMark(msgspec.Struct):
    """A group's deliveries at the last sample, and their rate up to then."""

    get_count: int
    rate: float = 0.0


class History:
    """The remembered past of one run of a broker."""

    def __init__(self, stats: BrokerStats, *, now_ms: int) -> None:
        """Start with this moment as the past."""
        self.this_morning = Totals()
        self.yesterday_morning = Totals()
        self._stats = stats
        self._day = _local_day(now_ms)
        self._sampled_ms = now_ms
        self._groups: dict[tuple[str, str], GroupMark] = {}

    def sample(self, now_ms: int) -> None:
        """Compare with the last sample; after midnight remember the totals of the day."""
        elapsed_s = (now_ms - self._sampled_ms) / 1000
        if elapsed_s > 0:
            self._sample_groups(elapsed_s)
            self._sampled_ms = now_ms
        day = _local_day(now_ms)
        if day != self._day:
            self._day = day
            self.yesterday_morning = self.this_morning
            self.this_morning = Totals(self._stats.put_count, self._stats.get_count)

    def group_rate(self, topic: str, group: str) -> float:
        """Return the messages per second that the group got from the topic lately."""
        mark = self._groups.get((topic, group))
        return 0.0 if mark is None else mark.rate

    def _sample_groups(self, elapsed_s: float) -> None:
        for gone in self._groups.keys() - self._stats.groups.keys():
            del self._groups[gone]
        for key, stats in self._stats.groups.items():
            mark = self._groups.get(key)
            if mark is None:
                self._groups[key] = GroupMark(stats.get_count, stats.get_count / elapsed_s)
            else:
                mark.rate = max(0, stats.get_count - mark.get_count) / elapsed_s
                mark.get_count = stats.get_count


def _local_day(now_ms: int) -> date:
    return datetime.fromtimestamp(now_ms / 1000).astimezone().date()
