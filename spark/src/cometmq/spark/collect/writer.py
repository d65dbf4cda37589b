# SPDX-License-Identifier: Apache-2.0
"""Snapshots as Parquet files: one of each table, whole or not there.

Layout
    ROOT/raw/TABLE/dt=2026-02-28/hh=07/snap-ID.parquet, the hour that of the snapshot in UTC.

Invariants
    A file appears by rename, so no reader sees half of one. `progress` comes last: where it is,
    the snapshot is complete, and whoever else took one of the same minute leaves it alone.
"""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from cometmq.spark.collect.snapshot import Snapshot
from cometmq.spark.tables.arrow import versioned

WRITE_ORDER: Final = ("offsets", "groups", "brokers", "progress")
RAW: Final = "raw"


def hour_of(snapshot_id: int) -> datetime:
    """Return the hour in which a snapshot was taken."""
    moment = datetime.fromtimestamp(snapshot_id * 60, tz=UTC)
    return moment.replace(minute=0, second=0)


def hour_folder(hour: datetime) -> str:
    """Return the folder of an hour below that of its table."""
    return f"dt={hour:%Y-%m-%d}/hh={hour:%H}"


def snapshot_path(root: Path, table: str, snapshot_id: int) -> Path:
    """Return where a snapshot's table is kept."""
    return root / RAW / table / hour_folder(hour_of(snapshot_id)) / f"snap-{snapshot_id}.parquet"


def is_taken(root: Path, snapshot_id: int) -> bool:
    """Whether a complete snapshot of that minute exists."""
    return snapshot_path(root, WRITE_ORDER[-1], snapshot_id).exists()


def write(root: Path, snapshot: Snapshot) -> dict[str, int]:
    """Write all tables; return their numbers of rows, {} if the minute was taken meanwhile."""
    tables = snapshot.tables()
    if is_taken(root, snapshot.snapshot_id):
        return {}
    for name in WRITE_ORDER:
        path = snapshot_path(root, name, snapshot.snapshot_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            pq.write_table(versioned(tables[name]), temporary, compression="zstd")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    return {name: tables[name].num_rows for name in WRITE_ORDER}
