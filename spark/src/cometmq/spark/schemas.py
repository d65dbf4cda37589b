# SPDX-License-Identifier: Apache-2.0
"""The columns of all tables: names, types, nullability and meanings.

The documentation is generated from here.
"""

from collections.abc import Iterable
from typing import Final

from pyspark.sql import types as spark

from cometmq.spark.errors import SchemaError
from cometmq.spark.options.definitions import Options, Properties, Table
from cometmq.spark.tables.columns import TABLES, Column

_TYPES: Final[dict[str, spark.DataType]] = {
    "string": spark.StringType(),
    "int": spark.IntegerType(),
    "bigint": spark.LongType(),
    "double": spark.DoubleType(),
    "boolean": spark.BooleanType(),
    "binary": spark.BinaryType(),
    "timestamp": spark.TimestampType(),
    "map<string,string>": spark.MapType(spark.StringType(), spark.StringType()),
    "map<string,bigint>": spark.MapType(spark.StringType(), spark.LongType()),
    "array<string>": spark.ArrayType(spark.StringType()),
}


MESSAGES: Final = (
    Column("topic", "string", "Topic of the message.", True),
    Column("broker_name", "string", "Broker group that stores the message.", True),
    Column("queue_id", "int", "Queue at that broker.", True),
    Column("queue_offset", "bigint", "Position in the queue, in messages.", True),
    Column(
        "commitlog_offset",
        "bigint",
        "Position in the broker's commit log, in bytes.",
        required=True,
    ),
    Column("msg_id", "string", "Id set by the producer (UNIQ_KEY), otherwise `offset_msg_id`."),
    Column(
        "offset_msg_id",
        "string",
        "Id built from the broker's address and `commitlog_offset`.",
        required=True,
    ),
    Column("keys", "string", "Keys set by the producer, separated by spaces."),
    Column("tags", "string", "Tag of the message."),
    Column("body", "binary", "Body, decompressed unless `inflate` is false."),
    Column("flag", "int", "Flag set by the producer.", True),
    Column(
        "sys_flag",
        "int",
        "System flag bits, for example compression.",
        required=True,
    ),
    Column("born_ts", "timestamp", "When the producer created the message.", True),
    Column("born_host", "string", "Address of the producer, `ip:port`.", True),
    Column("store_ts", "timestamp", "When the broker stored the message.", True),
    Column("store_host", "string", "Address of the broker, `ip:port`.", True),
    Column("reconsume_times", "int", "Number of redeliveries.", True),
    Column(
        "prepared_tx_offset",
        "bigint",
        "Commit log offset of the transaction's half message.",
        required=True,
    ),
    Column("body_crc", "int", "CRC-32 of the stored body, without its highest bit.", True),
    Column(
        "properties",
        "map<string,string>",
        "All properties; as encoded text with `includeProperties=raw`.",
    ),
)

COLUMNS: Final = {Table.MESSAGES: MESSAGES} | {Table(name): TABLES[name] for name in TABLES}


def struct_of(columns: Iterable[Column]) -> spark.StructType:
    return spark.StructType(
        [
            spark.StructField(column.name, _TYPES[column.type], nullable=not column.required)
            for column in columns
        ]
    )


def table_schema(options: Options) -> spark.StructType:
    """Return the schema of the table that the options select."""
    schema = struct_of(COLUMNS[options.table])
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
