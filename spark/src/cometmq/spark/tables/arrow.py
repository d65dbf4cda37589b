# SPDX-License-Identifier: Apache-2.0
"""Converts columns to Arrow schemas, and rows to Arrow tables."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from cometmq.spark.tables.columns import SCHEMA_VERSION, Columns

VERSION_KEY: Final = b"cometmq.schema_version"
"""Metadata key of Parquet files that holds SCHEMA_VERSION."""

_UTC_MICROS: Final = pa.timestamp("us", tz="UTC")
_TYPES: Final[dict[str, pa.DataType]] = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": _UTC_MICROS,
    "array<string>": pa.list_(pa.field("element", pa.string())),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
    "map<string,bigint>": pa.map_(pa.string(), pa.int64()),
}


def arrow_schema(columns: Columns) -> pa.Schema:
    """Build the schema that Spark derives from the columns' DDL in UTC."""
    return pa.schema([pa.field(c.name, _TYPES[c.type], nullable=not c.required) for c in columns])


def table_of(columns: Columns, rows: Iterable[Sequence[Any]]) -> pa.Table:
    """Build a table from rows; timestamps are microseconds since 1970."""
    schema = arrow_schema(columns)
    values = list(zip(*rows, strict=True)) or [()] * len(columns)
    arrays = [
        pa.array(column, type=field.type) for column, field in zip(values, schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def versioned(table: pa.Table) -> pa.Table:
    """Tag a table with SCHEMA_VERSION in its metadata."""
    return table.replace_schema_metadata({VERSION_KEY: str(SCHEMA_VERSION)})


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path`, which replaces it unless the block fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    with _replacing(path) as draft:
        draft.write_bytes(data)


def write_parquet(path: Path, table: pa.Table, *, row_group_size: int | None = None) -> None:
    with _replacing(path) as draft:
        pq.write_table(table, draft, compression="zstd", row_group_size=row_group_size)


def check_folder(folder: Path) -> None:
    """Create the folder if needed; raise OSError unless files can be written there."""
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / f".cometmq-lag.{os.getpid()}"
    try:
        probe.write_bytes(b"")
    finally:
        probe.unlink(missing_ok=True)
