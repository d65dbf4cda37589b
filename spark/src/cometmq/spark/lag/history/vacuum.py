# SPDX-License-Identifier: Apache-2.0
"""Deletes expired data: raw snapshots of compacted hours, compacted hours, hourly aggregates."""

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from cometmq.spark.collect.writer import RAW, WRITE_ORDER, hour_folder
from cometmq.spark.lag.history.aggregates import AGG10, AGG60
from cometmq.spark.lag.history.compact import is_compacted
from cometmq.spark.lag.history.reports import KEPT, REPORT
from cometmq.spark.lag.history.snapshots import HOUR, History, hour_in


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long each form of the history is kept after the end of its hour."""

    raw: timedelta = timedelta(hours=2)
    """Applies to hours whose snapshots are all compacted; the raw snapshots of others are kept."""
    hour: timedelta = timedelta(hours=48)
    agg10: timedelta = timedelta(days=30)
    agg60: timedelta = timedelta(days=400)
    report: timedelta = timedelta(days=400)


def vacuum(history: History, now: datetime, keep: Retention) -> list[Path]:
    """Delete expired data; return the deleted files and folders."""
    removed = [*_old_raw(history, now - keep.raw), *_old_hours(history, now - keep.hour)]
    for dataset, age in ((AGG10, keep.agg10), (AGG60, keep.agg60)):
        removed += _old_days(history.root / dataset, now - age)
    for name in KEPT:
        removed += _old_days(history.root / REPORT / name, now - keep.report)
    for path in removed:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return removed


def _old_raw(history: History, before: datetime) -> Iterator[Path]:
    for hour in history.raw_hours():
        if hour + timedelta(hours=1) <= before and is_compacted(history, hour):
            folders = (history.root / RAW / name / hour_folder(hour) for name in WRITE_ORDER)
            yield from (folder for folder in folders if folder.is_dir())


def _old_hours(history: History, before: datetime) -> Iterator[Path]:
    """Yield the paths of expired hours, manifests first, because an hour without a manifest is not
    read.
    """
    for folder in sorted((history.root / HOUR / WRITE_ORDER[-1]).glob("dt=*/hh=*")):
        hour = hour_in(folder)
        if hour is None or hour + timedelta(hours=1) > before:
            continue
        if history.manifest(hour).exists():
            yield history.manifest(hour)
        folders = (history.root / HOUR / name / hour_folder(hour) for name in WRITE_ORDER)
        yield from (it for it in folders if it.is_dir())


def _old_days(folder: Path, before: datetime) -> Iterator[Path]:
    for path in sorted(folder.glob("dt=*")):
        try:
            day = datetime.strptime(path.name, "dt=%Y-%m-%d").replace(tzinfo=UTC)
        except ValueError:
            continue  # not part of the history
        if day + timedelta(days=1) <= before:
            yield path
