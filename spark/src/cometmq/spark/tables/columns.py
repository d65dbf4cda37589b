# SPDX-License-Identifier: Apache-2.0
"""The columns of all tables and of the rows to be written: names, types, meanings.

The columns are plain values: this module imports neither Spark nor Arrow, so that documents can be
generated without them.
"""

import re
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


def columns(text: str) -> Columns:
    """Parse a table with a column on each line: its name, its type (with `!` if it is never null),
    and its meaning, which may go on in lines that are indented further.
    """
    rows = (row.split(maxsplit=2) for row in re.split(r"\n    (?! )", text.rstrip())[1:])
    return tuple(
        Column(name, type_.rstrip("!"), " ".join(meaning.split()), type_.endswith("!"))
        for name, type_, meaning in rows
    )


def ddl(columns: Columns) -> str:
    return ", ".join(f"`{c.name}` {c.type}{' NOT NULL' if c.required else ''}" for c in columns)


OFFSETS: Final = columns("""
    snapshot_id    bigint!    Time of the snapshot in minutes since 1970; the same in all four
        tables
    cluster        string!    Cluster of the broker
    broker_name    string!    Name of the broker group
    topic          string!    Topic
    queue_id       int!       Queue of the topic at that broker
    min_offset     bigint!    Offset of the oldest message
    max_offset     bigint!    Offset of the next message to arrive
    last_update_ts timestamp  Store time of the newest message
    min_store_ts   timestamp  Store time of the oldest message, if queried
    read_ts        timestamp! When the row was read, by the collector's clock
    perm           int!       Permissions of the topic at that broker: 4 read, 2 write
    topic_kind     string!    NORMAL, RETRY, DLQ, SCHEDULE, HALF, OP or SYSTEM
""")

PROGRESS: Final = columns("""
    snapshot_id     bigint!    Time of the snapshot in minutes since 1970; the same in all four
        tables
    cluster         string!    Cluster of the broker
    group           string!    Consumer group
    broker_name     string!    Name of the broker group
    topic           string!    Topic
    queue_id        int!       Queue of the topic at that broker
    consumer_offset bigint     Next offset the group will read; null if it never committed
    pull_offset     bigint     Offset of the last pull; only 5.x brokers report it
    min_offset      bigint!    Offset of the oldest message
    max_offset      bigint!    Offset of the next message to arrive
    consume_ts      timestamp  Store time of the last consumed message, if queried
    next_ts         timestamp  Store time of the first unread message, if queried
    delay_ms        bigint     Age of the first unread message, by the broker's clock
    last_update_ts  timestamp  Store time of the newest message
    read_ts         timestamp! When the row was read, by the collector's clock
    max_read_ts     timestamp! When `max_offset` was read, later than `read_ts`
    online          boolean!   Whether the group has a connected member
    message_model   string     CLUSTERING or BROADCASTING; null if offline
    filtered        boolean!   Whether the subscription has an expression other than `*`
    schema_version  int!       Version of these tables
""")

GROUPS: Final = columns("""
    snapshot_id     bigint!             Time of the snapshot in minutes since 1970; the same in all
        four tables
    cluster         string!             Cluster of the broker
    group           string!             Consumer group
    broker_name     string!             Name of the broker group
    online_clients  int!                Connected members
    message_model   string              CLUSTERING or BROADCASTING; null if offline
    consume_type    string              CONSUME_ACTIVELY (pull) or CONSUME_PASSIVELY (push)
    subscriptions   map<string,string>! Filter expression by topic
    consume_tps     double              Messages consumed per second in all topics, if queried
    retry_max_times int                 Redeliveries before a message becomes a dead letter
    consume_enable  boolean             Whether the broker allows the group to consume
    languages       array<string>!      Languages of the connected members
    tried           map<string,bigint>  Unread messages tested against the filter, by topic
    matched         map<string,bigint>  Tested messages that match the filter, by topic
    read_ts         timestamp!          When the row was read, by the collector's clock
""")

BROKERS: Final = columns("""
    snapshot_id          bigint!    Time of the snapshot in minutes since 1970; the same in all four
        tables
    cluster              string!    Cluster of the broker
    broker_name          string!    Name of the broker group
    broker_id            bigint!    0 for the master
    addr                 string!    Address registered at the name server
    reachable            boolean!   Whether the broker answered all queries
    error                string     Reason if it did not answer
    version              string     Version of the broker
    file_reserved_hours  int        Retention of messages (fileReservedTime)
    delete_when          string     Hours of the day at which files are deleted (deleteWhen)
    disk_max_used_ratio  int        Disk usage in percent that triggers deletion
    clean_forcibly       boolean    Whether a full disk deletes files before they expire
    commitlog_disk_ratio double     Used fraction of the commit log's disk, 0 to 1
    commitlog_min        bigint     Start of the commit log
    commitlog_max        bigint     End of the commit log
    earliest_ts          timestamp  Store time of the broker's oldest message
    put_tps              double     Messages stored per second, over the last 10 s
    get_tps              double     Messages read per second, over the last 10 s
    boot_ts              timestamp  When the broker started
    clock_skew_ms        bigint     The broker's clock minus the collector's, accurate to about a
        second
    read_ts              timestamp! When the row was read, by the collector's clock
""")

TABLES: Final[dict[str, Columns]] = {
    "offsets": OFFSETS,
    "progress": PROGRESS,
    "groups": GROUPS,
    "brokers": BROKERS,
}
"""The tables of a snapshot by name, as used by the option `table`."""


MESSAGES: Final = columns("""
    topic              string!            Topic of the message.
    broker_name        string!            Broker group that stores the message.
    queue_id           int!               Queue at that broker.
    queue_offset       bigint!            Position in the queue, in messages.
    commitlog_offset   bigint!            Position in the broker's commit log, in bytes.
    msg_id             string             Id set by the producer (UNIQ_KEY), otherwise
        `offset_msg_id`.
    offset_msg_id      string!            Id built from the broker's address and `commitlog_offset`.
    keys               string             Keys set by the producer, separated by spaces.
    tags               string             Tag of the message.
    body               binary             Body, decompressed unless `inflate` is false.
    flag               int!               Flag set by the producer.
    sys_flag           int!               System flag bits, for example compression.
    born_ts            timestamp!         When the producer created the message.
    born_host          string!            Address of the producer, `ip:port`.
    store_ts           timestamp!         When the broker stored the message.
    store_host         string!            Address of the broker, `ip:port`.
    reconsume_times    int!               Number of redeliveries.
    prepared_tx_offset bigint!            Commit log offset of the transaction's half message.
    body_crc           int!               CRC-32 of the stored body, without its highest bit.
    properties         map<string,string> All properties; as encoded text with
        `includeProperties=raw`.
""")

INPUT: Final = columns("""
    body         binary             Body, binary or text; required.
    topic        string             Topic; required unless the option `topic` is set.
    tags         string             Tag.
    keys         string             Keys: an array, or text separated by spaces.
    properties   map<string,string> More properties; system properties are dropped.
    sharding_key string             Rows with equal keys go to the same queue, in order.
    queue_id     int                Queue; requires `broker_name`.
    broker_name  string             Broker group; requires `queue_id`.
    delay_level  int                Delay level, from 1.
    born_ts      timestamp          Creation time of the message; default: time of sending.
""")
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
