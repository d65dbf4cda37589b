# SPDX-License-Identifier: Apache-2.0
"""Keeps the tables of each report, and looks up the lag in earlier reports.

Layout
    ROOT/report/TABLE/dt=2026-02-28/run_id=20260228T101500Z/part.parquet
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cometmq.spark.lag.columns import Report
from cometmq.spark.lag.history.parquet import read_whole
from cometmq.spark.tables.arrow import versioned
from cometmq.spark.tables.files import write_parquet

REPORT: Final = "report"
KEPT: Final = ("queue", "group", "broker")
NEAR_MINUTES: Final = 30
"""Maximum distance of an earlier report from the requested time."""

Lags = dict[tuple[str, str], int | None]
"""Unread messages by cluster and group."""

_RUN_ID: Final = "run_id=%Y%m%dT%H%M%SZ"
_FILE: Final = "part.parquet"


def lag_before(root: Path, snapshot_id: int, age_minutes: int | None) -> Lags:
    """Read the lag of each group in an earlier report.

    `age_minutes` selects the report closest to that age; None selects the previous report.
    """
    runs = {it: path for it, path in _runs(root) if it < snapshot_id}
    if age_minutes is None:
        chosen = max(runs, default=None)
    else:
        wanted = snapshot_id - age_minutes
        chosen = min(runs, key=lambda it: abs(it - wanted), default=None)
        if chosen is not None and abs(chosen - wanted) > NEAR_MINUTES:
            chosen = None
    if chosen is None:
        return {}
    rows = read_whole(runs[chosen] / _FILE, columns=["cluster", "group", "lag_sum"]).to_pylist()
    return {(row["cluster"], row["group"]): row["lag_sum"] for row in rows}


def _runs(root: Path) -> list[tuple[int, Path]]:
    found = []
    for path in (root / REPORT / "group").glob("dt=*/run_id=*"):
        try:
            moment = datetime.strptime(path.name, _RUN_ID).replace(tzinfo=UTC)
        except ValueError:
            continue  # not written by a report
        if (path / _FILE).exists():
            found.append((int(moment.timestamp()) // 60, path))
    return found


def keep(root: Path, report: Report) -> None:
    """Save the tables for later reports; a report of the same snapshot is replaced."""
    header = report.header
    for name in KEPT:
        day = f"dt={header.snapshot_ts:%Y-%m-%d}"
        path = root / REPORT / name / day / f"run_id={header.run_id}" / _FILE
        write_parquet(path, versioned(report.tables[name]))
