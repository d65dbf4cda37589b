# SPDX-License-Identifier: Apache-2.0
"""Spark's schemas of all tables."""

from collections.abc import Iterable
from typing import Final

from pyspark.sql import types as spark
from pyspark.sql.pandas.types import from_arrow_schema

from cometmq.spark.errors import SchemaError
from cometmq.spark.options.definitions import Options, Properties, Table
from cometmq.spark.tables.arrow import arrow_schema
from cometmq.spark.tables.columns import MESSAGES, TABLES

COLUMNS: Final = {Table.MESSAGES: MESSAGES} | {Table(name): TABLES[name] for name in TABLES}


def table_schema(options: Options) -> spark.StructType:
    """Return the schema of the table that the options select."""
    schema = from_arrow_schema(arrow_schema(COLUMNS[options.table]))
    if options.table is Table.MESSAGES and options.include_properties is not Properties.MAP:
        schema.fields[-1] = spark.StructField("properties", spark.StringType())
    return _selected(schema, options)


def _selected(schema: spark.StructType, options: Options) -> spark.StructType:
    """Select the columns of the option `columns`, in its order."""
    names = [name.strip() for name in options.columns.split(",") if name.strip()]
    known = {column.name: column for column in schema}
    for name in names:
        if name not in known:
            raise SchemaError(_no_column(options, name, known))
    return spark.StructType([known[name] for name in dict.fromkeys(names)]) if names else schema


def _no_column(options: Options, name: str, known: Iterable[str]) -> str:
    return f"table `{options.table}` has no column `{name}`; it has {', '.join(known)}"


def check_schema(wanted: spark.StructType, options: Options) -> None:
    """Reject a user's schema that is not a selection of the table's columns."""
    known = {column.name: column for column in table_schema(options)}
    for column in wanted:
        own = known.get(column.name)
        if own is None:
            raise SchemaError(_no_column(options, column.name, known))
        if own.dataType != column.dataType:
            raise SchemaError(
                f"column `{column.name}` is {own.dataType.simpleString()}, "
                f"not {column.dataType.simpleString()}"
            )
