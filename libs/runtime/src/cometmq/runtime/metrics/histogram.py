# SPDX-License-Identifier: Apache-2.0
"""A histogram of plain integers, updated on the event loop and copied by a scrape."""

from bisect import bisect_left
from collections.abc import Sequence


class Buckets:
    """Counts values in buckets with fixed, inclusive upper bounds, and adds up the values."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        assert list(bounds) == sorted(set(bounds)), "bounds rise"
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Count a value `count` times; values above the last bound are counted in `+Inf`."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count

    @property
    def count(self) -> int:
        """Return the number of values observed."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """Return pairs of an upper bound, as a string, and the number of values up to it.

        The last bound is `+Inf`.
        """
        rows: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            total += count
            rows.append(("+Inf" if bound == float("inf") else str(float(bound)), total))
        return rows
