# SPDX-License-Identifier: Apache-2.0
"""Ranges of the log whose bytes are known to be damaged: sorted, disjoint, usually empty."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class DamagedRange(NamedTuple):
    """The physical offsets from `start` up to, but not including, `end`."""

    start: int
    end: int


def merged(ranges: Iterable[DamagedRange]) -> tuple[DamagedRange, ...]:
    """Sort the ranges, and join ranges that touch or overlap."""
    found: list[DamagedRange] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1].end:
            found[-1] = DamagedRange(found[-1].start, max(end, found[-1].end))
        else:
            found.append(DamagedRange(start, end))
    return tuple(found)


def clipped(ranges: Iterable[DamagedRange], first: int, end: int) -> tuple[DamagedRange, ...]:
    """Return the parts of the ranges that lie between two offsets."""
    parts = (DamagedRange(max(it.start, first), min(it.end, end)) for it in ranges)
    return tuple(part for part in parts if part.start < part.end)


def without(ranges: Iterable[DamagedRange], gone: DamagedRange) -> tuple[DamagedRange, ...]:
    """Return the ranges without the part that lies in `gone`; one of them may become two."""
    parts = (
        part
        for start, end in ranges
        for part in (
            DamagedRange(start, min(end, gone.start)),
            DamagedRange(max(start, gone.end), end),
        )
    )
    return tuple(part for part in parts if part.start < part.end)


def covers(ranges: Sequence[DamagedRange], part: DamagedRange) -> bool:
    """Return whether one of the ranges contains all of `part`."""
    before = bisect_right(ranges, (part.start, 1 << 63)) - 1
    return before >= 0 and part.end <= ranges[before].end


def overlaps(ranges: Sequence[DamagedRange], offset: int, size: int) -> bool:
    """Return whether a record at this offset overlaps one of the ranges."""
    before = bisect_right(ranges, (offset + size - 1, 1 << 63)) - 1
    return before >= 0 and ranges[before].end > offset
