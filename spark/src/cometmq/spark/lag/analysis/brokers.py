# SPDX-License-Identifier: Apache-2.0
"""Computes a report's facts about brokers, in plain Python because there are few brokers."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

import msgspec

from cometmq.spark.lag.analysis.deletion import deletion_spans
from cometmq.spark.lag.rules import Rules

Row = Mapping[str, Any]

FILE_RESERVED_HOURS: Final = 72
DISK_MAX_USED_RATIO: Final = 75
"""RocketMQ's defaults, used when a broker does not report its own."""
DISK_FORCED_RATIO: Final = 0.85
"""Above this ratio brokers delete at any hour, not only at `deleteWhen`."""
POINTS_MIN: Final = 3
MARGIN: Final = timedelta(days=3)
"""Deletion hours are computed up to this long after the age at which messages expire."""


class BrokerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One broker as of the newest snapshot."""

    row: dict[str, Any]
    file_reserved_hours: int
    disk_ratio_slope: float | None
    disk_full_s: float | None
    """Time until the disk reaches the broker's limit; 0 if it has, None if usage is not growing."""
    deletions: list[tuple[int, int]]
    """Intervals in which files may be deleted, in microseconds since 1970."""

    def disk_fills(self, rules: Rules) -> bool:
        """Return whether the disk, rather than age, limits how long messages live."""
        return self.disk_full_s is not None and self.disk_full_s <= rules.disk_hours * 3600


def broker_facts(rows: Iterable[Row], last_id: int, rules: Rules) -> list[BrokerFacts]:
    """Summarize each broker in the newest snapshot; `rows` cover the long window."""
    by_name: dict[tuple[str, str], dict[int, Row]] = {}
    for row in rows:
        by_name.setdefault((row["cluster"], row["broker_name"]), {})[row["snapshot_id"]] = row
    return [
        _facts([points[number] for number in sorted(points)], rules)
        for _, points in sorted(by_name.items())
        if last_id in points
    ]


def _facts(points: Sequence[Row], rules: Rules) -> BrokerFacts:
    row = _with_settings(points)
    known = [
        (it["read_ts"], it["commitlog_disk_ratio"])
        for it in points
        if it["commitlog_disk_ratio"] is not None
    ]
    slope = _slope(known)
    hours = row["file_reserved_hours"]
    hours = FILE_RESERVED_HOURS if hours is None else hours
    spans = deletion_spans(
        row["delete_when"],
        ZoneInfo(rules.timezone),
        begin=row["read_ts"],
        end=row["read_ts"] + timedelta(hours=hours) + MARGIN,
    )
    return BrokerFacts(
        row=row,
        file_reserved_hours=hours,
        disk_ratio_slope=slope,
        disk_full_s=_disk_full_s(row, slope),
        deletions=[(_micros(begin), _micros(end)) for begin, end in spans],
    )


def _with_settings(points: Sequence[Row]) -> dict[str, Any]:
    """Copy the newest row; if the broker was unreachable, take its settings from older rows."""
    newest = dict(points[-1])
    for name in ("file_reserved_hours", "delete_when", "disk_max_used_ratio"):
        known = (it[name] for it in reversed(points) if it[name] is not None)
        newest[name] = next(known, None)
    return newest


def _slope(points: Sequence[tuple[datetime, float]]) -> float | None:
    if len(points) < POINTS_MIN:
        return None
    last = points[-1][0]
    xs = [(moment - last).total_seconds() for moment, _ in points]
    if len(set(xs)) == 1:
        return None
    return statistics.linear_regression(xs, [ratio for _, ratio in points]).slope


def _disk_full_s(row: Row, slope: float | None) -> float | None:
    ratio, limit = row["commitlog_disk_ratio"], row["disk_max_used_ratio"]
    if ratio is None:
        return None
    percent = DISK_MAX_USED_RATIO if limit is None else limit
    left = min(percent / 100, DISK_FORCED_RATIO) - ratio
    if left <= 0:
        return 0.0
    return left / slope if slope is not None and slope > 0 else None


def _micros(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000_000)
