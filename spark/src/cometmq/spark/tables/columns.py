# SPDX-License-Identifier: Apache-2.0
"""What a column is, and the columns of the tables `offsets`, `progress`, `groups`, `brokers`.

Plain values: nothing of Spark or Arrow is imported, so that documents can be made from them.
"""

from typing import Final, NamedTuple

SCHEMA_VERSION: Final = 1
"""Changes when a column changes its meaning; a new column does not change it."""


class Column(NamedTuple):
    """One column of a table."""

    name: str
    type: str
    """Spark's name: string, int, bigint, double, boolean, timestamp, array<string>, map<..>."""
    meaning: str
    required: bool = False
    """Never null."""


Columns = tuple[Column, ...]


def ddl(columns: Columns) -> str:
    """Return the columns as Spark's DDL text."""
    return ", ".join(f"`{c.name}` {c.type}{' NOT NULL' if c.required else ''}" for c in columns)


_SNAPSHOT: Final = Column(
    "snapshot_id", "bigint", "Minute of the snapshot since 1970; the same in all four tables", True
)
_CLUSTER: Final = Column("cluster", "string", "Cluster of the broker", True)
_GROUP: Final = Column("group", "string", "Consumer group", True)
_BROKER: Final = Column("broker_name", "string", "Name of the broker group", True)
_TOPIC: Final = Column("topic", "string", "Topic", True)
_QUEUE: Final = Column("queue_id", "int", "Queue of the topic at that broker", True)
_MIN: Final = Column("min_offset", "bigint", "Offset of the oldest message", True)
_MAX: Final = Column("max_offset", "bigint", "Offset that the next message gets", True)
_READ: Final = Column("read_ts", "timestamp", "When this was read, by the collector's clock", True)
_LAST_UPDATE: Final = Column("last_update_ts", "timestamp", "When the newest message was stored")
_MIN_STORE: Final = Column(
    "min_store_ts", "timestamp", "When the oldest message was stored, if it was asked"
)

OFFSETS: Final[Columns] = (
    _SNAPSHOT,
    _CLUSTER,
    _BROKER,
    _TOPIC,
    _QUEUE,
    _MIN,
    _MAX,
    _LAST_UPDATE,
    _MIN_STORE,
    _READ,
    Column("perm", "int", "Permissions of the topic at that broker: 4 read, 2 write", True),
    Column(
        "topic_kind", "string", "NORMAL, RETRY, DLQ, SCHEDULE, HALF, OP or SYSTEM", required=True
    ),
)

PROGRESS: Final[Columns] = (
    _SNAPSHOT,
    _CLUSTER,
    _GROUP,
    _BROKER,
    _TOPIC,
    _QUEUE,
    Column("consumer_offset", "bigint", "Offset that the group reads next; null: none is stored"),
    Column("pull_offset", "bigint", "Offset of the last pull; only 5.x tells it"),
    _MIN,
    _MAX,
    Column("consume_ts", "timestamp", "When the last consumed message was stored, if it was asked"),
    Column("next_ts", "timestamp", "When the first unread message was stored, if it was asked"),
    Column("delay_ms", "bigint", "Age of the first unread message, by the broker's clock"),
    _LAST_UPDATE,
    _READ,
    Column("max_read_ts", "timestamp", "When `max_offset` was read, after `read_ts`", True),
    Column("online", "boolean", "Whether the group has a connected member", True),
    Column("message_model", "string", "CLUSTERING or BROADCASTING; null: offline"),
    Column("filtered", "boolean", "Whether the subscription has an expression but `*`", True),
    Column("schema_version", "int", "Version of these tables", True),
)

GROUPS: Final[Columns] = (
    _SNAPSHOT,
    _CLUSTER,
    _GROUP,
    _BROKER,
    Column("online_clients", "int", "Connected members", True),
    Column("message_model", "string", "CLUSTERING or BROADCASTING; null: offline"),
    Column("consume_type", "string", "CONSUME_ACTIVELY (pull) or CONSUME_PASSIVELY (push)"),
    Column("subscriptions", "map<string,string>", "Filter expression by topic", True),
    Column("consume_tps", "double", "Messages a second of all topics, if it was asked"),
    Column("retry_max_times", "int", "Deliveries until a message becomes a dead letter"),
    Column("consume_enable", "boolean", "Whether the broker lets the group consume"),
    Column("languages", "array<string>", "Languages of the connected members", True),
    Column("tried", "map<string,bigint>", "Unread messages that were tried, by filtered topic"),
    Column("matched", "map<string,bigint>", "How many of them the group wants, by topic"),
    _READ,
)

BROKERS: Final[Columns] = (
    _SNAPSHOT,
    _CLUSTER,
    _BROKER,
    Column("broker_id", "bigint", "0: the master", True),
    Column("addr", "string", "Address in the cluster's table", True),
    Column("reachable", "boolean", "Whether the broker answered all questions", True),
    Column("error", "string", "Why not"),
    Column("version", "string", "Version of the broker"),
    Column("file_reserved_hours", "int", "How long messages are kept (fileReservedTime)"),
    Column("delete_when", "string", "Hours at which files are deleted (deleteWhen)"),
    Column("disk_max_used_ratio", "int", "Percent of the disk that begins deletion"),
    Column("clean_forcibly", "boolean", "Whether a full disk deletes files before their time"),
    Column("commitlog_disk_ratio", "double", "Used part of the commit log's disk, 0 to 1"),
    Column("commitlog_min", "bigint", "Least offset of the commit log"),
    Column("commitlog_max", "bigint", "End of the commit log"),
    Column("earliest_ts", "timestamp", "When the oldest message of the broker was stored"),
    Column("put_tps", "double", "Messages stored a second, over the last 10 s"),
    Column("get_tps", "double", "Messages read a second, over the last 10 s"),
    Column("boot_ts", "timestamp", "When the broker was started"),
    Column("clock_skew_ms", "bigint", "Broker's clock minus the collector's, to about a second"),
    _READ,
)

TABLES: Final[dict[str, Columns]] = {
    "offsets": OFFSETS,
    "progress": PROGRESS,
    "groups": GROUPS,
    "brokers": BROKERS,
}
"""The tables of a snapshot by name, as the option `table` calls them."""
