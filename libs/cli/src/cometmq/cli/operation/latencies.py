# SPDX-License-Identifier: Apache-2.0
"""A histogram of latencies with three significant digits in bounded memory, after HdrHistogram."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

SUB_BITS: Final = 11
"""Values below 2 ** SUB_BITS are exact; above, half as many buckets share each power of two."""
VALUE_MAX: Final = (1 << 32) - 1
"""About 71 minutes in microseconds; longer latencies count as this."""
PERCENTILES: Final = (50.0, 75.0, 90.0, 99.0, 99.9, 99.99)
_HALF: Final = 1 << (SUB_BITS - 1)


class Histogram(msgspec.Struct):
    """Counts of values in microseconds."""

    counts: dict[int, int] = {}
    """By bucket; at most 23,000 buckets exist."""
    count: int = 0
    total: int = 0
    least: int = VALUE_MAX
    most: int = 0

    def add(self, value: int) -> None:
        """Count a value; negative ones, of clocks that went back, count as 0."""
        value = min(max(value, 0), VALUE_MAX)
        bucket = bucket_of(value)
        self.counts[bucket] = self.counts.get(bucket, 0) + 1
        self.count += 1
        self.total += value
        self.least = min(self.least, value)
        self.most = max(self.most, value)

    def merge(self, other: "Histogram") -> None:
        """Add the counts of another histogram."""
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count
        self.count += other.count
        self.total += other.total
        self.least = min(self.least, other.least)
        self.most = max(self.most, other.most)

    def percentiles(self, wanted: Iterable[float] = PERCENTILES) -> Mapping[float, int]:
        """Return, for each wanted percentage, the value that this share of all values does not
        exceed.
        """
        rows = sorted(self.counts.items())
        found: dict[float, int] = {}
        for share in wanted:
            rank, seen = max(1, -(-self.count * share // 100)), 0
            for bucket, count in rows:
                seen += count
                if seen >= rank:
                    found[share] = min(highest_of(bucket), self.most)
                    break
        return found


def bucket_of(value: int) -> int:
    """Return the bucket of a value."""
    shift = max(0, value.bit_length() - SUB_BITS)
    return shift * _HALF + (value >> shift)


def highest_of(bucket: int) -> int:
    """Return the largest value of a bucket."""
    if bucket < 2 * _HALF:
        return bucket
    shift = bucket // _HALF - 1
    return ((bucket - shift * _HALF + 1) << shift) - 1
