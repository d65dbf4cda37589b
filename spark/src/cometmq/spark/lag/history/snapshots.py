# SPDX-License-Identifier: Apache-2.0
"""Locates and reads the files that hold the snapshots of a time range.

An hour is read from `hour/` if its manifest exists, otherwise from `raw/`.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from cometmq.remoting.errors import CometError
from cometmq.spark.collect.snapshot import RAW, WRITE_ORDER, hour_folder, hour_of
from cometmq.spark.lag.history.aggregates import AGG10, hour_file
from cometmq.spark.tables.arrow import VERSION_KEY, arrow_schema
from cometmq.spark.tables.columns import SCHEMA_VERSION, TABLES, ddl

HOUR: Final = "hour"
MANIFESTS: Final = "_manifest"
COMPLETE: Final = WRITE_ORDER[-1]
"""The table written last: a snapshot that has it has all tables."""


class History:
    """The history of snapshots under a folder, which need not exist yet."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def manifest(self, hour: datetime) -> Path:
        """Locate the manifest, whose presence marks an hour as compacted."""
        return self.root / MANIFESTS / f"hour={hour:%Y-%m-%dT%H}.json"

    def raw_hours(self) -> list[datetime]:
        """List the hours that have raw snapshots, oldest first."""
        found = (self.root / RAW / COMPLETE).glob("dt=*/hh=*")
        return sorted(hour for path in found if (hour := hour_in(path)) is not None)

    def raw_files(self, table: str, hour: datetime) -> list[Path]:
        """List the raw files of a table in an hour; incomplete snapshots are omitted."""
        complete = (self.root / RAW / COMPLETE / hour_folder(hour)).glob("snap-*.parquet")
        folder = self.root / RAW / table / hour_folder(hour)
        return sorted(
            path
            for it in complete
            if it.stem.removeprefix("snap-").isdecimal() and (path := folder / it.name).exists()
        )

    def newest_id(self) -> int:
        """Find the newest snapshot; raise HistoryError if there is none."""
        # Look at raw snapshots first, because the current hour is never compacted.
        for hour in reversed(self.raw_hours()):
            ids = [snapshot_id_in(path) for path in self.raw_files(COMPLETE, hour)]
            if ids:
                return max(ids)
        hours = sorted(path.stem.removeprefix("hour=") for path in self._manifests())
        if not hours:
            raise HistoryError(f"{self.root}: no snapshots; run cometmq-lag snapshot first")
        newest = datetime.strptime(hours[-1], "%Y-%m-%dT%H").replace(tzinfo=UTC)
        tables = [
            read_whole(path, columns=["snapshot_id"])
            for path in self.files(COMPLETE, newest, newest)
        ]
        ids = [found for it in tables if (found := pc.max(it["snapshot_id"]).as_py()) is not None]
        if not ids:
            raise HistoryError(
                f"{self.manifest(newest)}: the manifest exists, but the file of its hour is missing"
            )
        return int(max(ids))

    def _manifests(self) -> Iterator[Path]:
        return (self.root / MANIFESTS).glob("hour=*.json")

    def files(self, table: str, begin: datetime, end: datetime) -> list[Path]:
        """List the files of all hours from the hour of `begin` to the hour of `end`."""
        files: list[Path] = []
        hour = begin.replace(minute=0, second=0, microsecond=0)
        while hour <= end:
            if self.manifest(hour).exists():
                folder = self.root / HOUR / table / hour_folder(hour)
                files += sorted(folder.glob("*.parquet"))
            else:
                files += self.raw_files(table, hour)
            hour += timedelta(hours=1)
        return files

    def read(self, spark: SparkSession, table: str, first_id: int, last_id: int) -> DataFrame:
        """Read the rows of snapshots `first_id` to `last_id` as a DataFrame."""
        files = self.files(table, hour_of(first_id), hour_of(last_id))
        return _read(spark, table, files, first_id, last_id)

    def table(self, table: str, first_id: int, last_id: int) -> pa.Table:
        """Read a small table's rows of snapshots `first_id` to `last_id` into memory."""
        schema = arrow_schema(TABLES[table])
        within = (pc.field("snapshot_id") >= first_id) & (pc.field("snapshot_id") <= last_id)
        files = self.files(table, hour_of(first_id), hour_of(last_id))
        found = [read_whole(path, schema=schema, filters=within) for path in files]
        return pa.concat_tables([schema.empty_table(), *found])

    def read_sparse(self, spark: SparkSession, first_id: int, last_id: int) -> DataFrame:
        """Read thinned-out progress: one snapshot per ten minutes of compacted hours."""
        files: list[Path] = []
        hour = hour_of(first_id)
        while hour <= hour_of(last_id):
            sparse = hour_file(self.root, AGG10, hour)
            files += [sparse] if sparse.exists() else self.files(COMPLETE, hour, hour)
            hour += timedelta(hours=1)
        return _read(spark, COMPLETE, files, first_id, last_id)


def _read(
    spark: SparkSession, table: str, files: list[Path], first_id: int, last_id: int
) -> DataFrame:
    for path in files:
        check(path)
    schema = ddl(TABLES[table]).replace(" NOT NULL", "")
    if not files:
        return spark.createDataFrame([], schema)
    frame = spark.read.schema(schema).parquet(*(str(path) for path in files))
    return frame.where(f"snapshot_id BETWEEN {first_id} AND {last_id}")


def hour_in(path: Path) -> datetime | None:
    """Parse the hour of a folder `dt=../hh=..`; return None for any other folder."""
    text = f"{path.parent.name}/{path.name}"
    try:
        return datetime.strptime(text, "dt=%Y-%m-%d/hh=%H").replace(tzinfo=UTC)
    except ValueError:
        return None


def snapshot_id_in(path: Path) -> int:
    return int(path.stem.removeprefix("snap-"))


class HistoryError(CometError):
    """The history is missing, or one of its files is damaged."""


def check(path: Path) -> None:
    """Read a file's footer; raise HistoryError unless the file is Parquet of our version."""
    try:
        metadata = pq.read_metadata(path)
    except (pa.ArrowException, OSError) as error:
        raise _not_whole(path, error) from error
    version = (metadata.metadata or {}).get(VERSION_KEY)
    if version is not None and version != str(SCHEMA_VERSION).encode():
        raise HistoryError(
            f"{path}: written with table version {version.decode(errors='replace')}, this "
            f"cometmq-lag reads version {SCHEMA_VERSION}: use the cometmq-lag that wrote it"
        )


def read_whole(path: Path, **options: Any) -> pa.Table:
    """Read a complete file; raise HistoryError if any part is damaged."""
    check(path)
    try:
        return pq.read_table(path, partitioning=None, **options)
    except (pa.ArrowException, OSError) as error:
        raise _not_whole(path, error) from error


def _not_whole(path: Path, error: Exception) -> HistoryError:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return HistoryError(f"{path}: not a valid Parquet file: {reason}")
