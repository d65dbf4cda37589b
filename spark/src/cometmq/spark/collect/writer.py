# SPDX-License-Identifier: Apache-2.0
"""Writes snapshots as Parquet files: one file per table, complete or absent.

Layout
    ROOT/raw/TABLE/dt=2026-02-28/hh=07/snap-ID.parquet, by the UTC hour of the snapshot.

Invariants
    Files appear by rename, so readers never see partial files. `progress` is written last: it
    marks the snapshot as complete, and other collectors then skip this minute.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cometmq.spark.collect.snapshot import Snapshot
from cometmq.spark.tables.arrow import versioned
from cometmq.spark.tables.files import write_parquet

WRITE_ORDER: Final = ("offsets", "groups", "brokers", "progress")
RAW: Final = "raw"


def hour_of(snapshot_id: int) -> datetime:
    moment = datetime.fromtimestamp(snapshot_id * 60, tz=UTC)
    return moment.replace(minute=0, second=0)


def hour_folder(hour: datetime) -> str:
    return f"dt={hour:%Y-%m-%d}/hh={hour:%H}"


def snapshot_path(root: Path, table: str, snapshot_id: int) -> Path:
    return root / RAW / table / hour_folder(hour_of(snapshot_id)) / f"snap-{snapshot_id}.parquet"


def is_taken(root: Path, snapshot_id: int) -> bool:
    """Return whether a complete snapshot of this minute exists."""
    return snapshot_path(root, WRITE_ORDER[-1], snapshot_id).exists()


def write(root: Path, snapshot: Snapshot) -> dict[str, int]:
    """Write all tables; return row counts by table, or {} if another collector has written them."""
    tables = snapshot.tables()
    if is_taken(root, snapshot.snapshot_id):
        return {}
    for name in WRITE_ORDER:
        path = snapshot_path(root, name, snapshot.snapshot_id)
        write_parquet(path, versioned(tables[name]))
    return {name: tables[name].num_rows for name in WRITE_ORDER}
