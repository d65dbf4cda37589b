# SPDX-License-Identifier: Apache-2.0
"""The columns of all tables: names, types, whether they may be null, and what they mean.

The documentation is generated from here.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from pyspark.sql import types as spark

from cometmq.spark.errors import SchemaError
from cometmq.spark.options import Options, Properties, Table

_TYPES: Final[dict[str, spark.DataType]] = {
    "string": spark.StringType(),
    "int": spark.IntegerType(),
    "bigint": spark.LongType(),
    "double": spark.DoubleType(),
    "boolean": spark.BooleanType(),
    "binary": spark.BinaryType(),
    "timestamp": spark.TimestampType(),
    "map<string,string>": spark.MapType(spark.StringType(), spark.StringType()),
    "array<string>": spark.ArrayType(spark.StringType()),
}


class Column(msgspec.Struct, frozen=True):
    """One column; a type with `!` is never null."""

    name: str
    type: str
    description: str

    @property
    def field(self) -> spark.StructField:
        """The column as Spark has it."""
        name = self.type.rstrip("!")
        return spark.StructField(self.name, _TYPES[name], nullable=not self.type.endswith("!"))


MESSAGES: Final = (
    Column("topic", "string!", "Topic of the message."),
    Column("broker_name", "string!", "Broker group that holds it."),
    Column("queue_id", "int!", "Queue at that broker."),
    Column("queue_offset", "bigint!", "Place in the queue, counted in messages."),
    Column("commitlog_offset", "bigint!", "Place in the broker's commit log, in bytes."),
    Column("msg_id", "string", "Id that the producer gave (UNIQ_KEY), else `offset_msg_id`."),
    Column("offset_msg_id", "string!", "Id made of the broker's address and `commitlog_offset`."),
    Column("keys", "string", "Keys of the producer, separated by spaces."),
    Column("tags", "string", "Tag of the message."),
    Column("body", "binary", "Body, decompressed unless `inflate` is false."),
    Column("flag", "int!", "Number that the producer gave."),
    Column("sys_flag", "int!", "Bits of the system: compression, transaction, form of hosts."),
    Column("born_ts", "timestamp!", "When the producer made the message."),
    Column("born_host", "string!", "Where the producer was, `ip:port`."),
    Column("store_ts", "timestamp!", "When the broker stored it."),
    Column("store_host", "string!", "The broker's `ip:port`."),
    Column("reconsume_times", "int!", "How often it was given back."),
    Column("prepared_tx_offset", "bigint!", "Where the half message of its transaction lies."),
    Column("body_crc", "int!", "CRC-32 of the stored body, without the highest bit."),
    Column("properties", "map<string,string>", "All properties; their text with `raw`."),
)

OFFSETS: Final = (
    Column("snapshot_id", "bigint!", "Minute of the round, since 1970."),
    Column("cluster", "string!", "Cluster of the broker."),
    Column("broker_name", "string!", "Broker group."),
    Column("topic", "string!", "Topic."),
    Column("queue_id", "int!", "Queue."),
    Column("min_offset", "bigint!", "Oldest offset that is there."),
    Column("max_offset", "bigint!", "Offset that the next message gets."),
    Column("last_update_ts", "timestamp", "When the newest message was stored."),
    Column("min_store_ts", "timestamp", "When the oldest message was stored."),
    Column("read_ts", "timestamp!", "When this was read."),
    Column("perm", "int!", "Permission bits of the topic."),
    Column("topic_kind", "string!", "NORMAL, RETRY, DLQ, SCHEDULE, HALF, OP or SYSTEM."),
)

PROGRESS: Final = (
    Column("snapshot_id", "bigint!", "Minute of the round, since 1970."),
    Column("cluster", "string!", "Cluster of the broker."),
    Column("group", "string!", "Consumer group."),
    Column("broker_name", "string!", "Broker group."),
    Column("topic", "string!", "Topic."),
    Column("queue_id", "int!", "Queue."),
    Column("consumer_offset", "bigint", "Next offset that the group consumes; null: none stored."),
    Column("pull_offset", "bigint", "Next offset that the group pulls (5.x)."),
    Column("min_offset", "bigint!", "Oldest offset that is there."),
    Column("max_offset", "bigint!", "Offset that the next message gets."),
    Column("consume_ts", "timestamp", "When the last consumed message was stored."),
    Column("next_ts", "timestamp", "When the first message not consumed was stored."),
    Column("delay_ms", "bigint", "Its age by the broker's clock."),
    Column("read_ts", "timestamp!", "When `consumer_offset` was read."),
    Column("max_read_ts", "timestamp!", "When `max_offset` was read, later."),
    Column("online", "boolean!", "Whether the group has members."),
    Column("message_model", "string", "CLUSTERING or BROADCASTING, of the members."),
    Column("filtered", "boolean!", "Whether the group takes a part of the messages only."),
    Column("schema_version", "int!", "Version of this table."),
)

GROUPS: Final = (
    Column("snapshot_id", "bigint!", "Minute of the round, since 1970."),
    Column("cluster", "string!", "Cluster of the broker."),
    Column("group", "string!", "Consumer group."),
    Column("broker_name", "string!", "Broker group."),
    Column("online_clients", "int!", "Members connected."),
    Column("message_model", "string", "CLUSTERING or BROADCASTING."),
    Column("consume_type", "string", "CONSUME_PASSIVELY (push) or CONSUME_ACTIVELY (pull)."),
    Column("subscriptions", "map<string,string>", "Filter by topic."),
    Column("consume_tps", "double", "Messages consumed a second."),
    Column("retry_max_times", "int", "How often a message is given again."),
    Column("consume_enable", "boolean", "Whether the group may consume."),
    Column("languages", "array<string>", "Languages of the members."),
)

BROKERS: Final = (
    Column("snapshot_id", "bigint!", "Minute of the round, since 1970."),
    Column("cluster", "string!", "Cluster of the broker."),
    Column("broker_name", "string!", "Broker group."),
    Column("broker_id", "bigint!", "0 is the master."),
    Column("addr", "string!", "Address."),
    Column("version", "string", "What it says it is."),
    Column("file_reserved_hours", "int", "How long messages are kept."),
    Column("delete_when", "string", "Hours of the day at which files are deleted."),
    Column("disk_max_used_ratio", "int", "Percentage of the disk above which files are deleted."),
    Column("clean_forcibly", "boolean", "Whether a full disk deletes files before their time."),
    Column("commitlog_disk_ratio", "double", "Used part of the disk."),
    Column("commitlog_min", "bigint", "Begin of the commit log."),
    Column("commitlog_max", "bigint", "End of the commit log."),
    Column("earliest_ts", "timestamp", "When the oldest message was stored."),
    Column("put_tps", "double", "Messages stored a second."),
    Column("get_tps", "double", "Messages read a second."),
    Column("boot_ts", "timestamp", "When it started."),
    Column("clock_skew_ms", "bigint", "Its clock minus ours."),
)

TABLE_COLUMNS: Final = {
    Table.MESSAGES: MESSAGES,
    Table.OFFSETS: OFFSETS,
    Table.PROGRESS: PROGRESS,
    Table.GROUPS: GROUPS,
    Table.BROKERS: BROKERS,
}


def struct_of(columns: Iterable[Column]) -> spark.StructType:
    """Return columns as Spark has them."""
    return spark.StructType([column.field for column in columns])


def table_schema(options: Options) -> spark.StructType:
    """Return the schema of the table that the options name."""
    columns: Sequence[Column] = TABLE_COLUMNS[options.table]
    schema = struct_of(columns)
    if options.table is Table.MESSAGES and options.include_properties is not Properties.MAP:
        schema.fields[-1] = spark.StructField("properties", spark.StringType())
    return schema


def check_schema(wanted: spark.StructType, options: Options) -> None:
    """Refuse a schema of a user that is no selection of the table's columns."""
    known = {column.name: column for column in table_schema(options)}
    for column in wanted:
        own = known.get(column.name)
        if own is None:
            names = ", ".join(known)
            raise SchemaError(f"table `{options.table}` has no column `{column.name}`: {names}")
        if own.dataType != column.dataType:
            raise SchemaError(
                f"column `{column.name}` is {own.dataType.simpleString()}, "
                f"not {column.dataType.simpleString()}"
            )
