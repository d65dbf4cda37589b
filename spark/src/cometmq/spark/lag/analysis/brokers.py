# SPDX-License-Identifier: Apache-2.0
"""Facts about brokers, in plain Python because there are few brokers: disks, and when old files are
deleted (in the hours of `deleteWhen`, in their time zone).
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final
from zoneinfo import ZoneInfo

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from cometmq.insight.judge import SEVERITIES
from cometmq.spark.lag.columns import REPORT_TABLES
from cometmq.spark.lag.rules import Rules
from cometmq.spark.tables.arrow import arrow_schema

Row = Mapping[str, Any]

FILE_RESERVED_HOURS: Final = 72
DISK_MAX_USED_RATIO: Final = 75
"""RocketMQ's defaults, used when a broker does not report its own."""
DISK_FORCED_RATIO: Final = 0.85
"""Above this ratio brokers delete the oldest files, expired or not (`cleanFileForciblyEnable`)."""
POINTS_MIN: Final = 3
TRIM_MIN: Final = 0.01
"""A drop of the used part by at least this much means that files were deleted."""
NOISE_FACTOR: Final = 2
GAP_FACTOR: Final = 2
"""Snapshots are missing where two are further apart than this many times the usual interval."""
LOG_SHARE_MIN: Final = 0.9
"""If the log alone fills the disk, the growth of both tells the size of the disk. The used part of
that disk must be at least this share of the log's size; otherwise, other files fill the disk.
"""
MARGIN: Final = timedelta(days=3)
"""Deletion hours are computed up to this long after the age at which messages expire."""
EXPIRY_HOURS_MAX: Final = 10 * 366 * 24
"""Messages that are kept for longer count as never deleted because of their age: their expiry may
be after the year 9999, and the hours until then would take seconds to list.
"""


class BrokerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One broker as of the newest snapshot."""

    row: dict[str, Any]
    file_reserved_hours: int
    disk_ratio_slope: float | None
    disk_full_s: float | None
    """Time until the disk reaches the broker's limit; 0 if it has, None if usage is not growing."""
    disk_fills: bool
    """Whether the disk, rather than age, limits how long messages live."""
    disk_forced_s: float | None
    """Time until files are deleted before they expire; None if that is not expected."""
    sweep_s: float | None
    """Time in which new messages replace the whole log on a full disk; None if unknown."""
    deletions: list[tuple[int, int]]
    """Intervals in which files may be deleted, in microseconds since 1970."""


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
    slope = _growth(known)
    hours = row["file_reserved_hours"]
    hours = FILE_RESERVED_HOURS if hours is None else hours
    full_s = _disk_full_s(row, slope)
    spans = deletion_spans(
        row["delete_when"],
        ZoneInfo(rules.timezone),
        begin=row["read_ts"],
        end=row["read_ts"] + timedelta(hours=min(hours, EXPIRY_HOURS_MAX)) + MARGIN,
    )
    return BrokerFacts(
        row=row,
        file_reserved_hours=hours,
        disk_ratio_slope=slope,
        disk_full_s=full_s,
        disk_fills=full_s is not None and full_s <= rules.disk_hours * 3600,
        disk_forced_s=_disk_forced_s(row, slope),
        sweep_s=_sweep_s(points, slope),
        deletions=[(_micros(begin), _micros(end)) for begin, end in spans],
    )


def _with_settings(points: Sequence[Row]) -> dict[str, Any]:
    """Copy the newest row; if the broker was unreachable, take its settings from older rows."""
    newest = dict(points[-1])
    for name in ("file_reserved_hours", "delete_when", "disk_max_used_ratio", "clean_forcibly"):
        known = (it[name] for it in reversed(points) if it.get(name) is not None)
        newest[name] = next(known, None)
    return newest


def _growth(points: Sequence[tuple[datetime, float]]) -> float | None:
    """Return the change of a value per second since its growth began; None if it is unknown.

    A disk that began to fill ten minutes ago is as dangerous as one that has been filling for the
    whole window. The growth begins at the last snapshot with the lowest value since files were
    deleted. Two snapshots are enough if the newest value is the highest: waiting for a third would
    hide the growth. Other files on the disk come and go, so a rise counts only if it is higher than
    the upward steps before it. If snapshots are missing after that snapshot, the growth may have
    begun at any moment in between, so it is measured after them, too.
    """
    if not points:
        return None
    whole, count = _slope(points), len(points)
    points = points[_trimmed_at([value for _, value in points]) :]
    values = [value for _, value in points]
    lowest = min(values)
    begin = len(values) - 1 - values[::-1].index(lowest)
    noise = max((b - a for a, b in pairwise(values[: begin + 1])), default=0)
    is_peak = count >= POINTS_MIN and values[-1] > max(values[:-1], default=values[-1])
    slopes = [whole]
    if values[-1] - lowest > NOISE_FACTOR * noise:
        least = 2 if is_peak else POINTS_MIN
        slopes += [_slope(points[it:], points_min=least) for it in _begins(points, begin)]
    return max((it for it in slopes if it is not None), default=None)


def _begins(points: Sequence[tuple[datetime, float]], begin: int) -> list[int]:
    """Return the places from which a growth counts that begins at, or soon after, a place."""
    steps = [(b - a).total_seconds() for (a, _), (b, _) in pairwise(points)]
    is_gap = begin < len(steps) and steps[begin] > GAP_FACTOR * statistics.median(steps)
    return [begin, begin + 1] if is_gap else [begin]


def _trimmed_at(values: Sequence[float]) -> int:
    """Return the index of the first value after files were last deleted; 0 if none were.

    A drop that hardly exceeds the rise before it is not a deletion, but a file that came and went.
    """
    steps = [b - a for a, b in pairwise(values)]
    return max(
        (
            place
            for place, (before, step) in enumerate(pairwise([0.0, *steps]), 1)
            if -step >= TRIM_MIN and -step > NOISE_FACTOR * before
        ),
        default=0,
    )


def _slope(
    points: Sequence[tuple[datetime, float]], *, points_min: int = POINTS_MIN
) -> float | None:
    if len(points) < points_min:
        return None
    last = points[-1][0]
    xs = [(moment - last).total_seconds() for moment, _ in points]
    if len(set(xs)) == 1:
        return None
    if len({value for _, value in points}) == 1:
        return 0.0  # the regression yields tiny slopes from rounding errors
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


def _disk_forced_s(row: Row, slope: float | None) -> float | None:
    ratio = row["commitlog_disk_ratio"]
    if ratio is None or row["clean_forcibly"] is False:
        return None
    left = DISK_FORCED_RATIO - ratio
    if left <= 0:
        return 0.0
    return left / slope if slope is not None and slope > 0 else None


def _sweep_s(points: Sequence[Row], slope: float | None) -> float | None:
    """Return the time to write as much as the log holds; None unless the log explains the growth.

    Once the disk is full, each new byte replaces the oldest one. If other files fill the disk,
    nothing is known about how fast the log shrinks.
    """
    newest = points[-1]
    begin, end = newest.get("commitlog_min"), newest.get("commitlog_max")
    if begin is None or end is None or not slope:
        return None
    known = (it for it in points if it["commitlog_max"] is not None)
    size, rate = end - begin, _growth([(it["read_ts"], it["commitlog_max"]) for it in known])
    if size <= 0 or not rate or rate <= 0:
        return None
    disk_bytes = rate / slope
    if disk_bytes * newest["commitlog_disk_ratio"] < LOG_SHARE_MIN * size:
        return None
    return float(size / rate)


def _micros(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000_000)


Span = tuple[datetime, datetime]

DELETE_WHEN: Final = "04"
"""RocketMQ's default."""
_STEP: Final = timedelta(minutes=15)
"""Every zone's offset from UTC is a multiple of this."""


def hours_of(delete_when: str | None) -> frozenset[int]:
    """Parse a list of hours such as `04;16`, without entries at which no broker deletes.

    Such entries are numbers above 23, for example 99 for never, and invalid texts, which CometMQ
    rejects when it starts and RocketMQ when it compares them with the hour.
    """
    words = (delete_when or DELETE_WHEN).split(";")
    hours = {int(word) for word in words if word.strip().isascii() and word.strip().isdigit()}
    return frozenset(hour for hour in hours if hour < 24)


def deletion_spans(
    delete_when: str | None, zone: ZoneInfo, *, begin: datetime, end: datetime
) -> list[Span]:
    """List the intervals between `begin` and `end` in which files may be deleted, in order.

    A broker checks every few seconds while the local hour matches, so the whole hour counts. An
    hour that DST skips does not occur on that day; an hour that DST repeats occurs twice.
    """
    hours = hours_of(delete_when)
    spans: list[Span] = []
    moment = begin.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    while hours and moment < end:
        if moment.astimezone(zone).hour in hours:
            if spans and spans[-1][1] == moment:
                spans[-1] = (spans[-1][0], moment + _STEP)
            else:
                spans.append((moment, moment + _STEP))
        moment += _STEP
    return spans


BROKER_KEY: Final = ["cluster", "broker_name"]

_ERRORS: Final = SEVERITIES[SEVERITIES.index("error") :]
"""The severities that count against a broker; a warning concerns a group, not its broker."""
_SPAN: Final = pa.struct([("begin_us", pa.int64()), ("end_us", pa.int64())])
_LIMITS: Final = pa.schema(
    [
        ("cluster", pa.string()),
        ("broker_name", pa.string()),
        ("file_reserved_hours", pa.int32()),
        ("disk_fills", pa.bool_()),
        ("disk_full_s", pa.float64()),
        ("disk_forced_s", pa.float64()),
        ("sweep_s", pa.float64()),
        ("reachable", pa.bool_()),
        ("deletions", pa.list_(_SPAN)),
    ]
)


def limits_table(facts: Iterable[BrokerFacts]) -> pa.Table:
    """Build a row per broker with the facts that limit how long its messages are kept."""
    rows = [it.row | msgspec.structs.asdict(it) for it in facts]
    return pa.Table.from_pylist(rows, schema=_LIMITS)


def broker_table(facts: Iterable[BrokerFacts], queues: pa.Table) -> pa.Table:
    """Build the table `broker`; `queues` is the table `queue`."""
    sums, none = by_broker(queues), {"groups_bad": 0, "lag_sum": None}
    rows = [
        it.row
        | {
            "disk_ratio": it.row["commitlog_disk_ratio"],
            "disk_ratio_slope": it.disk_ratio_slope,
            "disk_full_s": it.disk_full_s,
        }
        | sums.get((it.row["cluster"], it.row["broker_name"]), none)
        for it in facts
    ]
    return pa.Table.from_pylist(rows, schema=arrow_schema(REPORT_TABLES["broker"]))


def by_broker(queues: pa.Table) -> dict[tuple[str, str], dict[str, int | None]]:
    is_bad = pc.is_in(queues["severity"], value_set=pa.array(_ERRORS))
    is_counted = pc.not_equal(queues["status"], "BROADCAST")
    rows = queues.select(BROKER_KEY)
    rows = rows.append_column("bad", pc.if_else(is_bad, queues["group"], None))
    rows = rows.append_column("lag", pc.if_else(is_counted, queues["lag"], None))
    counted = rows.group_by(BROKER_KEY).aggregate(
        [("bad", "count_distinct", pc.CountOptions(mode="only_valid")), ("lag", "sum")]
    )
    return {
        (row["cluster"], row["broker_name"]): {
            "groups_bad": row["bad_count_distinct"],
            "lag_sum": row["lag_sum"],
        }
        for row in counted.to_pylist()
    }
