# SPDX-License-Identifier: Apache-2.0
"""The slope of a series, from the sums in its hourly aggregates."""

from collections.abc import Mapping, Sequence
from typing import Any


def merged_slope(hours: Sequence[Mapping[str, Any]]) -> float | None:
    """Compute the slope of the lag over several hours of one series, from their `agg60` rows.

    The result equals a regression over the individual points, because the sums lose no information.
    """
    count = sum(row["n"] for row in hours)
    if count < 3:
        return None
    origin, base = hours[0]["hour_ts"], hours[0]["lag_first"]
    t = tt = y = ty = 0.0
    for row in hours:
        n, by, up = row["n"], (row["hour_ts"] - origin).total_seconds(), row["lag_first"] - base
        t += row["t"] + n * by
        tt += row["tt"] + 2 * by * row["t"] + n * by * by
        y += row["y"] + n * up
        ty += row["ty"] + by * row["y"] + up * row["t"] + n * by * up
    spread = tt - t * t / count
    return (ty - t * y / count) / spread if spread > 0 else None
