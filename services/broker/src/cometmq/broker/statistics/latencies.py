# SPDX-License-Identifier: Apache-2.0
"""Latencies: histograms, and the times of puts by minute, in RocketMQ's classes.

Both are updated once per batch, not once per message: all messages that a commit or a sync
completes are counted with the latency of the oldest one, which never understates a latency.
"""

from collections.abc import Callable, Mapping
from typing import Final

from cometmq.runtime.metrics.histogram import Buckets

RPC_BOUNDS_MS: Final = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)
"""Compatibility: the bounds of RocketMQ 5's rpc_latency."""

_BOUNDS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.003, 0.005, 0.007, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0,
    2.0, 3.0, 5.0,
)  # fmt: skip


def latency_buckets() -> Buckets:
    """Return an empty histogram of seconds."""
    return Buckets(_BOUNDS_S)


def in_milliseconds(seconds: Buckets) -> Buckets:
    """Return a copy in milliseconds with the bounds of `RPC_BOUNDS_MS`, all of which are among the
    bounds of `latency_buckets`.
    """
    copy = Buckets(RPC_BOUNDS_MS)
    for bound, count in zip((*seconds.bounds, float("inf")), seconds.counts, strict=True):
        place = next((n for n, ms in enumerate(RPC_BOUNDS_MS) if bound * 1000 <= ms), -1)
        copy.counts[place] += count
    copy.sum = seconds.sum * 1000
    return copy


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
        """Count messages of the same latency; those below one millisecond are ignored."""
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
