# SPDX-License-Identifier: Apache-2.0
"""Converts columns to Arrow schemas, and rows to Arrow tables."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa

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
    "binary": pa.binary(),
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
