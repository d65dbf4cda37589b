# SPDX-License-Identifier: Apache-2.0
"""Which files hold the snapshots of a span of time, and reading them as DataFrames.

An hour is read from `hour/` where its manifest exists, else from `raw/`.
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
from cometmq.spark.collect.writer import RAW, WRITE_ORDER, hour_folder, hour_of
from cometmq.spark.lag.aggregates import AGG10, hour_file
from cometmq.spark.tables.arrow import VERSION_KEY, arrow_schema
from cometmq.spark.tables.columns import SCHEMA_VERSION, TABLES, ddl

HOUR: Final = "hour"
MANIFESTS: Final = "_manifest"
COMPLETE: Final = WRITE_ORDER[-1]
"""Where a snapshot has this table, it has all."""


class HistoryError(CometError):
    """The history is missing, or a file of it is broken."""


class History:
    """The snapshots below a folder."""

    def __init__(self, root: Path) -> None:
        """Look at `root`, which need not exist yet."""
        self.root = root

    def manifest(self, hour: datetime) -> Path:
        """Return the file that says that an hour is compacted."""
        return self.root / MANIFESTS / f"hour={hour:%Y-%m-%dT%H}.json"

    def raw_hours(self) -> list[datetime]:
        """Return the hours with raw snapshots, oldest first."""
        found = (self.root / RAW / COMPLETE).glob("dt=*/hh=*")
        return sorted(hour for path in found if (hour := hour_in(path)) is not None)

    def raw_files(self, table: str, hour: datetime) -> list[Path]:
        """Return the files of complete snapshots of an hour."""
        complete = (self.root / RAW / COMPLETE / hour_folder(hour)).glob("snap-*.parquet")
        folder = self.root / RAW / table / hour_folder(hour)
        return sorted(
            path
            for it in complete
            if it.stem.removeprefix("snap-").isdecimal() and (path := folder / it.name).exists()
        )

    def newest_id(self) -> int:
        """Return the newest snapshot; HistoryError without any."""
        for hour in reversed(self.raw_hours()):
            ids = [snapshot_id_in(path) for path in self.raw_files(COMPLETE, hour)]
            if ids:
                return max(ids)
        hours = sorted(path.stem.removeprefix("hour=") for path in self._manifests())
        if not hours:
            raise HistoryError(f"{self.root}: no snapshots; cometmq-lag snapshot makes them")
        newest = datetime.strptime(hours[-1], "%Y-%m-%dT%H").replace(tzinfo=UTC)
        tables = [
            read_whole(path, columns=["snapshot_id"])
            for path in self.files(COMPLETE, newest, newest)
        ]
        ids = [found for it in tables if (found := pc.max(it["snapshot_id"]).as_py()) is not None]
        if not ids:
            raise HistoryError(f"{self.manifest(newest)}: the file of this hour is missing")
        return int(max(ids))

    def _manifests(self) -> Iterator[Path]:
        return (self.root / MANIFESTS).glob("hour=*.json")

    def files(self, table: str, begin: datetime, end: datetime) -> list[Path]:
        """Return the files with the hours from that of `begin` to that of `end`."""
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
        """Return the rows of snapshots `first_id` to `last_id`."""
        files = self.files(table, hour_of(first_id), hour_of(last_id))
        return _read(spark, table, files, first_id, last_id)

    def table(self, table: str, first_id: int, last_id: int) -> pa.Table:
        """Return the rows of such snapshots as they are, of a table that is small."""
        schema = arrow_schema(TABLES[table])
        within = (pc.field("snapshot_id") >= first_id) & (pc.field("snapshot_id") <= last_id)
        files = self.files(table, hour_of(first_id), hour_of(last_id))
        found = [read_whole(path, schema=schema, filters=within) for path in files]
        return pa.concat_tables([schema.empty_table(), *found])

    def read_sparse(self, spark: SparkSession, first_id: int, last_id: int) -> DataFrame:
        """Return the progress of some snapshots: of compacted hours one in ten minutes."""
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


def check(path: Path) -> None:
    """Raise HistoryError unless a file is whole Parquet of our version; only its end is read."""
    try:
        metadata = pq.read_metadata(path)
    except (pa.ArrowException, OSError) as error:
        raise _not_whole(path, error) from error
    version = (metadata.metadata or {}).get(VERSION_KEY)
    if version is not None and version != str(SCHEMA_VERSION).encode():
        raise HistoryError(
            f"{path}: has tables of version {version.decode(errors='replace')}, "
            f"not {SCHEMA_VERSION}: another version of cometmq-lag wrote it"
        )


def read_whole(path: Path, **options: Any) -> pa.Table:
    """Return the table of a file; HistoryError if a part of it is broken."""
    check(path)
    try:
        return pq.read_table(path, partitioning=None, **options)
    except (pa.ArrowException, OSError) as error:
        raise _not_whole(path, error) from error


def _not_whole(path: Path, error: Exception) -> HistoryError:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return HistoryError(f"{path}: no whole Parquet file: {reason}")


def hour_in(path: Path) -> datetime | None:
    """Return the hour of a folder `dt=../hh=..`; None if it is none."""
    text = f"{path.parent.name}/{path.name}"
    try:
        return datetime.strptime(text, "dt=%Y-%m-%d/hh=%H").replace(tzinfo=UTC)
    except ValueError:
        return None


def snapshot_id_in(path: Path) -> int:
    """Return the snapshot of a raw file."""
    return int(path.stem.removeprefix("snap-"))
