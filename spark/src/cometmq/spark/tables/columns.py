# SPDX-License-Identifier: Apache-2.0
"""The columns of all tables and of the rows to be written: names, types, meanings.

The columns are plain values: this module imports neither Spark nor Arrow, so that documents can be
generated without them.
"""

from typing import Final, NamedTuple

from cometmq.remoting import names

SCHEMA_VERSION: Final = 1
"""Incremented when the meaning of a column changes, but not for new columns."""


class Column(NamedTuple):
    name: str
    type: str
    """Spark's type name: string, int, bigint, double, boolean, timestamp, array<..>, map<..>."""
    meaning: str
    required: bool = False
    """Whether the column is never null."""


Columns = tuple[Column, ...]


def ddl(columns: Columns) -> str:
    return ", ".join(f"`{c.name}` {c.type}{' NOT NULL' if c.required else ''}" for c in columns)


_SNAPSHOT: Final = Column(
    "snapshot_id",
    "bigint",
    "Time of the snapshot in minutes since 1970; the same in all four tables",
    True,
)
_CLUSTER: Final = Column("cluster", "string", "Cluster of the broker", True)
_GROUP: Final = Column("group", "string", "Consumer group", True)
_BROKER: Final = Column("broker_name", "string", "Name of the broker group", True)
_TOPIC: Final = Column("topic", "string", "Topic", True)
_QUEUE: Final = Column("queue_id", "int", "Queue of the topic at that broker", True)
_MIN: Final = Column("min_offset", "bigint", "Offset of the oldest message", True)
_MAX: Final = Column("max_offset", "bigint", "Offset of the next message to arrive", True)
_READ: Final = Column(
    "read_ts", "timestamp", "When the row was read, by the collector's clock", True
)
_LAST_UPDATE: Final = Column("last_update_ts", "timestamp", "Store time of the newest message")
_MIN_STORE: Final = Column(
    "min_store_ts", "timestamp", "Store time of the oldest message, if queried"
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
    Column(
        "consumer_offset", "bigint", "Next offset the group will read; null if it never committed"
    ),
    Column("pull_offset", "bigint", "Offset of the last pull; only 5.x brokers report it"),
    _MIN,
    _MAX,
    Column("consume_ts", "timestamp", "Store time of the last consumed message, if queried"),
    Column("next_ts", "timestamp", "Store time of the first unread message, if queried"),
    Column("delay_ms", "bigint", "Age of the first unread message, by the broker's clock"),
    _LAST_UPDATE,
    _READ,
    Column("max_read_ts", "timestamp", "When `max_offset` was read, later than `read_ts`", True),
    Column("online", "boolean", "Whether the group has a connected member", True),
    Column("message_model", "string", "CLUSTERING or BROADCASTING; null if offline"),
    Column(
        "filtered", "boolean", "Whether the subscription has an expression other than `*`", True
    ),
    Column("schema_version", "int", "Version of these tables", True),
)

GROUPS: Final[Columns] = (
    _SNAPSHOT,
    _CLUSTER,
    _GROUP,
    _BROKER,
    Column("online_clients", "int", "Connected members", True),
    Column("message_model", "string", "CLUSTERING or BROADCASTING; null if offline"),
    Column("consume_type", "string", "CONSUME_ACTIVELY (pull) or CONSUME_PASSIVELY (push)"),
    Column("subscriptions", "map<string,string>", "Filter expression by topic", True),
    Column("consume_tps", "double", "Messages consumed per second in all topics, if queried"),
    Column("retry_max_times", "int", "Redeliveries before a message becomes a dead letter"),
    Column("consume_enable", "boolean", "Whether the broker allows the group to consume"),
    Column("languages", "array<string>", "Languages of the connected members", True),
    Column("tried", "map<string,bigint>", "Unread messages tested against the filter, by topic"),
    Column("matched", "map<string,bigint>", "Tested messages that match the filter, by topic"),
    _READ,
)

BROKERS: Final[Columns] = (
    _SNAPSHOT,
    _CLUSTER,
    _BROKER,
    Column("broker_id", "bigint", "0 for the master", True),
    Column("addr", "string", "Address registered at the name server", True),
    Column("reachable", "boolean", "Whether the broker answered all queries", True),
    Column("error", "string", "Reason if it did not answer"),
    Column("version", "string", "Version of the broker"),
    Column("file_reserved_hours", "int", "Retention of messages (fileReservedTime)"),
    Column("delete_when", "string", "Hours of the day at which files are deleted (deleteWhen)"),
    Column("disk_max_used_ratio", "int", "Disk usage in percent that triggers deletion"),
    Column("clean_forcibly", "boolean", "Whether a full disk deletes files before they expire"),
    Column("commitlog_disk_ratio", "double", "Used fraction of the commit log's disk, 0 to 1"),
    Column("commitlog_min", "bigint", "Start of the commit log"),
    Column("commitlog_max", "bigint", "End of the commit log"),
    Column("earliest_ts", "timestamp", "Store time of the broker's oldest message"),
    Column("put_tps", "double", "Messages stored per second, over the last 10 s"),
    Column("get_tps", "double", "Messages read per second, over the last 10 s"),
    Column("boot_ts", "timestamp", "When the broker started"),
    Column(
        "clock_skew_ms",
        "bigint",
        "The broker's clock minus the collector's, accurate to about a second",
    ),
    _READ,
)

TABLES: Final[dict[str, Columns]] = {
    "offsets": OFFSETS,
    "progress": PROGRESS,
    "groups": GROUPS,
    "brokers": BROKERS,
}
"""The tables of a snapshot by name, as used by the option `table`."""


MESSAGES: Final[Columns] = (
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

INPUT: Final[Columns] = (
    Column("body", "binary", "Body, binary or text; required."),
    Column("topic", "string", "Topic; required unless the option `topic` is set."),
    Column("tags", "string", "Tag."),
    Column("keys", "string", "Keys: an array, or text separated by spaces."),
    Column("properties", "map<string,string>", "More properties; system properties are dropped."),
    Column("sharding_key", "string", "Rows with equal keys go to the same queue, in order."),
    Column("queue_id", "int", "Queue; requires `broker_name`."),
    Column("broker_name", "string", "Broker group; requires `queue_id`."),
    Column("delay_level", "int", "Delay level, from 1."),
    Column("born_ts", "timestamp", "Creation time of the message; default: time of sending."),
)
"""Columns of rows to be written."""


SYSTEM_TOPICS: Final = names.SYSTEM_TOPICS | {names.reply_topic(names.DEFAULT_CLUSTER)}
SYSTEM_PREFIXES: Final = (names.SYSTEM_TOPIC_PREFIX, names.RESERVED_TOPIC_PREFIX)

_KINDS: Final = {
    names.SCHEDULE_TOPIC: "SCHEDULE",
    names.HALF_TOPIC: "HALF",
    names.OP_HALF_TOPIC: "OP",
}


def topic_kind(topic: str) -> str:
    """Classify a topic: NORMAL, RETRY, DLQ, SCHEDULE, HALF, OP or SYSTEM."""
    if topic.startswith(names.RETRY_PREFIX):
        return "RETRY"
    if topic.startswith(names.DLQ_PREFIX):
        return "DLQ"
    if topic in _KINDS:
        return _KINDS[topic]
    is_system = topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIXES)
    return "SYSTEM" if is_system else "NORMAL"
