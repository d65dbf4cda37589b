# SPDX-License-Identifier: Apache-2.0
"""Latency of puts, measured per commit rather than per message (pure).

All messages that a commit or a sync completes are counted with the latency of the oldest one. This
needs no time stamp per message, and never understates a latency. Latencies below one millisecond
are not counted; their number is the difference between the stored and the counted messages.

The classes and the percentiles describe the last whole minute or, during the first minute, the time
since startup. Compatibility: the classes are those of RocketMQ's putMessageDistributeTime.
"""

from collections.abc import Callable, Mapping
from typing import Final

ROTATE_INTERVAL_MS: Final = 60_000
TIME_MAX_MS: Final = 10_000  # longer times count as this one

# Class -> exclusive upper bound in milliseconds.
_CLASSES: Final = {
    "<=0ms": 1, "0~10ms": 10, "10~50ms": 50, "50~100ms": 100, "100~200ms": 200,
    "200~500ms": 500, "500ms~1s": 1000, "1~2s": 2000, "2~3s": 3000, "3~4s": 4000, "4~5s": 5000,
    "5~10s": TIME_MAX_MS, "10s~": TIME_MAX_MS + 1,
}  # fmt: skip


class PutTimes:
    """The latencies of the current minute and of the previous one."""

    __slots__ = ("_counts", "_last", "_put_count", "_seen_count", "max_ms")

    def __init__(self, put_count: Callable[[], int]) -> None:
        """`put_count` returns the number of messages stored since startup."""
        self.max_ms = 0
        self._put_count = put_count
        self._seen_count = 0  # messages stored before this minute
        self._counts: dict[int, int] = {}
        self._last: Mapping[int, int] | None = None

    def add(self, elapsed_ms: int, count: int) -> None:
        """Count `count` messages that have the same latency; latencies below one millisecond are
        ignored.
        """
        if elapsed_ms <= 0:
            return
        self.max_ms = max(self.max_ms, elapsed_ms)
        elapsed_ms = min(elapsed_ms, TIME_MAX_MS)
        self._counts[elapsed_ms] = self._counts.get(elapsed_ms, 0) + count

    def rotate(self) -> None:
        """Close the current minute and start a new one."""
        self._last = self._current()
        self._counts = {}
        self._seen_count = self._put_count()

    def classes(self) -> dict[str, int]:
        """Return the number of messages in each latency class."""
        counts = dict.fromkeys(_CLASSES, 0)
        for elapsed_ms, count in self._shown().items():
            name = next(name for name, end_ms in _CLASSES.items() if elapsed_ms < end_ms)
            counts[name] += count
        return counts

    def percentile(self, share: float) -> int:
        """Return the latency at this quantile (0 to 1); 0 if there are no messages."""
        shown = self._shown()
        wanted = sum(shown.values()) * share
        passed = 0
        for elapsed_ms in sorted(shown):
            passed += shown[elapsed_ms]
            if passed >= wanted:
                return elapsed_ms
        return 0

    def _shown(self) -> Mapping[int, int]:
        return self._current() if self._last is None else self._last

    def _current(self) -> Mapping[int, int]:
        count = self._put_count() - self._seen_count
        return {0: max(0, count - sum(self._counts.values())), **self._counts}
