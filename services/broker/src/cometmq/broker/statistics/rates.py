# SPDX-License-Identifier: Apache-2.0
"""The rates in GET_BROKER_RUNTIME_INFO, computed from copies of the totals, one per second."""

from collections import deque
from typing import Final

import msgspec

from cometmq.broker.statistics.counters import BrokerStats

SAMPLE_INTERVAL_MS: Final = 1_000
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
